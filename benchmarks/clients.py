"""Kafka clients without Spark: this project's `protocol`, confluent-kafka, aiokafka and kafka-python.

Each reads the same topic in a fresh process (`python -m benchmarks.clients JOB NAME`), with one thread and its
default configuration, and verifies CRCs if that is its default: first a warm-up, then the measured records.
`confluent-kafka*` has a longer queue, refilled sooner. `protocol` is the `BoundedReader` of Spark's tasks,
`protocol, Consumer` the consumer for programs, which fetches in a thread. `undecoded` fetches as `protocol` does and
discards the record batches: the limit of the broker, the kernel and one receiving thread on this machine.
A record is counted when the caller has its value (a message object; in `protocol`, a row of Arrow columns).
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from benchmarks.job import PROTOCOL, Figure, Job, Topic, say, section_main

CONFLUENT, AIOKAFKA, KAFKA_PYTHON = "confluent-kafka", "aiokafka", "kafka-python"
# By default it pauses for up to a second when its queue of 100,000 messages is full.
CONFLUENT_TUNED = "confluent-kafka*"
TUNED = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10}

CONSUMER = f"{PROTOCOL}, Consumer"
UNDECODED = "undecoded"

# Maximum (measured records, warm-up records), so that each run takes some seconds.
AT_MOST = {
    PROTOCOL: (10_000_000, 500_000),
    CONSUMER: (10_000_000, 500_000),
    UNDECODED: (10_000_000, 500_000),
    CONFLUENT: (1_000_000, 200_000),
    CONFLUENT_TUNED: (1_000_000, 200_000),
    AIOKAFKA: (400_000, 50_000),
    KAFKA_PYTHON: (150_000, 30_000),
}

COLUMNS = ("key", "value", "offset", "timestamp_ms", "timestamp_type")

Read = Callable[[int], int]
"""Read about that many more records; return the number read."""


def measure(job: Job, arguments: Sequence[str]) -> list[Figure]:
    (name,) = arguments
    figures = []
    for topic in job.topics:
        counted, warm_up = AT_MOST[name]
        # Clients that continue after the warm-up must not wait at the end of the topic.
        counted = min(counted, topic.records if name in (PROTOCOL, UNDECODED) else int(topic.records * 0.75))
        warm_up = min(warm_up, topic.records // 5)
        rate, cpu_ns = _READERS[name](job, topic, warm_up, counted)
        say(f"  {topic.label:>12} {name:>15}: {rate:,.0f} records/s, {cpu_ns:,.0f} ns of CPU a record")
        figures.append(Figure("client", topic.label, "read", "records/s", name, (rate,)))
        figures.append(Figure("client", topic.label, "CPU time", "ns/record", name, (cpu_ns,)))
    return figures


def _timed(read: Read, warm_up: int, counted: int) -> tuple[float, float]:
    """Return records per second, and nanoseconds of CPU (all threads) per record."""
    read(warm_up)
    started_s, started_cpu_s = time.perf_counter(), _cpu_s()
    records = read(counted)
    took_s, cpu_s = time.perf_counter() - started_s, _cpu_s() - started_cpu_s
    return records / took_s, cpu_s / records * 1e9


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _protocol(job: Job, topic: Topic, warm_up: int, counted: int, *, decoded: bool = True) -> tuple[float, float]:
    from protocol.cluster.client import Client
    from protocol.config import ClientConfig, ConsumerConfig
    from protocol.fetch.bounded_reader import BoundedReader
    from protocol.fetch.list_offsets import list_offsets
    from protocol.fetch.log_offsets import Range
    from protocol.kafka_terms import LATEST

    def rows(consumer: BoundedReader) -> int:
        if decoded:
            return sum(batch.num_rows for _, batch in consumer)
        fetched = iter(consumer._next_fetched, [])
        return sum(fetch.next_offset - fetch.start.offset for together in fetched for _, fetch in together)

    host, port = job.bootstrap_servers.split(",")[0].split(":")
    client = Client(ClientConfig(bootstrap_servers=((host, int(port)),)))
    ends = list_offsets(client, {(topic.name, partition): LATEST for partition in range(topic.partitions)})

    def read(records: int) -> int:
        total = 0
        for (name, partition), end in ends.items():
            until = min(end.offset, -(-records // topic.partitions))
            consumer = BoundedReader(client, ConsumerConfig(), [Range(name, partition, 0, until)], columns=COLUMNS)
            total += rows(consumer)
        return total

    try:
        return _timed(read, warm_up, counted)
    finally:
        client.close()


def _consumer(job: Job, topic: Topic, warm_up: int, counted: int) -> tuple[float, float]:
    from protocol.cluster.client import Client
    from protocol.config import ClientConfig, ConsumerConfig
    from protocol.fetch.consumer import Consumer
    from protocol.kafka_terms import EARLIEST

    host, port = job.bootstrap_servers.split(",")[0].split(":")
    with (
        Client(ClientConfig(bootstrap_servers=((host, int(port)),))) as client,
        Consumer(client, ConsumerConfig(), columns=COLUMNS) as consumer,
    ):
        consumer.consume_partitions({(topic.name, partition): EARLIEST for partition in range(topic.partitions)})

        def read(records: int) -> int:
            total = 0
            for _, batch in consumer:
                total += batch.num_rows
                if total >= records:
                    break
            return total

        return _timed(read, warm_up, counted)


def _confluent(
    job: Job, topic: Topic, warm_up: int, counted: int, settings: Mapping[str, int] = MappingProxyType({})
) -> tuple[float, float]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    where = {"bootstrap.servers": job.bootstrap_servers, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer(where | settings)
    consumer.assign([TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(topic.partitions)])

    def read(records: int) -> int:
        total = 0
        while total < records:
            total += len(consumer.consume(min(10_000, records - total), timeout=1.0))
        return total

    try:
        return _timed(read, warm_up, counted)
    finally:
        consumer.close()


def _kafka_python(job: Job, topic: Topic, warm_up: int, counted: int) -> tuple[float, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=job.bootstrap_servers, enable_auto_commit=False, group_id=None)
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)

    def read(records: int) -> int:
        total = 0
        while total < records:
            total += sum(
                len(messages) for messages in consumer.poll(1_000, max_records=min(10_000, records - total)).values()
            )
        return total

    try:
        return _timed(read, warm_up, counted)
    finally:
        consumer.close()


def _aiokafka(job: Job, topic: Topic, warm_up: int, counted: int) -> tuple[float, float]:
    return asyncio.run(_aiokafka_in_loop(job, topic, warm_up, counted))


async def _aiokafka_in_loop(job: Job, topic: Topic, warm_up: int, counted: int) -> tuple[float, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=job.bootstrap_servers, enable_auto_commit=False, group_id=None)
    await consumer.start()
    partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)

    async def read(records: int) -> int:
        total = 0
        while total < records:
            got = await consumer.getmany(timeout_ms=1_000, max_records=min(10_000, records - total))
            total += sum(len(messages) for messages in got.values())
        return total

    try:
        await read(warm_up)
        started_s, started_cpu_s = time.perf_counter(), _cpu_s()
        records = await read(counted)
        return records / (time.perf_counter() - started_s), (_cpu_s() - started_cpu_s) / records * 1e9
    finally:
        await consumer.stop()


_READERS: dict[str, Callable[[Job, Topic, int, int], tuple[float, float]]] = {
    PROTOCOL: _protocol,
    CONSUMER: _consumer,
    UNDECODED: partial(_protocol, decoded=False),
    CONFLUENT: _confluent,
    CONFLUENT_TUNED: partial(_confluent, settings=TUNED),
    AIOKAFKA: _aiokafka,
    KAFKA_PYTHON: _kafka_python,
}

NAMES = tuple(_READERS)


if __name__ == "__main__":
    section_main(measure)
