"""Topics for measurements: created and filled once, with realistic values that compress realistically.

confluent-kafka fills them, so that the records read were not written by this project. Called by `run`; does not
import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.job import EVENTS, Topic, say
from benchmarks.values import DIFFERENT_VALUES, event_keys, event_values, order_values


def create_topic(bootstrap_servers: str, name: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    """Create an empty topic and wait until it accepts records."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings or {})
    admin.create_topics([new])[name].result()
    while len(admin.list_topics(name, timeout=10).topics[name].partitions) < partitions:
        time.sleep(0.05)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([name])[name].result()


def fill(bootstrap_servers: str, topic: Topic) -> None:
    """Fill `topic` with its records, unless it has them already."""
    pending = records_held(bootstrap_servers, topic.name)
    if pending == topic.records:
        return
    if pending:
        raise RuntimeError(f"topic {topic.name} holds {pending} records, not {topic.records}; delete it")
    if pending is None:
        create_topic(bootstrap_servers, topic.name, topic.partitions)
    started_s = time.monotonic()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": topic.compression,
            "batch.size": topic.batch_bytes,
            "linger.ms": topic.linger_ms,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    for partition, key, value in _records(topic):
        _produce(producer, topic.name, value, key, partition)
    producer.flush()
    say(f"  filled {topic.name}: {topic.records:,} records in {time.monotonic() - started_s:.0f} s")
    pending = records_held(bootstrap_servers, topic.name)
    if pending != topic.records:
        raise RuntimeError(f"topic {topic.name} holds {pending} records, not {topic.records}")


def write_few(bootstrap_servers: str, name: str, partitions: int) -> None:
    """Write a hundred small records to each partition."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(100 * partitions):
        producer.produce(name, b"x" * 100, b"%08d" % number, number % partitions)
    producer.flush()


def records_held(bootstrap_servers: str, name: str) -> int | None:
    """Return the number of records in the topic's log; None if there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none"})
    try:
        result = consumer.list_topics(name, timeout=10).topics[name]
        if result.error is not None:
            return None
        total = 0
        for partition in result.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=10)
            total += high - low
        return total
    finally:
        consumer.close()


def _records(topic: Topic) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield partition (-1: by the key), key and value of each record."""
    if topic.values == EVENTS:
        keys, values = event_keys(), event_values(topic.value_bytes)
        for number in range(topic.records):
            # Keys and values are combined differently in each round.
            yield -1, keys[(number + number // DIFFERENT_VALUES) % DIFFERENT_VALUES], values[number % DIFFERENT_VALUES]
        return
    values = order_values(topic.value_bytes)
    for number in range(topic.records):
        yield number % topic.partitions, b"%08d" % (number % 100_000_000), values[number % DIFFERENT_VALUES]


def _produce(producer: Any, topic: str, value: bytes, key: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.1)
