"""Errors of a source with a real broker: each names cause and remedy. tests/options has those of single options."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession

from protocol.testing.fake_kafka.listener import kept_port
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.librdkafka import produce
from tests.support.noop_queries import row_count, run_query


def error_of_query(spark: SparkSession, servers: str, checkpoint: Path, **options: str) -> str:
    """Run a query that must fail; return the text of its error."""
    reader = spark.readStream.format("pykafka-group").option("kafka.bootstrap.servers", servers).options(**options)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (Spark's exception types differ by where it fails)
        run_query(reader.load(), checkpoint)
    return str(caught.value)


def test_unreachable_bootstrap_server_is_an_error_with_remedy(spark: SparkSession, tmp_path: Path) -> None:
    options = {"kafka.default.api.timeout.ms": "1500", "fetchOffset.numRetries": "0"}
    with kept_port() as closed_port:
        address = f"127.0.0.1:{closed_port.getsockname()[1]}"
        error = error_of_query(spark, address, tmp_path, subscribe="orders", **options)
    assert address in error
    assert "kafka.bootstrap.servers" in error
    assert "attempt" in error


def test_schema_equal_to_source_schema_is_accepted(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1()
    produce(kafka1, name, "0", "1", "2")
    rows = spark.read.format("pykafka-group").option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
    rows = rows.options(subscribe=name, columns="value,offset").schema("value BINARY, offset BIGINT COMMENT 'of 1970'")
    assert [row.offset for row in rows.load().collect()] == [0, 1, 2]


def test_unknown_topic_fails_with_remedy(spark: SparkSession, kafka1: LocalKafka, tmp_path: Path) -> None:
    options = {"kafka.default.api.timeout.ms": "3000", "fetchOffset.numRetries": "0"}
    error = error_of_query(spark, kafka1.bootstrap_servers, tmp_path, subscribe="no-such-topic", **options)
    assert "unknown topic(s) no-such-topic" in error
    assert kafka1.bootstrap_servers.split(",")[0] in error
    assert "option subscribe" in error


def test_group_with_live_members_is_refused_and_keeps_its_offsets(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    name, group = topic1(1), f"group-{uuid.uuid4().hex[:8]}"
    produce(kafka1, name, *"01234")
    where = {"bootstrap.servers": kafka1.bootstrap_servers, "group.id": group, "client.id": "the-other-one"}
    member = Consumer({**where, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    try:
        member.subscribe([name])
        messages = member.consume(2, timeout=30)
        member.commit(messages[0], asynchronous=False)
        options = {"kafka.group.id": group, "subscribe": name}
        error = error_of_query(spark, kafka1.bootstrap_servers, tmp_path / "a", **options)
        assert f"group {group} has 1 live member(s) (the-other-one at" in error
        assert "commitOffsets=false" in error
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
        rows = spark.readStream.format("pykafka-group").options(**options, commitOffsets="false")
        rows = rows.option("kafka.bootstrap.servers", kafka1.bootstrap_servers).load()
        assert row_count(run_query(rows, tmp_path / "b")) == 4
        assert [row.current_offset for row in describe(kafka1, group)] == [1]
    finally:
        member.close()
