"""Producers without Spark: this project's columns, confluent-kafka and kafka-python, on the same topics.

    python -m tests.benchmarks.bench_producer                       its own Kafka, 100 B and 1 KiB, none and lz4
    python -m tests.benchmarks.bench_producer --bootstrap-servers 127.0.0.1:9092 --records 200000

Each writes in a fresh process, with acks=all and idempotence, after a warm-up, from data that is ready before the
clock starts: Arrow batches of 10,000 rows here, lists of bytes there. The others get the batch size and a linger that
suit bulk, since their defaults are for single records. Rows a second count until everything is acknowledged.
"""

from __future__ import annotations

import argparse
import resource
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tests.benchmarks import report
from tests.benchmarks.job import PROTOCOL, Figure, Job, Topic, run_section, say, section_main

CONFLUENT, KAFKA_PYTHON = "confluent-kafka", "kafka-python"
CHUNK_ROWS = 10_000
BATCH_BYTES = 1_000_000
LINGER_MS = 20
# Of the records, how many each one writes, so that each takes some seconds.
SHARE = {PROTOCOL: 1.0, CONFLUENT: 1.0, KAFKA_PYTHON: 0.1}

Pairs = list[tuple[bytes, bytes]]
Write = Callable[[int], None]
"""Writes so many chunks of 10,000 rows and waits for their acknowledgement."""


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    (name,) = arguments
    figures = []
    for topic in job.topics:
        pairs = _pairs(topic.value_bytes)
        chunks = max(1, int(topic.records * SHARE[name]) // CHUNK_ROWS)
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
    """Keys of 8 bytes, values of letters that compress to about two thirds."""
    rng = np.random.default_rng(7)
    letters = np.frombuffer(b"0123456789abcdef", np.uint8)[rng.integers(0, 16, (CHUNK_ROWS, value_bytes))]
    return [(b"%08d" % number, letters[number].tobytes()) for number in range(CHUNK_ROWS)]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def _protocol(job: Job, topic: Topic, pairs: Pairs) -> Iterator[Write]:
    import pyarrow as pa

    from protocol.cluster.client import Client
    from protocol.config import parse_client, parse_producer
    from protocol.producer.async_producer import AsyncProducer

    # Everything else is the default: batches of 1 MiB, idempotence, five requests in flight.
    known = {"bootstrap.servers": job.bootstrap_servers, "compression.type": topic.compression}
    columns = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in pairs], pa.binary()),
            "value": pa.array([value for _, value in pairs], pa.binary()),
        }
    )
    with Client(parse_client(known)) as client, AsyncProducer(client, parse_producer(known)) as producer:

        def write(chunks: int) -> None:
            for _ in range(chunks):
                producer.send_columns(topic.name, columns)
            producer.flush()

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
        if left := producer.flush(120):
            raise RuntimeError(f"{left} records are not acknowledged")

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


_WRITERS = {PROTOCOL: _protocol, CONFLUENT: _confluent, KAFKA_PYTHON: _kafka_python}


def main() -> None:
    from spark_kafka_source.local_kafka import LocalKafka

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_producer")
    parser.add_argument("--bootstrap-servers", help="write to this Kafka")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 bytes; a fifth of it of 1 KiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="only contestants named like this")
    parser.add_argument("--compression", default="none,lz4")
    told = parser.parse_args()
    if told.bootstrap_servers:
        _run(told, told.bootstrap_servers)
        return
    with LocalKafka(jvm_options=["-Xmx1g"]) as kafka:
        _run(told, kafka.bootstrap_servers)


def _run(told: argparse.Namespace, bootstrap_servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topics = tuple(
        Topic(f"bench-producer-{uuid.uuid4().hex[:8]}", records, size, codec, 6, BATCH_BYTES)
        for size, records in ((100, told.records), (1024, told.records // 5))
        for codec in told.compression.split(",")
    )
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.create_topics([NewTopic(topic.name, topic.partitions, 1) for topic in topics]).values():
        future.result(30)
    job = Job(bootstrap_servers, topics, rounds=told.rounds, only=tuple(told.only))
    names = [name for name in _WRITERS if job.wants(name)]
    figures = [figure for name in names for figure in run_section("bench_producer", job, name)]
    for future in admin.delete_topics([topic.name for topic in topics]).values():
        future.result(30)
    print(f"{report.machine()}\n\n{report.table(figures)}")


if __name__ == "__main__":
    import sys

    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        section_main(measure)
    else:
        main()
