"""Topics to measure with: created and filled once, with values that look like orders and compress like them.

Filled by confluent-kafka, so that what is read was not written by this project. Called by `run`; knows no Spark.
"""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.benchmarks.job import Topic, say

_DIFFERENT_VALUES = 5_000


def create_topic(bootstrap_servers: str, name: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    """Creates an empty topic and waits until it can be written to."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings or {})
    admin.create_topics([new])[name].result()
    while len(admin.list_topics(name, timeout=10).topics[name].partitions) < partitions:
        time.sleep(0.05)


def delete_topic(bootstrap_servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.delete_topics([name])[name].result()


def fill(bootstrap_servers: str, topic: Topic) -> None:
    """Makes `topic` hold its records; does nothing if it holds them already."""
    held = records_held(bootstrap_servers, topic.name)
    if held == topic.records:
        return
    if held:
        raise RuntimeError(f"topic {topic.name} holds {held} records, not {topic.records}; delete it")
    if held is None:
        create_topic(bootstrap_servers, topic.name, topic.partitions)
    started_s = time.monotonic()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "compression.type": topic.compression,
            "batch.size": topic.batch_bytes,
            "linger.ms": 200,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    values = order_values(topic.value_bytes)
    for number in range(topic.records):
        key, value = b"%08d" % (number % 100_000_000), values[number % _DIFFERENT_VALUES]
        _produce(producer, topic.name, value, key, number % topic.partitions)
    producer.flush()
    say(f"  filled {topic.name}: {topic.records:,} records in {time.monotonic() - started_s:.0f} s")
    held = records_held(bootstrap_servers, topic.name)
    if held != topic.records:
        raise RuntimeError(f"topic {topic.name} holds {held} records, not {topic.records}")


def records_held(bootstrap_servers: str, name: str) -> int | None:
    """How many records the topic's log holds; None if there is no such topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "none"})
    try:
        found = consumer.list_topics(name, timeout=10).topics[name]
        if found.error is not None:
            return None
        total = 0
        for partition in found.partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=10)
            total += high - low
        return total
    finally:
        consumer.close()


def order_values(value_bytes: int) -> list[bytes]:
    """Different values of one length: JSON like that of an order, with random numbers in it. Always the same."""
    draw = random.Random(7)
    values = []
    for _ in range(_DIFFERENT_VALUES):
        text = f'{{"order":{draw.randrange(10**9)},"customer":{draw.randrange(10**6)}'
        while len(text) < value_bytes - 1:
            text += f',"sku-{draw.randrange(10**4)}":{draw.random() * 100:.2f}'
        values.append((text[: value_bytes - 1] + "}").encode())
    return values


def _produce(producer: Any, topic: str, value: bytes, key: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.1)
