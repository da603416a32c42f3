"""Rows and DataFrames that cannot be written: the error has cause and remedy, and nothing is committed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.consumer_groups import describe
from tests.support.read_back import read_back


def error_of_writing(rows: DataFrame, kafka: LocalKafka, mode: str = "append", **options: str) -> str:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, **options}
    with pytest.raises(Exception) as error:  # noqa: PT011 - Spark has an exception for each way it fails
        rows.write.format("pykafka-group").options(**options).mode(mode).save()
    return str(error.value)


def topics_of(kafka: LocalKafka) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics)


class TestPlan:
    """Errors before any task runs."""

    def test_save_mode_overwrite_is_refused(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        text = error_of_writing(spark.range(1).selectExpr("'v' AS value"), kafka1, mode="overwrite", topic="t")
        assert (
            'save mode "overwrite" is not possible: records are only ever added to a topic. Use .mode("append")' in text
        )

    def test_column_of_wrong_type_is_refused(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        text = error_of_writing(spark.range(1).selectExpr("id AS value"), kafka1, topic="t")
        assert "value attribute unsupported type bigint. value must be a(n) string or binary. Cast it." in text

    def test_missing_value_column_is_refused(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        text = error_of_writing(spark.range(1), kafka1, topic="t")
        assert "Required attribute 'value' not found; the columns are id." in text

    def test_missing_topic_is_refused(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        text = error_of_writing(spark.range(1).selectExpr("'v' AS value"), kafka1)
        assert "topic option required when no 'topic' attribute is present. Use the topic option" in text


class TestTask:
    """Errors in a task."""

    def test_missing_partition_fails_write(self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory) -> None:
        name = topic1(2)
        rows = spark.range(1).selectExpr("'v' AS value", "2 AS partition")
        text = error_of_writing(rows, kafka1, topic=name, **{"kafka.default.api.timeout.ms": "2500"})
        assert f"partition 2 was requested, but topic {name} has 2 (0 to 1)" in text
        assert read_back(kafka1, name) == []

    def test_record_larger_than_max_request_size_is_refused(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        name = topic1(1)
        rows = spark.range(0, 10, 1, 1).selectExpr("if(id = 7, repeat('x', 2000000), cast(id AS string)) AS value")
        text = error_of_writing(rows, kafka1, topic=name)
        assert f"a record for topic {name} (row 7 of its batch) is 20000" in text
        assert "more than kafka.max.request.size (1048576). Raise it, and max.message.bytes of the topic" in text
        assert b"7" not in {record.value for record in read_back(kafka1, name)}

    def test_record_larger_than_max_message_bytes_is_refused(
        self, spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
    ) -> None:
        name = topic1(1, config={"max.message.bytes": "10000"})
        text = error_of_writing(spark.range(1).selectExpr("repeat('x', 20000) AS value"), kafka1, topic=name)
        assert "MESSAGE_TOO_LARGE" in text
        assert f"{name}-0" in text
        assert "raise max.message.bytes of the topic" in text
        assert read_back(kafka1, name) == []

    def test_missing_topic_without_auto_creation_fails_write(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        missing = f"missing-{uuid.uuid4().hex[:8]}"
        text = error_of_writing(
            spark.range(1).selectExpr("'v' AS value"),
            kafka1,
            topic=missing,
            **{"kafka.default.api.timeout.ms": "3500"},
        )
        # On a busy machine the last Metadata request may time out.
        assert f"topic {missing}: UNKNOWN_TOPIC_OR_PARTITION" in text or "no reply to Metadata" in text
        assert f"The brokers do not create it (auto.create.topics.enable=false). Create the topic {missing}" in text
        assert missing not in topics_of(kafka1)

    def test_unreachable_brokers_fail_the_write(self, spark: SparkSession, kafka1: LocalKafka) -> None:
        text = error_of_writing(
            spark.range(1).selectExpr("'v' AS value"),
            kafka1,
            topic="t",
            **{
                "kafka.bootstrap.servers": "127.0.0.1:1",
                "kafka.default.api.timeout.ms": "2000",
            },
        )
        assert "no broker could be reached (kafka.bootstrap.servers=127.0.0.1:1)" in text


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            ["value", "if(offset = 3, NULL, '{topic}') AS topic"],
            "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic",
        ),
        (["if(offset = 3, repeat('x', 2000000), 'v') AS value", "'{topic}' AS topic"], "kafka.max.request.size"),
    ],
    ids=["null topic", "too large"],
)
def test_refused_row_fails_stream_without_checkpoint_or_group_commit(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    tmp_path: Path,
    columns: list[str],
    message: str,
) -> None:
    origin, target, group = topic1(1), topic1(1), f"group-{uuid.uuid4().hex[:8]}"
    spark.range(10).selectExpr("cast(id AS string) AS value").coalesce(1).write.format("pykafka-group").options(
        **{"kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": origin}
    ).mode("append").save()
    query = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
        .options(subscribe=origin, **{"kafka.group.id": group, "kafka.auto.offset.reset": "earliest"})
        .load()
        .selectExpr(*(column.format(topic=target) for column in columns))
        .writeStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception) as error:  # noqa: PT011 - StreamingQueryException of either flavour of Spark
        query.awaitTermination(120)
    assert message in str(error.value)
    assert list((tmp_path / "commits").glob("[0-9]*")) == []
    assert all(not row.current_offset for row in describe(kafka1, group))
