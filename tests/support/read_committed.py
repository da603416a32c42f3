"""Read the committed records of a topic, after all its transactions have ended: with librdkafka and this project."""

from __future__ import annotations

from protocol.cluster.client import Client
from protocol.config import parse_client, parse_consumer
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import LATEST
from tests.support.read_back import messages_to_the_end
from tests.support.wait_for_brokers import wait_until_topic_decided

Values = dict[int, list[bytes]]
"""The values of each partition, in their order."""


def by_librdkafka(servers: str, topic: str) -> Values:
    """Return the values by partition, after the markers of all ended transactions are written."""
    wait_until_topic_decided(servers, topic)
    with Client(parse_client({"bootstrap.servers": servers})) as client:
        values: Values = {number: [] for number in client.topic(topic).partitions}
    for message in messages_to_the_end(servers, [(topic, number) for number in values]):
        values[message.partition()].append(message.value())
    return values


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
