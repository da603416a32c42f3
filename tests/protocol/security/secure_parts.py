"""Typical uses of a cluster, one function each, to test them with different listeners."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.admin.groups import list_groups
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.producer.producer import Producer
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.lag.of_group import lag_of_group
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_source_options
from tests.support.wait_for_brokers import wait_until_known

TOPIC, GROUP = "secured", "secured"
Properties = Mapping[str, str]


def options(properties: Properties) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in properties.items()}


def create_topic(kafka: LocalKafka) -> None:
    """Create the topic if it does not exist."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].exception(30)
    wait_until_known(kafka, TOPIC, 1)


def source(properties: Properties) -> None:
    given = {**options(properties), "subscribe": TOPIC, "startingOffsets": "earliest"}
    reader = KafkaStreamReader(parse_source_options(given, streaming=True))
    reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())


def sink(properties: Properties) -> None:
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"], pa.binary())})
    with Producer(properties) as producer:
        producer.send_columns(TOPIC, rows)


def commit(properties: Properties) -> None:
    with Client(parse_client(properties)) as client:
        commit_offsets(client, GROUP, {(TOPIC, 0): CommittedOffset(0)}, client.deadline())


def lag(properties: Properties) -> None:
    lag_of_group(options(properties), GROUP, [TOPIC])


def admin(properties: Properties) -> None:
    with Client(parse_client(properties)) as client:
        list_groups(client)


PARTS: dict[str, Callable[[Properties], None]] = {
    "source": source,
    "sink": sink,
    "commit": commit,
    "lag": lag,
    "admin": admin,
}
