"""Errors of a source with a real broker: each names cause and remedy. tests/options has those of single options."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from protocol.testing.fake_kafka.listener import kept_port
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.noop_queries import row_count, run_query


def run_stream(reader: DataStreamReader, checkpoint: Path) -> str:
    """Run a query that must fail; return the text of its error."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (Spark's exception types differ by where it fails)
        run_query(reader.load(), checkpoint)
    return str(caught.value)


def reader(spark: SparkSession, bootstrap: str, **options: str) -> DataStreamReader:
    return spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", bootstrap).options(**options)


def produce(kafka: LocalKafka, topic: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for n in range(records):
        producer.produce(topic, value=f"v{n}", partition=0)
    assert producer.flush(30) == 0


def test_unreachable_bootstrap_server_is_an_error_with_remedy(spark: SparkSession, tmp_path: Path) -> None:
    options = {"kafka.default.api.timeout.ms": "1500", "fetchOffset.numRetries": "0"}
    with kept_port() as closed_port:
        address = f"127.0.0.1:{closed_port.getsockname()[1]}"
        error = run_stream(reader(spark, address, subscribe="orders", **options), tmp_path)
    assert address in error
    assert "kafka.bootstrap.servers" in error
    assert "attempt" in error


def test_schema_equal_to_source_schema_is_accepted(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1()
    produce(kafka1, name, 3)
    rows = spark.read.format("pykafka-group").option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
    rows = rows.options(subscribe=name, columns="value,offset").schema("value BINARY, offset BIGINT COMMENT 'of 1970'")
    assert [row.offset for row in rows.load().collect()] == [0, 1, 2]


def test_unknown_topic_fails_with_remedy(spark: SparkSession, kafka1: LocalKafka, tmp_path: Path) -> None:
    options = {"kafka.default.api.timeout.ms": "3000", "fetchOffset.numRetries": "0"}
    error = run_stream(reader(spark, kafka1.bootstrap_servers, subscribe="no-such-topic", **options), tmp_path)
    assert "unknown topic(s) no-such-topic" in error
    assert kafka1.bootstrap_servers.split(",")[0] in error
    assert "option subscribe" in error


def test_group_with_live_members_is_refused_and_keeps_its_offsets(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name, group = topic1(1), f"group-{uuid.uuid4().hex[:8]}"
    produce(kafka1, name, 5)
    member = Consumer(
        {
            "bootstrap.servers": kafka1.bootstrap_servers,
            "group.id": group,
            "client.id": "the-other-one",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        member.subscribe([name])
        messages = member.consume(2, timeout=30)
        member.commit(messages[0], asynchronous=False)
        options = {"kafka.group.id": group, "subscribe": name}
        error = run_stream(reader(spark, kafka1.bootstrap_servers, **options), tmp_path / "a")
        assert f"group {group} has 1 live member(s) (the-other-one at" in error
        assert "commitOffsets=false" in error
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
        rows = reader(spark, kafka1.bootstrap_servers, **options, commitOffsets="false").load()
        assert row_count(run_query(rows, tmp_path / "b")) == 4
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
    finally:
        member.close()
