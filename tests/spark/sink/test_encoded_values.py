"""Columns written with an Avro schema: Confluent's deserialiser reads what a query has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.sink.conftest import EncodedSink
from tests.support.spark_frames import stream, write, write_stream

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def orders(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "SELECT struct(id, array('a', concat('b', id)) AS lines) AS value, "
        "concat('k', id) AS key FROM (SELECT explode(sequence(1L, 3L)) AS id)"
    )


@pytest.fixture
def sink(kafka1: LocalKafka, topic1: TopicFactory, registry: FakeSchemaRegistry) -> EncodedSink:
    return EncodedSink(kafka1, topic1, registry, "confluent-avro")


def read_back(sink: EncodedSink, topic: str, count: int) -> list[Any]:
    """Return the values as Confluent's deserialiser reads them."""
    read, context = AvroDeserializer(sink.client), SerializationContext(topic, MessageField.VALUE)
    return [read(value, context) for value in sink.raw_values(topic, count)]


def order(number: int, note: str | None = None) -> dict[str, Any]:
    return {"id": number, "lines": ["a", f"b{number}"], "note": note}


def test_batch_is_written_with_the_latest_version_of_the_subject(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.topic_of(json.dumps(ORDER))
    sink.write(orders(spark), topic)
    assert read_back(sink, topic, 3) == [order(1), order(2), order(3)]


def test_stream_registers_the_schema_of_its_column_and_keeps_tombstones(
    spark: SparkSession, sink: EncodedSink, tmp_path: Path
) -> None:
    topic, source = sink.new_topic(), sink.new_topic()
    rows = orders(spark).selectExpr("key", "CAST(value.id AS STRING) AS value")
    write(rows.coalesce(1), sink.kafka, topic=source)
    frame = stream(spark, sink.kafka, subscribe=source).selectExpr(
        "key", "if(offset = 1, null, struct(offset, CAST(value AS STRING) AS text, timestamp)) AS value"
    )
    options = {**sink.options, "schema_registry_auto_register_schemas": "true"}
    write_stream(frame, sink.kafka, tmp_path, topic=topic, **options)
    back = read_back(sink, topic, 3)
    assert [row and (row["offset"], row["text"]) for row in back] == [(0, "1"), None, (2, "3")]
    assert sink.registry.requests.count(f"POST /subjects/{topic}-value/versions") >= 1


def test_written_values_are_read_by_the_source_as_they_were(spark: SparkSession, sink: EncodedSink) -> None:
    frame = spark.sql(
        "SELECT struct(1L AS a, CAST(1.5 AS DECIMAL(9, 2)) AS b, map('x', 2) AS c, DATE'2026-01-31' AS d, "
        "TIMESTAMP'2026-01-31 06:00:00.123456' AS e, TIMESTAMP_NTZ'2026-01-31 06:00:00' AS f, X'00FF' AS g, "
        "CAST(NULL AS STRING) AS h, true AS i, named_struct('j', CAST(0.5 AS FLOAT)) AS k) AS value"
    )
    sink.assert_read_as_written(frame)


def test_null_in_a_required_field_fails_with_its_path(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.topic_of(json.dumps(ORDER))
    frame = spark.sql("SELECT struct(CAST(NULL AS BIGINT) AS id, array('a') AS lines) AS value")
    message = "the column value cannot be written: field id: row 0 has null, which the schema's long cannot take"
    with pytest.raises(Exception, match=message):
        sink.write(frame, topic)
