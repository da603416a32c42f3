"""Create topics, and write given records with librdkafka and Java."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tests.support.wait_until import wait_until

MIB = 1 << 20


Headers = list[tuple[str, str | bytes | None]]


@dataclass(frozen=True)
class Topic:
    """A topic to be created; `settings` are its configuration."""

    name: str
    partitions: int = 1
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Record:
    """One record; a timestamp of None is the producer's clock. Java's sink sets no timestamps: leave it None there."""

    key: bytes | None
    value: bytes | None
    headers: Headers | None = None
    partition: int = 0
    timestamp_ms: int | None = None


def create(bootstrap: str, topics: Iterable[Topic]) -> None:
    """Create the topics, unreplicated and without retention (some have records from 1970)."""
    new = [
        NewTopic(topic.name, topic.partitions, 1, config={"retention.ms": "-1", **topic.settings}) for topic in topics
    ]
    for created in admin(bootstrap).create_topics(new).values():
        created.result()


def produce(
    bootstrap: str, topic: Topic, records: Sequence[Record], settings: Mapping[str, object] | None = None
) -> list[Message]:
    """Write with librdkafka, in as few batches as its settings allow; return the delivery reports."""
    return send(_plain_producer(bootstrap, tuple((settings or {}).items())), topic, records)


def transactional(bootstrap: str, transactional_id: str, codec: str = "none", timeout_ms: int = 60_000) -> Producer:
    """Return a producer with its transactional id, after it has fenced and aborted the previous one."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "compression.type": codec,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.init_transactions()
    return producer


def send(producer: Producer, topic: Topic, records: Sequence[Record]) -> list[Message]:
    """Produce all records and wait for their acknowledgement."""
    answers: list[Message] = []

    def delivered(error: Any, message: Message) -> None:
        assert error is None, f"{topic.name}: {error}"
        answers.append(message)

    # A topic whose metadata arrives during a flush gets several small batches, so request it before.
    wait_until(lambda: producer.list_topics(topic.name, timeout=30).topics[topic.name].error is None, every_s=0.05)
    for record in records:
        producer.produce(
            topic.name,
            record.value,
            record.key,
            record.partition,
            headers=record.headers,
            on_delivery=delivered,
            timestamp=record.timestamp_ms or 0,
        )
    producer.flush()
    assert len(answers) == len(records), f"{topic.name}: {len(records) - len(answers)} records were not delivered"
    return answers


def produce_by_java(
    spark: SparkSession,
    bootstrap: str,
    topic: Topic,
    records: Sequence[Record],
    settings: Mapping[str, object] | None = None,
) -> None:
    """Write with the Java producer of Spark's JVM sink: in order, in batches as full as its settings allow.

    The task flushes the rest at its end.
    """
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "partition": pa.array([record.partition for record in records], pa.int32()),
        "headers": pa.array([record.headers for record in records], headers),
    }
    writer = spark.createDataFrame(pa.table(columns)).coalesce(1).write.format("kafka")
    for name, value in {"kafka.linger.ms": 60_000, **(settings or {})}.items():
        writer = writer.option(name, str(value))
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic.name).option(
        "includeHeaders", True
    ).save()


@cache
def _plain_producer(bootstrap: str, settings: tuple[tuple[str, object], ...]) -> Producer:
    """Return a cached producer (a new one must connect first) that sends full batches until it is flushed."""
    usual = {"batch.size": MIB, "batch.num.messages": 100_000, "linger.ms": 60_000}
    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, **usual, **dict(settings)})


@cache
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
