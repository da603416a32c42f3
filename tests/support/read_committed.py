"""Read the committed records of a topic, after all its transactions have ended: with librdkafka and this project."""

from __future__ import annotations

import time

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, TopicPartition

from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import LATEST
from tests.support.wait_for_brokers import wait_until_topic_decided

Values = dict[int, list[bytes]]
"""The values of each partition, in their order."""


def by_librdkafka(servers: str, topic: str, timeout_s: float = 30) -> Values:
    """Return the values by partition, after the markers of all ended transactions are written."""
    wait_until_topic_decided(servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "read-committed",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=timeout_s).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING) for number in partitions])
        values: Values = {number: [] for number in partitions}
        at_end: set[int] = set()
        deadline_s = time.monotonic() + timeout_s
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline_s, f"{topic}: the ends of {at_end} were reached, of {partitions}"
            for message in consumer.consume(10_000, timeout=0.2):
                if message.error() is None:
                    values[message.partition()].append(message.value())
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    at_end.add(message.partition())
        return values
    finally:
        consumer.close()


def by_this_project(servers: str, topic: str) -> Values:
    """Return the values by partition, after the markers of all ended transactions are written."""
    wait_until_topic_decided(servers, topic)
    with Client(parse_client({"bootstrap.servers": servers})) as client:
        times = {(topic, number): LATEST for number in client.topic(topic).partitions}
        ends = list_offsets(client, times, isolation_level="read_committed")
        ranges = [Range(topic, number, from_offset=0, until_offset=ends[topic, number].offset) for _, number in ends]
        values: Values = {number: [] for _, number in ends}
        for source_range, batch in BoundedReader(client, parse_consumer({"isolation.level": "read_committed"}), ranges):
            values[source_range.partition] += batch.column("value").to_pylist()
        return values
