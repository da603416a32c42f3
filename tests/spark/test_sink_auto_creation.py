"""A topic that is not there is created by brokers that do so when it is written to, and never when it is read."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import BrokerError
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import BRIEF_LIFE, KAFKA_VERSION
from tests.protocol.producer.producing import assert_all_once_in_order, producer_of, send_numbered
from tests.read_back import read_back

SETTINGS = {"auto.create.topics.enable": "true", "num.partitions": "3"}


@pytest.fixture(scope="module")
def creating_kafka() -> Iterator[LocalKafka]:
    """One broker with Kafka's own default, which Kafka reads at its start only."""
    with LocalKafka(1, KAFKA_VERSION, settings=SETTINGS, jvm_options=BRIEF_LIFE) as running:
        yield running


def new_name() -> str:
    return f"created-{uuid.uuid4().hex[:8]}"


def test_tasks_that_begin_together_write_to_a_topic_that_is_not_there(
    spark: SparkSession, creating_kafka: LocalKafka
) -> None:
    name = new_name()
    rows = spark.range(0, 9_000, 1, 3).selectExpr("cast(id AS string) AS value")
    writer = rows.write.format("pykafka-group").option("kafka.bootstrap.servers", creating_kafka.bootstrap_servers)
    writer.option("topic", name).mode("append").save()
    found = read_back(creating_kafka, name)
    assert sorted(int(record.value or b"") for record in found) == list(range(9_000))
    assert set(Counter(record.partition for record in found)) == {0, 1, 2}


def test_a_topic_that_is_deleted_while_it_is_written_is_created_again(creating_kafka: LocalKafka) -> None:
    """As Java's producer does."""
    name, admin = new_name(), AdminClient({"bootstrap.servers": creating_kafka.bootstrap_servers})
    with producer_of(creating_kafka.bootstrap_servers) as producer:
        send_numbered(producer, name, 0, 30, 3)
        producer.flush()
        admin.delete_topics([name])[name].result(30)
        send_numbered(producer, name, 0, 60, 3)
        producer.flush()
    assert_all_once_in_order(creating_kafka, name, 60, 3)


def test_a_look_at_a_topic_does_not_create_it(creating_kafka: LocalKafka) -> None:
    name, admin = new_name(), AdminClient({"bootstrap.servers": creating_kafka.bootstrap_servers})
    with Client(parse_client({"bootstrap.servers": creating_kafka.bootstrap_servers})) as client:
        for _ in range(3):
            with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                client.topic(name)
    assert name not in admin.list_topics(timeout=30).topics
