"""Short calls of librdkafka: an admin client, records written and read, a group member."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kafka_source.local_kafka import LocalKafka


def admin(kafka: LocalKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


def produce(kafka: LocalKafka, topic: str, *values: str | bytes | None, **fields: Any) -> None:
    """Write values; `fields` of each record are those of librdkafka: `key`, `partition`, `headers`, `timestamp`."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, **fields)
    assert producer.flush(30) == 0


def consumer(kafka: LocalKafka, group: str) -> Consumer:
    config = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
    return Consumer({**config, "log_level": 0})


def raw_values(kafka: LocalKafka, topic: str, count: int) -> list[Any]:
    """Return the first values of partition 0."""
    reader = consumer(kafka, "unused")
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in reader.consume(count, timeout=30)]
    finally:
        reader.close()


def values_of(kafka: LocalKafka, topic: str, count: int) -> list[str]:
    """Return the first values of partition 0 as texts."""
    return [value.decode() for value in raw_values(kafka, topic, count)]


def use(kafka: LocalKafka) -> None:
    """Create a topic, write to it, read it, and commit for a group: check that the broker serves all of these."""
    asking = admin(kafka)  # keep a reference: a garbage-collected client never completes its futures
    asking.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
    produce(kafka, "t", "a", "b")
    assert values_of(kafka, "t", 2) == ["a", "b"]
    member = consumer(kafka, "g")
    member.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    member.close()
    # The group has no members: the partition is assigned by the consumer itself.
    assert kafka.describe_group("g").split()[-3:] == ["-", "-", "-"]
