"""A topic with five types of events, which Confluent's serialiser writes, as columns of one query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.spark_frames import batch, stream, streamed
from tests.support.value_types import ID, NOTE, STRATEGIES, Write, avro_value, record

NAMES = ("Order", "Refund", "Login", "Shipment", "Rating")


@pytest.fixture
def write(kafka1: LocalKafka, registry_client: SchemaRegistryClient) -> Write:
    """Return `write(topic, strategy, schema, *values)`."""

    def send(topic: str, strategy: str, schema: dict[str, Any], *values: dict[str, Any]) -> None:
        produce(kafka1, topic, *(avro_value(registry_client, schema, value, strategy, topic) for value in values))

    return send


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_five_types_become_columns_and_evolve(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    write: Write,
    tmp_path: Path,
    strategy: str,
) -> None:
    topic = topic1(2)
    options = {
        "subscribe": topic,
        "valueFormat": "confluent-avro",
        "valueTypes": ",".join(f"shop.{name}" for name in NAMES),
        "valueSubjectNameStrategy": strategy,
        "schema_registry_url": registry.url,
        "columns": "value,valueType",
    }
    for number, name in enumerate(NAMES):
        write(topic, strategy, record(name, ID), {"id": number}, {"id": number + 10})

    def run(**more: str) -> list[tuple[Any, ...]]:
        rows = stream(spark, kafka1, **options, **more).selectExpr("valueType", "to_json(value) AS json")
        return [tuple(row) for row in streamed(rows, tmp_path)]

    assert stream(spark, kafka1, **options).select("value.*").columns == list(NAMES)
    assert sorted(run()) == sorted(
        (name, f'{{"{name}":{{"id":{number + more}}}}}') for number, name in enumerate(NAMES) for more in (0, 10)
    )
    write(topic, strategy, record("Order", ID, NOTE), {"id": 20, "note": "fragile"})
    with pytest.raises(StreamingQueryException, match=r"shop\.Order=1 to keep the columns"):
        run()
    prefix = f"{topic}-" if strategy.startswith("Topic") else ""
    pinned = run(schema_registry_reader_version=f"{prefix}shop.Order=1")
    assert pinned == [("Order", '{"Order":{"id":20}}')]
    orders = batch(spark, kafka1, **options, filter="valueType = 'Order'")
    rows = orders.select("value.Order.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, None), (10, None), (20, "fragile")]


def test_union_of_references_becomes_columns_and_is_pinned(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    registry_client: SchemaRegistryClient,
    tmp_path: Path,
) -> None:
    topic = topic1()
    options = {
        "subscribe": topic,
        "valueFormat": "confluent-avro",
        "valueUnionNames": "types",
        "schema_registry_url": registry.url,
        "columns": "value,valueType",
    }

    def register(*names: str) -> Schema:
        for name in names:
            registry.register(f"{topic}-{name}", json.dumps(record(name, ID)))
        references = [SchemaReference(f"shop.{name}", f"{topic}-{name}", 1) for name in names]
        union = Schema(json.dumps([f"shop.{name}" for name in names]), "AVRO", references)
        registry_client.register_schema(f"{topic}-value", union)
        return union

    def run(**more: str) -> list[tuple[Any, ...]]:
        rows = stream(spark, kafka1, **options, **more).selectExpr("valueType", "to_json(value) AS json")
        return [tuple(row) for row in streamed(rows, tmp_path)]

    conf = {"auto.register.schemas": False, "use.latest.version": True}
    serialize = AvroSerializer(registry_client, register("Order", "Refund"), conf=conf)
    context = SerializationContext(topic, MessageField.VALUE)
    produce(kafka1, topic, *(serialize((f"shop.{name}", {"id": 7}), context) for name in ("Order", "Refund")))
    expected = [(name, f'{{"{name}":{{"id":7}}}}') for name in ("Order", "Refund")]
    assert stream(spark, kafka1, **options).select("value.*").columns == ["Order", "Refund"]
    assert sorted(run()) == expected
    register("Login", "Order", "Refund")
    produce(kafka1, topic, serialize(("shop.Order", {"id": 7}), context))
    with pytest.raises(StreamingQueryException, match=r"reader\.version to 1 to keep the columns"):
        run()
    assert run(schema_registry_reader_version="1") == expected[:1]


def test_example_of_the_page_runs(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    write: Write,
    tmp_path: Path,
) -> None:
    topic = topic1()
    for name in ("Order", "Refund", "Login"):
        write(topic, "TopicRecordNameStrategy", record(name, ID), {"id": 7})
    names = {
        "broker-1:9092": kafka1.bootstrap_servers,
        '"events")': f'"{topic}").option("startingOffsets", "earliest")',
        "com.shop.": "shop.",
        "http://registry:8081": registry.url,
    }
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "events = (").with_names(names), result)
    assert [row.id for row in streamed(result["orders"], tmp_path)] == [7]
