"""The sink with other broker settings: auto-created topics, and expiring producer and transactional ids.

Topics are created by writes, never by reads.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from protocol.admin.transactions import list_transactions
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import BrokerError, KafkaError
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.records.arrow_numpy import to_arrow
from protocol.wire.messages.m00_produce import PRODUCE
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import BRIEF_LIFE, KAFKA_VERSION
from tests.protocol.producer.producing import assert_all_once_in_order, numbered, producer_of, send_numbered
from tests.protocol.transaction.producing import new_id, numbers_in, started
from tests.support.kafka_proxy import Fate, KafkaProxy
from tests.support.read_back import read_back
from tests.support.soak import variants
from tests.support.spark_frames import write
from tests.support.transaction_version import transactions_before_kip_890
from tests.support.wait_for_brokers import wait_until_decided, wait_until_gone, wait_until_known
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

SETTINGS = {
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    # Default: ten minutes.
    "producer.id.expiration.check.interval.ms": "100",
    # Defaults: a week, checked once an hour.
    "transactional.id.expiration.ms": "5000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "100",
}


@pytest.fixture(scope="module")
def other_kafka() -> Iterator[LocalKafka]:
    """Start a broker with `SETTINGS`, which brokers read at their start only."""
    with LocalKafka(1, KAFKA_VERSION, settings=SETTINGS, jvm_options=BRIEF_LIFE) as running:
        yield running


def new_name() -> str:
    return f"created-{uuid.uuid4().hex[:8]}"


def test_concurrent_tasks_write_to_auto_created_topic(spark: SparkSession, other_kafka: LocalKafka) -> None:
    name = new_name()
    rows = spark.range(0, 9_000, 1, 3).selectExpr("cast(id AS string) AS value")
    write(rows, other_kafka, topic=name)
    records = read_back(other_kafka, name)
    assert sorted(int(record.value or b"") for record in records) == list(range(9_000))
    assert set(Counter(record.partition for record in records)) == {0, 1, 2}


def test_topic_deleted_while_written_is_auto_created_again(other_kafka: LocalKafka) -> None:
    """Java's producer does the same."""
    name, admin = new_name(), AdminClient({"bootstrap.servers": other_kafka.bootstrap_servers})
    with producer_of(other_kafka.bootstrap_servers) as producer:
        send_numbered(producer, name, 0, 30, 3)
        producer.flush()
        admin.delete_topics([name])[name].result(30)
        wait_until_gone(other_kafka, name)
        send_numbered(producer, name, 0, 60, 3)
        producer.flush()
    assert_all_once_in_order(other_kafka, name, 60, 3)


def test_metadata_request_does_not_create_topic(other_kafka: LocalKafka) -> None:
    name, admin = new_name(), AdminClient({"bootstrap.servers": other_kafka.bootstrap_servers})
    with Client(parse_client({"bootstrap.servers": other_kafka.bootstrap_servers})) as client:
        for _ in range(3):
            with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
                client.topic(name)
    assert name not in admin.list_topics(timeout=30).topics


@pytest.mark.parametrize(
    ("hours", "timestamp_type", "written"),
    [
        (23, "CreateTime", [0, 1, 2, 3]),
        # The broker forgets the producer id: docs/decisions/0015-expired-producer-ids.md.
        (25, "CreateTime", [0, 1, 1, 2, 3]),
        (25, "LogAppendTime", [0, 1, 2, 3]),
    ],
)
def test_lost_reply_duplicates_only_records_of_expired_producer_state(
    other_kafka: LocalKafka, hours: int, timestamp_type: str, written: list[int]
) -> None:
    name, admin = new_name(), AdminClient({"bootstrap.servers": other_kafka.bootstrap_servers})
    config = {"message.timestamp.type": timestamp_type, "retention.ms": "-1"}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    times = to_arrow(np.full(1, int(time.time() * 1000) - hours * 3_600_000))
    cut_at = -1
    # Long enough for the broker to expire the producer id, if the case needs that.
    backoff_ms = 3_000 if len(written) > 4 else 1_500
    with KafkaProxy.of(other_kafka) as proxy:
        proxy.replies[PRODUCE] = lambda reply: Fate.CUT if reply.number == cut_at else Fate.PASS
        properties = {"retry.backoff.ms": backoff_ms, "retry.backoff.max.ms": backoff_ms}
        with producer_of(proxy.servers, properties) as producer:
            for number in range(4):
                cut_at = proxy.frame_counts["Produce", "reply"] + 1 if number == 1 else -1
                producer.send_columns(name, numbered(number, 1).append_column("timestamp_ms", times))
                producer.flush()
    assert [int((record.value or b"")[:9]) for record in read_back(other_kafka, name)] == written


@variants("version", [1, 2], 2)
def test_producer_with_expired_transactional_id_aborts_and_continues(other_kafka: LocalKafka, version: int) -> None:
    name, admin = new_name(), AdminClient({"bootstrap.servers": other_kafka.bootstrap_servers})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(30)
    wait_until_known(other_kafka, name, 3)
    with (
        nullcontext() if version == 2 else transactions_before_kip_890(other_kafka),
        Client(parse_client({"bootstrap.servers": other_kafka.bootstrap_servers})) as client,
    ):
        transactional_id = new_id()
        producer = started(client, transactional_id)
        for first in (0, 10):
            producer.begin_transaction()
            producer.send_columns(name, numbered(first, 10))
            producer.commit_transaction()
            wait_until_forgotten(client, transactional_id)
            producer.begin_transaction()
            with pytest.raises(KafkaError, match="INVALID_PRODUCER_ID_MAPPING"):
                send_and_flush(producer, name)
            producer.abort_transaction()
        producer.close()
        wait_until_decided(other_kafka, [(name, number) for number in range(3)])
        assert sorted(number for numbers in numbers_in(client, name, 3) for number in numbers) == list(range(20))


def wait_until_forgotten(client: Client, transactional_id: str) -> None:
    wait_until(lambda: not list_transactions(client, prefix=transactional_id), timeout_s=90, every_s=0.05)


def send_and_flush(producer: TransactionalProducer, topic: str) -> None:
    producer.send_columns(topic, numbered(100, 10))
    producer.flush()
