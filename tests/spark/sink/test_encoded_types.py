"""Queries that copy rows of several types: Confluent's deserialiser reads what its serialiser had written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source import to_registry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.librdkafka import consumer
from tests.support.value_types import ID, NOTE, REASON, USER, avro_value, record

ORDER, NEWER_ORDER = record("Order", ID, namespace="com.shop"), record("Order", ID, NOTE, namespace="com.shop")
REFUND = record("Refund", ID, REASON, namespace="com.shop")
LOGIN = record("Login", USER, namespace="com.shop")
TYPES = {"valueTypes": "com.shop.Order,com.shop.Refund"}
Send = Callable[..., None]


def sink_options(kafka: LocalKafka, topic: str, value_format: str, url: str) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "topic": topic}
    return options | {"valueFormat": value_format, "schema.registry.url": url}


def write(frame: DataFrame, options: dict[str, str]) -> None:
    """Write all rows in one task."""
    frame.coalesce(1).write.format("pykafka-group").mode("append").options(**options).save()


@pytest.fixture
def send(kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Send:
    """Return `send(topic, partition, *(schema, value))`."""
    client = SchemaRegistryClient({"url": registry.url})
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})

    def run(topic: str, partition: int, *values: tuple[Any, Any]) -> None:
        for schema, value in values:
            raw = schema and avro_value(client, schema, value, topic=topic)
            producer.produce(topic, raw, key="k", partition=partition)
        assert producer.flush(30) == 0

    return run


def values_of(kafka: LocalKafka, topic: str, partition: int, count: int) -> list[bytes | None]:
    reader = consumer(kafka, "unused")
    try:
        reader.assign([TopicPartition(topic, partition, 0)])
        return [message.value() for message in reader.consume(count, timeout=30)]
    finally:
        reader.close()


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_stream_copies_types_that_evolve_in_order(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    send: Send,
    tmp_path: Path,
    guarantee: str,
) -> None:
    source, target = topic1(2), topic1(2)
    for schema in (ORDER, REFUND):
        registry.register(f"{target}-com.shop.{schema['name']}", json.dumps(schema))
    reading = sink_options(kafka1, "", "confluent-avro", registry.url) | {
        "subscribe": source,
        "startingOffsets": "earliest",
        "columns": "key,value,valueType,partition",
        "schema.registry.reader.version": "latest",
        **TYPES,
    }
    del reading["topic"]
    writing = sink_options(kafka1, target, "confluent-avro", registry.url) | {
        "deliveryGuarantee": guarantee,
        "transactionalIdPrefix": target,
        "checkpointLocation": str(tmp_path),
        **TYPES,
    }

    def run() -> None:
        rows = spark.readStream.format("pykafka-group").options(**reading).load()
        writer = rows.writeStream.format("pykafka-group").options(**writing)
        writer.trigger(availableNow=True).start().awaitTermination(120)

    first = [(ORDER, {"id": 1}), (REFUND, {"id": 2, "reason": "late"}), (None, None), (ORDER, {"id": 3})]
    send(source, 0, *first)
    send(source, 1, *first[::-1])
    run()
    later = [(ORDER, {"id": 4}), (NEWER_ORDER, {"id": 5, "note": "fragile"}), (REFUND, {"id": 6, "reason": ""})]
    send(source, 0, *later)
    registry.register(f"{target}-com.shop.Order", json.dumps(NEWER_ORDER))
    run()
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(target, MessageField.VALUE)
    expected = [record for _, record in [*first, *later]]
    expected[4] = {"id": 4, "note": None}
    assert [read(value, context) for value in values_of(kafka1, target, 0, 7)] == expected
    assert [read(value, context) for value in values_of(kafka1, target, 1, 4)] == expected[3::-1]


def test_example_of_the_page_copies_types(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    send: Send,
    tmp_path: Path,
) -> None:
    topic, audit = topic1(), topic1()
    records = [(ORDER, {"id": 1}), (LOGIN, {"user": "ann"}), (REFUND, {"id": 2, "reason": "late"})]
    send(topic, 0, *records)
    names = {
        "broker-1:9092": kafka1.bootstrap_servers,
        '"events")': f'"{topic}").option("startingOffsets", "earliest")',
        "http://registry:8081": registry.url,
    }
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "events = (").with_names(names), result)
    names = {
        "broker-1:9092": kafka1.bootstrap_servers,
        '"audit")': f'"{audit}")',
        "/checkpoints/audit": str(tmp_path),
        "http://registry:8081": registry.url,
        ".start()": ".trigger(availableNow=True).start()",
    }
    exec(block("schemas.md", "audited = (").with_names(names), result)
    result["audited"].awaitTermination(120)
    read = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
    context = SerializationContext(audit, MessageField.VALUE)
    copies = [read(value, context) for value in values_of(kafka1, audit, 0, 2)]
    assert copies == [record for schema, record in records if schema is not LOGIN]
    subjects = {f"{audit}-com.shop.Order", f"{audit}-com.shop.Refund"}
    assert subjects < set(SchemaRegistryClient({"url": registry.url}).get_subjects())


def test_columns_of_types_are_encoded_for_other_sinks_and_wrong_rows_fail_the_task(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, registry: FakeSchemaRegistry, send: Send
) -> None:
    topic = topic1()
    send(topic, 0, (ORDER, {"id": 1}), (None, None), (REFUND, {"id": 2, "reason": "late"}))
    options = sink_options(kafka1, topic, "confluent-avro", registry.url) | TYPES
    reading = {**options, "subscribe": topic, "columns": "offset,value"}
    del reading["topic"]
    rows = spark.read.format("pykafka-group").options(**reading).load().orderBy("offset")
    encoded = rows.select(to_registry("value", options, type=rows.schema["value"].dataType).alias("value")).collect()
    assert [row.value and bytes(row.value) for row in encoded] == values_of(kafka1, topic, 0, 3)
    both = spark.sql(
        "SELECT named_struct('Refund', named_struct('id', 1L, 'reason', ''), 'Order', named_struct('id', 1L)) AS value"
    )
    with pytest.raises(
        Exception, match="the column value cannot be written: row 0 has values in the fields Refund, Order"
    ):
        write(both, options)
