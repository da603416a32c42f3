"""Columns written as JSON: Spark's `to_json` and Confluent's deserialiser judge what a query has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.sink.conftest import EncodedSink
from tests.support.spark_frames import batch, stream, write, write_stream

ORDER: dict[str, Any] = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "status": {"enum": ["NEW", "PAID"]},
    },
    "required": ["id", "note"],
    "additionalProperties": False,
}


def orders(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "SELECT struct(id, array('a', concat('b', id)) AS lines, IF(id = 2, 'two', NULL) AS note, 'PAID' AS status) "
        "AS value FROM (SELECT explode(sequence(1L, 3L)) AS id)"
    )


@pytest.fixture
def sink(kafka1: LocalKafka, topic1: TopicFactory, registry: FakeSchemaRegistry) -> EncodedSink:
    return EncodedSink(kafka1, topic1, registry, "confluent-json")


EVERYTHING = (
    "SELECT struct(1L AS a, CAST(1.5 AS DECIMAL(9, 2)) AS b, map('x', 2, 'y', NULL) AS c, DATE'2026-01-31' AS d, "
    "TIMESTAMP'2026-01-31 06:00:00.123' AS e, TIMESTAMP_NTZ'2026-01-31 06:00:00' AS f, X'00FF' AS g, "
    "CAST(NULL AS STRING) AS h, true AS i, named_struct('j', CAST(0.5 AS FLOAT), 'k', CAST(NULL AS INT)) AS k, "
    "array(1Y, NULL) AS l, 'q\"\\\\\\n\u00e4' AS m, CAST('NaN' AS DOUBLE) AS n, "
    "1e300D AS o, CAST(array() AS ARRAY<INT>) AS p) AS value"
)


def test_values_are_those_of_to_json_and_are_read_as_they_were(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.new_topic()
    frame = spark.sql(EVERYTHING).union(spark.sql(EVERYTHING).selectExpr("NULL AS value"))
    write(frame.coalesce(1), sink.kafka, topic=topic, valueFormat="json")
    written = sink.raw_values(topic, 2)
    reference = [row.value for row in frame.select(f.to_json("value").alias("value")).collect()]
    assert written[1] is reference[1] is None
    ours = json.loads(written[0])
    assert ours.pop("e") == "2026-01-31T06:00:00.123Z"
    assert json.loads(reference[0], parse_float=float).items() >= ours.items()
    schema = frame.schema["value"].dataType.json()
    read = batch(spark, sink.kafka, subscribe=topic, valueFormat="json", valueSchema=schema)
    assert read.orderBy("offset").selectExpr("CAST(value AS STRING)").collect() == (
        frame.selectExpr("CAST(value AS STRING)").collect()
    )


def test_batch_is_written_with_the_latest_version_of_the_subject(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.topic_of(json.dumps(ORDER), "JSON")
    sink.write(orders(spark), topic)
    deserializer = JSONDeserializer(None, schema_registry_client=sink.client)  # validates with the writer's schema
    context = SerializationContext(topic, MessageField.VALUE)
    assert [deserializer(value, context) for value in sink.raw_values(topic, 3)] == [
        {"id": number, "lines": ["a", f"b{number}"], "note": "two" if number == 2 else None, "status": "PAID"}
        for number in (1, 2, 3)
    ]


def test_stream_registers_the_schema_of_its_column_which_the_source_reads(
    spark: SparkSession, sink: EncodedSink, tmp_path: Path
) -> None:
    topic, source = sink.new_topic(), sink.new_topic()
    write(spark.range(3).coalesce(1).selectExpr("CAST(id AS STRING) AS value"), sink.kafka, topic=source)
    frame = stream(spark, sink.kafka, subscribe=source).selectExpr(
        "struct(offset, partition, timestamp, array(CAST(value AS STRING)) AS texts) AS value"
    )
    options = {**sink.options, "schema_registry_auto_register_schemas": "true"}
    write_stream(frame, sink.kafka, tmp_path, topic=topic, **options)
    again = batch(spark, sink.kafka, subscribe=topic, **sink.options).orderBy("offset").select("value.*")
    assert again.drop("timestamp").collect() == [(number, 0, [str(number)]) for number in range(3)]
    assert dict(again.dtypes) == {
        "offset": "bigint", "partition": "int", "timestamp": "timestamp", "texts": "array<string>",
    }  # fmt: skip
    sent = batch(spark, sink.kafka, subscribe=source).orderBy("offset")
    assert again.select("timestamp").collect() == sent.select("timestamp").collect()
