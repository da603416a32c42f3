"""JSON values as columns: Spark's `from_json` judges, in the same session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.librdkafka import produce
from tests.support.noop_queries import run_query
from tests.support.spark_frames import batch, stream, streamed

ORDERS = "id BIGINT, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(10, 2)>>, attributes MAP<STRING, INT>"
VALUES = [
    b'{"id": 1, "at": "2026-01-31T12:00:00+01:00", "lines": [{"sku": "a", "price": 1.5}, {"price": "2"}], "more": 1}',
    b'{"attributes": {"x": 1, "y": null}, "id": 2}',
    None,
    b"",
]


def test_values_are_those_of_from_json(spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory) -> None:
    topic = topic1()
    produce(kafka1, topic, *VALUES)
    raw = batch(spark, kafka1, subscribe=topic).orderBy("offset")
    ours = batch(spark, kafka1, subscribe=topic, valueFormat="json", valueSchema=ORDERS).orderBy("offset")
    ours = ours.select("value")
    reference = raw.select(f.from_json(f.col("value").cast("string"), ORDERS).alias("value"))
    assert ours.schema == reference.schema
    assert ours.collect() == reference.collect()
    assert ours.collect()[0]["value"]["lines"][1]["sku"] is None


def test_stream_fails_at_a_value_of_another_type_with_its_field(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, tmp_path: Path
) -> None:
    topic = topic1()
    produce(kafka1, topic, VALUES[0], b'{"id": 2, "lines": [{"price": true}]}')
    message = rf"{topic}-0, offset 1: .*: field lines\[\]\.price: a boolean, not a decimal\(10,2\)"
    with pytest.raises(StreamingQueryException, match=message):
        run_query(stream(spark, kafka1, subscribe=topic, valueFormat="json", valueSchema=ORDERS), tmp_path)


def test_invalid_values_are_null_beside_their_error(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory
) -> None:
    topic = topic1()
    produce(kafka1, topic, b'{"id": 1}', b'{"id": 1.5}', b"{", b'{"id": 4}')
    options = {"valueFormat": "json", "valueSchema": "id INT", "onDecodeError": "null"}
    frame = batch(spark, kafka1, subscribe=topic, columns="offset,value,_raw,_error", **options)
    rows = frame.orderBy("offset").collect()
    assert [None if row["value"] is None else row["value"]["id"] for row in rows] == [1, None, None, 4]
    assert [row["_error"] for row in rows][1:3] == [
        "value: field id: 1.5, not an int",
        "value: not JSON: Expecting property name enclosed in double quotes at character 1",
    ]
    assert bytes(rows[2]["_raw"]) == b"{"


def test_stream_reads_values_of_all_versions_of_a_json_schema(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    registry_client: SchemaRegistryClient,
    tmp_path: Path,
) -> None:
    topic = topic1()
    context = SerializationContext(topic, MessageField.VALUE)
    properties = {"id": {"type": "integer"}}
    for number in range(3):
        schema = json.dumps({"title": "Order", "type": "object", "properties": properties})
        produce(kafka1, topic, JSONSerializer(schema, registry_client)({"id": number, "note": "x"}, context))
        properties = {**properties, "note": {"type": "string"}, f"more{number}": {"type": "object"}}
    produce(kafka1, topic, b'{"id": 3}')
    options = {"schema_registry_url": registry.url, "schema_registry_reader_version": "2", "onDecodeError": "null"}
    frame = stream(spark, kafka1, subscribe=topic, valueFormat="confluent-json", **options).select("value")
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,note:string,more0:map<string,string>>"
    values = [row.value and (row.value.id, row.value.note) for row in streamed(frame, tmp_path)]
    assert values == [(0, "x"), (1, "x"), (2, "x"), None]
