"""Read the records of a topic with librdkafka (confluent-kafka)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from spark_kafka_source.local_kafka import LocalKafka
from tests.support.wait_until import attempts


def messages_to_the_end(
    servers: str, partitions: Collection[tuple[str, int]], isolation_level: str = "read_committed"
) -> Iterator[Any]:
    """Yield all messages of the partitions up to the ends of their logs."""
    settings = {"bootstrap.servers": servers, "group.id": "to-the-end", "enable.auto.commit": False, "log_level": 0}
    settings["fetch.wait.max.ms"] = 10  # librdkafka finds the end of a log by a reply without records
    consumer = Consumer({**settings, "isolation.level": isolation_level, "enable.partition.eof": True})
    missing = set(partitions)
    deadline_s = time.monotonic() + 120
    try:
        consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions])
        while missing:
            assert time.monotonic() < deadline_s, f"librdkafka does not come to the end of {missing}"
            for message in consumer.consume(10_000, timeout=0.02):
                if message.error() is None:
                    yield message
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    missing.discard((message.topic(), message.partition()))
    finally:
        consumer.close()


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None
    timestamp_ms: int


def read_back(kafka: LocalKafka, topic: str, timeout_s: float = 60) -> list[Record]:
    """Return all records of the topic, ordered by partition and offset."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "read-back", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": False, "log_level": 0})
    try:
        ends = {
            partition: _watermarks(consumer, TopicPartition(topic, partition))
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions
        }
        consumer.assign([TopicPartition(topic, partition, low) for partition, (low, _) in ends.items()])
        missing = sum(high - low for low, high in ends.values())
        records: list[Record] = []
        deadline_s = time.monotonic() + timeout_s
        while len(records) < missing:
            assert time.monotonic() < deadline_s, f"{topic}: {len(records)} of {missing} records after {timeout_s} s"
            # librdkafka waits until it has as many messages as requested.
            for message in consumer.consume(min(10_000, missing - len(records)), timeout=1):
                assert message.error() is None, message.error()
                headers = message.headers()
                records.append(
                    Record(
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        None if headers is None else tuple(headers),
                        message.timestamp()[1],
                    )
                )
    finally:
        consumer.close()
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _watermarks(consumer: Consumer, partition: TopicPartition, timeout_s: float = 30) -> tuple[int, int]:
    """Return the low and the high watermark. Retries: the leader of a new topic may not know the topic yet."""
    for _ in attempts(timeout_s, 0.1):
        with suppress(KafkaException):
            watermarks: tuple[int, int] = consumer.get_watermark_offsets(partition, timeout=timeout_s)
            return watermarks
    raise AssertionError(f"{partition} has no watermarks after {timeout_s} s")
