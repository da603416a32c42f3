"""Writes that fail: the error has cause and remedy, and nothing is committed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.librdkafka import produce
from tests.support.member_queries import new_group
from tests.support.read_back import read_back
from tests.support.spark_frames import stream, write_stream


def error_of_writing(rows: DataFrame, kafka: LocalKafka, mode: str = "append", **options: str) -> str:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **options}
    with pytest.raises(Exception) as error:  # noqa: PT011 - Spark has an exception for each way it fails
        rows.write.format("pykafka-group").options(**options).mode(mode).save()
    return str(error.value)


def test_save_mode_overwrite_is_refused(spark: SparkSession, kafka1: LocalKafka) -> None:
    text = error_of_writing(spark.range(1).selectExpr("'v' AS value"), kafka1, mode="overwrite", topic="t")
    assert 'save mode "overwrite" is not possible: records are only ever added to a topic. Use .mode("append")' in text


def test_record_larger_than_max_message_bytes_is_refused(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    name = topic1(1, config={"max.message.bytes": "10000"})
    text = error_of_writing(spark.range(1).selectExpr("repeat('x', 20000) AS value"), kafka1, topic=name)
    assert f"{name}-0" in text
    assert "MESSAGE_TOO_LARGE" in text
    assert "raise max.message.bytes of the topic" in text
    assert read_back(kafka1, name) == []


def test_missing_topic_without_auto_creation_fails_write(spark: SparkSession, kafka1: LocalKafka) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    rows = spark.range(1).selectExpr("'v' AS value")
    text = error_of_writing(rows, kafka1, topic=missing, **{"kafka.default.api.timeout.ms": "3500"})
    # On a busy machine the last Metadata request may time out.
    assert f"topic {missing}: UNKNOWN_TOPIC_OR_PARTITION" in text or "no reply to Metadata" in text
    assert f"The brokers do not create it (auto.create.topics.enable=false). Create the topic {missing}" in text
    assert missing not in AdminClient({"bootstrap.servers": kafka1.bootstrap_servers}).list_topics(timeout=30).topics


def test_refused_row_fails_stream_without_checkpoint_or_group_commit(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    origin, target, group = topic1(1), topic1(1), new_group()
    produce(kafka1, origin, *"0123456789")
    rows = stream(spark, kafka1, subscribe=origin, kafka_group_id=group)
    rows = rows.selectExpr("value", f"if(offset = 3, NULL, '{target}') AS topic")
    with pytest.raises(Exception) as error:  # noqa: PT011 - StreamingQueryException of either flavour of Spark
        write_stream(rows, kafka1, tmp_path)
    assert "[KAFKA_NULL_TOPIC_IN_DATA]" in str(error.value)
    assert list((tmp_path / "commits").glob("[0-9]*")) == []
    assert all(not row.current_offset for row in describe(kafka1, group))
