"""JSON values as columns: Spark's `from_json` judges, in the same session."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import protocol
from protocol.records.arrow_numpy import nullable_binaries
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka

ORDERS = "id BIGINT, at TIMESTAMP, lines ARRAY<STRUCT<sku: STRING, price: DECIMAL(10, 2)>>, attributes MAP<STRING, INT>"
VALUES = [
    b'{"id": 1, "at": "2026-01-31T12:00:00+01:00", "lines": [{"sku": "a", "price": 1.5}, {"price": "2"}], "more": 1}',
    b'{"attributes": {"x": 1, "y": null}, "id": 2}',
    None,
    b"",
]


@pytest.fixture
def write(kafka1: LocalKafka) -> Callable[[str, Sequence[bytes | None]], None]:
    def send(topic: str, values: Sequence[bytes | None]) -> None:
        import pyarrow as pa

        table = pa.table({"value": nullable_binaries(values)})
        protocol.write({"bootstrap.servers": kafka1.bootstrap_servers}, topic, table)

    return send


@pytest.fixture
def options(kafka1: LocalKafka) -> Callable[..., dict[str, str]]:
    def make(topic: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": kafka1.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "json",
            **more,
        }

    return make


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("pykafka-group").options(**options).load().orderBy("offset")


def test_values_are_those_of_from_json(spark: SparkSession, topic1: Any, write: Any, options: Any) -> None:
    topic = topic1()
    write(topic, VALUES)
    ours = read(spark, options(topic, valueSchema=ORDERS)).select("value")
    raw = read(spark, options(topic, valueFormat="binary"))
    reference = raw.select(f.from_json(f.col("value").cast("string"), ORDERS).alias("value"))
    assert ours.schema == reference.schema
    assert ours.collect() == reference.collect()
    assert ours.collect()[0]["value"]["lines"][1]["sku"] is None


def test_stream_fails_at_a_value_of_another_type_with_its_field(
    spark: SparkSession, topic1: Any, write: Any, options: Any, tmp_path: Path
) -> None:
    topic = topic1()
    write(topic, [VALUES[0], b'{"id": 2, "lines": [{"price": true}]}'])
    frame = spark.readStream.format("pykafka-group").options(**options(topic, valueSchema=ORDERS)).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    message = rf"{topic}-0, offset 1: .*: field lines\[\]\.price: a boolean, not a decimal\(10,2\)"
    with pytest.raises(StreamingQueryException, match=message):
        query.start().awaitTermination(120)


def test_invalid_values_are_null_beside_their_error(spark: SparkSession, topic1: Any, write: Any, options: Any) -> None:
    topic = topic1()
    write(topic, [b'{"id": 1}', b'{"id": 1.5}', b"{", b'{"id": 4}'])
    inputs = options(topic, valueSchema="id INT", onDecodeError="null", columns="offset,value,_raw,_error")
    rows = read(spark, inputs).collect()
    assert [None if row["value"] is None else row["value"]["id"] for row in rows] == [1, None, None, 4]
    assert [row["_error"] for row in rows][1:3] == [
        "value: field id: 1.5, not an int",
        "value: not JSON: Expecting property name enclosed in double quotes at character 1",
    ]
    assert bytes(rows[2]["_raw"]) == b"{"


def test_stream_reads_values_of_all_versions_of_a_json_schema(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, options: Any, tmp_path: Path
) -> None:
    topic = topic1()
    with FakeSchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})
        context = SerializationContext(topic, MessageField.VALUE)
        properties = {"id": {"type": "integer"}}
        for number in range(3):
            schema = {"title": "Order", "type": "object", "properties": properties}
            producer.produce(topic, JSONSerializer(json.dumps(schema), client)({"id": number, "note": "x"}, context))
            properties = {**properties, "note": {"type": "string"}, f"more{number}": {"type": "object"}}
        producer.produce(topic, b'{"id": 3}')
        assert producer.flush(30) == 0
        inputs = options(topic, valueFormat="confluent-json", onDecodeError="null")
        inputs |= {"schema.registry.url": registry.url, "schema.registry.reader.version": "2"}
        frame = spark.readStream.format("pykafka-group").options(**inputs).load().select("offset", "value")
        assert frame.schema["value"].dataType.simpleString() == (
            "struct<id:bigint,note:string,more0:map<string,string>>"
        )
        collected: list[Any] = []
        writer = frame.writeStream.foreachBatch(lambda batch, _: collected.extend(batch.collect()))
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(120)
    assert [row.value and (row.value.id, row.value.note) for row in collected] == [(0, "x"), (1, "x"), (2, "x"), None]
