"""Columns written with an Avro schema: Confluent's deserialiser reads what a query has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.spark.sink.conftest import assert_read_as_written, sink_options, write
from tests.support.librdkafka import raw_values

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


def options(kafka: LocalKafka, topic: str, registry: FakeSchemaRegistry, **more: str) -> dict[str, str]:
    return sink_options(kafka, topic, "confluent-avro", registry.url, **more)


def read_back(kafka: LocalKafka, registry: FakeSchemaRegistry, topic: str, count: int) -> list[Any]:
    """Return the values as Confluent's deserialiser reads them."""
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(topic, MessageField.VALUE)
    return [read(value, context) for value in raw_values(kafka, topic, count)]


def order(number: int, note: str | None = None) -> dict[str, Any]:
    return {"id": number, "lines": ["a", f"b{number}"], "note": note}


def test_batch_is_written_with_the_latest_version_of_the_subject(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry
) -> None:
    topic = topic1()
    registry.register(f"{topic}-value", json.dumps(ORDER))
    write(orders(spark), options(kafka1, topic, registry))
    assert read_back(kafka1, registry, topic, 3) == [order(1), order(2), order(3)]


def test_stream_registers_the_schema_of_its_column_and_keeps_tombstones(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry, tmp_path: Path
) -> None:
    topic, source = topic1(), topic1()
    write(orders(spark).selectExpr("key", "CAST(value.id AS STRING) AS value"), {
        "kafka.bootstrap.servers": kafka1.bootstrap_servers, "topic": source})  # fmt: skip
    frame = (
        spark.readStream.format("pykafka-group")
        .option("kafka.bootstrap.servers", kafka1.bootstrap_servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "if(offset = 1, null, struct(offset, CAST(value AS STRING) AS text, timestamp)) AS value")
    )
    inputs = options(kafka1, topic, registry, schema_registry_auto_register_schemas="true")
    writer = frame.writeStream.format("pykafka-group").options(**inputs).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    back = read_back(kafka1, registry, topic, 3)
    assert [row and (row["offset"], row["text"]) for row in back] == [(0, "1"), None, (2, "3")]
    assert registry.requests.count(f"POST /subjects/{topic}-value/versions") >= 1


def test_written_values_are_read_by_the_source_as_they_were(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry
) -> None:
    frame = spark.sql(
        "SELECT struct(1L AS a, CAST(1.5 AS DECIMAL(9, 2)) AS b, map('x', 2) AS c, DATE'2026-01-31' AS d, "
        "TIMESTAMP'2026-01-31 06:00:00.123456' AS e, TIMESTAMP_NTZ'2026-01-31 06:00:00' AS f, X'00FF' AS g, "
        "CAST(NULL AS STRING) AS h, true AS i, named_struct('j', CAST(0.5 AS FLOAT)) AS k) AS value"
    )
    assert_read_as_written(frame, options(kafka1, topic1(), registry))


def test_null_in_a_required_field_fails_with_its_path(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, registry: FakeSchemaRegistry
) -> None:
    topic = topic1()
    registry.register(f"{topic}-value", json.dumps(ORDER))
    frame = spark.sql("SELECT struct(CAST(NULL AS BIGINT) AS id, array('a') AS lines) AS value")
    message = "the column value cannot be written: field id: row 0 has null, which the schema's long cannot take"
    with pytest.raises(Exception, match=message):
        write(frame, options(kafka1, topic, registry))
