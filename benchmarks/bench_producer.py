"""Producers without Spark: this project's columns, confluent-kafka, kafka-python and Kafka's ProducerPerformance.

    python -m benchmarks.bench_producer                       starts a Kafka; 100 B and 1 KiB, none and lz4
    python -m benchmarks.bench_producer --bootstrap-servers 127.0.0.1:9092 --records 200000

Each runs in a fresh process, with acks=all and idempotence, after a warm-up. The data is prepared before the
measurement: Arrow batches of 10,000 rows for this project, lists of bytes for the others. All use a linger for bulk
data, and the others a larger batch size, since their defaults suit single records. The time ends when all records are
acknowledged. ProducerPerformance writes values without keys, and its CPU time includes the start of its JVM.

The floor sends record batches that were encoded before the measurement, also with five requests in flight. It is the
maximum rate of a broker on the same machine.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.job import PROTOCOL, Figure, Job, Topic, run_section, say, section_main
from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION
from spark_kafka_source.local_kafka.jars import find_java, kafka_jars

CONFLUENT, KAFKA_PYTHON, PERFORMANCE = "confluent-kafka", "kafka-python", "ProducerPerformance"
FLOOR = "encoded before"
CHUNK_ROWS = 10_000
BATCH_BYTES = 1_000_000
LINGER_MS = 20
IN_FLIGHT = 5
# Fraction of the records for each producer, so that each run takes some seconds.
SHARE = {PROTOCOL: 1.0, FLOOR: 1.0, CONFLUENT: 1.0, KAFKA_PYTHON: 0.1, PERFORMANCE: 1.0}

Pairs = list[tuple[bytes, bytes]]
Write = Callable[[int], None]
"""Write a number of chunks of 10,000 rows and wait for their acknowledgement."""


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    (name,) = arguments
    figures = []
    for topic in job.topics:
        pairs = _pairs(topic.value_bytes)
        chunks = max(1, int(topic.records * SHARE[name]) // CHUNK_ROWS)
        if name == PERFORMANCE:
            rates, costs = _performance(job, topic)
        else:
            rates, costs = [], []
            with _WRITERS[name](job, topic, pairs) as write:
                write(max(1, chunks // 10))
                for _ in range(job.rounds):
                    started_s, started_cpu_s = time.perf_counter(), _cpu_s()
                    write(chunks)
                    rates.append(chunks * CHUNK_ROWS / (time.perf_counter() - started_s))
                    costs.append((_cpu_s() - started_cpu_s) / (chunks * CHUNK_ROWS) * 1e9)
        say(f"  {topic.label:>12} {name:>15}: {max(rates):,.0f} records/s, {min(costs):,.0f} ns of CPU a record")
        figures.append(Figure("producer", topic.label, "write", "records/s", name, tuple(rates)))
        figures.append(Figure("producer", topic.label, "CPU time", "ns/record", name, tuple(costs)))
    return figures


def _pairs(value_bytes: int) -> Pairs:
    """Return keys of 8 bytes and values of letters; zstd halves them, lz4 leaves nine tenths, at its lowest speed."""
    rng = np.random.default_rng(7)
    letters = np.frombuffer(b"0123456789abcdef", np.uint8)[rng.integers(0, 16, (CHUNK_ROWS, value_bytes))]
    return [(b"%08d" % number, letters[number].tobytes()) for number in range(CHUNK_ROWS)]


def _performance(job: Job, topic: Topic) -> tuple[list[float], list[float]]:
    """Return the result of Kafka's benchmark of its producer: values without keys, in a fresh JVM."""
    properties = {
        "bootstrap.servers": job.bootstrap_servers,
        "acks": "all",
        "compression.type": topic.compression,
        "batch.size": BATCH_BYTES,
        "linger.ms": LINGER_MS,
        "buffer.memory": 64 << 20,
    }
    command = [find_java(), "-Xmx512m", "-cp", str(kafka_jars(DEFAULT_VERSION) / "*")]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic.name, "--throughput", "-1"]
    command += ["--num-records", str(topic.records), "--record-size", str(topic.value_bytes), "--producer-props"]
    command += [f"{name}={value}" for name, value in properties.items()]
    rates, costs = [], []
    for _ in range(job.rounds):
        started_s = _cpu_s(resource.RUSAGE_CHILDREN)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        costs.append((_cpu_s(resource.RUSAGE_CHILDREN) - started_s) / topic.records * 1e9)
        rates.append(float(re.findall(r"([0-9.]+) records/sec", output)[-1]))
    return rates, costs


def _cpu_s(whose: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


@contextmanager
def _protocol(job: Job, topic: Topic, pairs: Pairs) -> Iterator[Write]:
    from protocol.cluster.client import Client
    from protocol.config import parse_client, parse_producer
    from protocol.producer.producer import Producer

    # The defaults otherwise: batches of 1 MiB, idempotence, five requests in flight.
    remembered = {
        "bootstrap.servers": job.bootstrap_servers,
        "compression.type": topic.compression,
        "linger.ms": LINGER_MS,
    }
    columns = _columns(pairs)
    with Client(parse_client(remembered)) as client, Producer(client, parse_producer(remembered)) as producer:

        def write(chunks: int) -> None:
            for _ in range(chunks):
                producer.send_columns(topic.name, columns)
            producer.flush()

        yield write


def _columns(pairs: Pairs) -> Any:
    """Return a `pa.RecordBatch` of `key` and `value`."""
    import pyarrow as pa

    keys, values = zip(*pairs, strict=True)
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


@contextmanager
def _encoded_before(job: Job, topic: Topic, pairs: Pairs) -> Iterator[Write]:
    from protocol.cluster.client import Client
    from protocol.config import parse_client
    from protocol.net.connection import Reply
    from protocol.records.encode import encode_batches, finalize_header, record_sizes
    from protocol.records.record_columns import record_columns
    from protocol.wire.messages.m00_produce import LAST_WITH_TOPIC_NAMES, PRODUCE

    columns = record_columns(_columns(pairs), time.time_ns() // 1_000_000)
    sample = CHUNK_ROWS // -(-int(record_sizes(columns).sum()) // BATCH_BYTES)
    counts = [min(sample, CHUNK_ROWS - first) for first in range(0, CHUNK_ROWS, sample)]
    batches = encode_batches(columns, counts, compression=topic.compression)
    for batch in batches:
        finalize_header(batch)
    with Client(parse_client({"bootstrap.servers": job.bootstrap_servers})) as client:
        partitions = [(topic.name, partition) for partition in range(topic.partitions)]
        leaders, _ = client.leaders(partitions)
        turns = cycle(partitions)
        under_way: deque[Reply] = deque()

        def take_reply() -> None:
            answer = under_way.popleft().result(client.deadline())
            codes = {part["error_code"] for row in answer["responses"] for part in row["partition_responses"]}
            if codes != {0}:
                raise RuntimeError(f"Produce was answered with the errors {codes}")

        def write(chunks: int) -> None:
            for batch in batches * chunks:
                (name, partition) = where = next(turns)
                data = [{"name": name, "partition_data": [{"index": partition, "records": batch}]}]
                body = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": data}
                if len(under_way) == IN_FLIGHT:
                    take_reply()
                broker, _ = leaders[where]
                reply = client.send(
                    broker,
                    PRODUCE,
                    body,
                    client.deadline(),
                    purpose="produce",
                    at_least=3,
                    at_most=LAST_WITH_TOPIC_NAMES,
                )
                under_way.append(reply)
            while under_way:
                take_reply()

        yield write


@contextmanager
def _confluent(job: Job, topic: Topic, pairs: Pairs) -> Iterator[Write]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap_servers,
            "compression.type": topic.compression,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "batch.size": BATCH_BYTES,
            "linger.ms": LINGER_MS,
            "queue.buffering.max.messages": 1_000_000,
        }
    )

    def write(chunks: int) -> None:
        for _ in range(chunks):
            for key, value in pairs:
                while True:
                    try:
                        producer.produce(topic.name, value, key)
                        break
                    except BufferError:
                        producer.poll(0.05)
            producer.poll(0)
        if flush := producer.flush(120):
            raise RuntimeError(f"{flush} records are not acknowledged")

    yield write


@contextmanager
def _kafka_python(job: Job, topic: Topic, pairs: Pairs) -> Iterator[Write]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap_servers.split(","),
        compression_type=None if topic.compression == "none" else topic.compression,
        acks="all",
        enable_idempotence=True,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
    )

    def write(chunks: int) -> None:
        for _ in range(chunks):
            for key, value in pairs:
                producer.send(topic.name, value, key)
        producer.flush(120)

    try:
        yield write
    finally:
        producer.close()


_WRITERS = {PROTOCOL: _protocol, FLOOR: _encoded_before, CONFLUENT: _confluent, KAFKA_PYTHON: _kafka_python}


def main() -> None:
    from spark_kafka_source.local_kafka import LocalKafka

    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_producer")
    parser.add_argument("--bootstrap-servers", help="write to this Kafka")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes; a fifth of it of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only contestants named like this")
    parser.add_argument("--compression", default="none,lz4")
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = options.bootstrap_servers or stack.enter_context(LocalKafka(jvm_options=["-Xmx1g"])).bootstrap_servers
        job = Job(servers, rounds=options.rounds, only=tuple(options.only))
        figures = measure_all(job, options.records, options.compression.split(","))
    print(f"{report.machine()}\n\n{report.table(figures)}")


def measure_all(job: Job, records: int, codecs: Sequence[str]) -> list[Figure]:
    """Measure each contestant of `job` in a fresh process, with fresh topics: `records` of 100 bytes."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = tuple(
        Topic(f"bench-producer-{uuid.uuid4().hex[:8]}", count, size, codec, 6, BATCH_BYTES)
        for size, count in ((100, records), (1024, records // 5))
        for codec in codecs
    )
    admin = AdminClient({"bootstrap.servers": job.bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1) for topic in topics]).values():
        future.result(30)
    job = replace(job, topics=topics)
    names = [name for name in SHARE if job.wants(name)]
    figures = [figure for name in names for figure in run_section("bench_producer", job, name)]
    for future in admin.delete_topics([topic.name for topic in topics]).values():
        future.result(30)
    return figures


if __name__ == "__main__":
    import sys

    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        section_main(measure)
    else:
        main()
