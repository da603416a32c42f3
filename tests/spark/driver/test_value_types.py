"""A topic with five types of events, which Confluent's serialiser writes, as columns of one query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.documents import block

NAMES = ("Order", "Refund", "Login", "Shipment", "Rating")
STRATEGIES = {
    "TopicRecordNameStrategy": topic_record_subject_name_strategy,
    "RecordNameStrategy": record_subject_name_strategy,
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
Write = Callable[..., None]


def schema(name: str, *more: dict[str, Any]) -> dict[str, Any]:
    fields = [{"name": "id", "type": "long"}, *more]
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


@pytest.fixture
def write(kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Write:
    """Return `write(topic, strategy, schema, *records)`."""
    client = SchemaRegistryClient({"url": registry.url})
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})

    def send(topic: str, strategy: str, schema: dict[str, Any], *records: dict[str, Any]) -> None:
        serialize = AvroSerializer(client, json.dumps(schema), conf={"subject.name.strategy": STRATEGIES[strategy]})
        for record in records:
            producer.produce(topic, serialize(record, SerializationContext(topic, MessageField.VALUE)))
        assert producer.flush(30) == 0

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
        "kafka.bootstrap.servers": kafka1.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "confluent-avro",
        "valueTypes": ",".join(f"shop.{name}" for name in NAMES),
        "valueSubjectNameStrategy": strategy,
        "schema.registry.url": registry.url,
        "columns": "value,valueType",
    }
    for number, name in enumerate(NAMES):
        write(topic, strategy, schema(name), {"id": number}, {"id": number + 10})
    collected: list[tuple[str, str]] = []

    def run(**more: str) -> DataFrame:
        frame: DataFrame = spark.readStream.format("pykafka-group").options(**options, **more).load()

        def collect(batch: DataFrame, _: int) -> None:
            rows = batch.selectExpr("valueType", "to_json(value) AS json").collect()
            collected.extend((row.valueType, row.json) for row in rows)

        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(120)
        return frame

    first = run()
    assert first.select("value.*").columns == list(NAMES)
    expected = {
        (name, f'{{"{name}":{{"id":{number + more}}}}}') for number, name in enumerate(NAMES) for more in (0, 10)
    }
    assert set(collected) == expected
    assert len(collected) == len(expected)
    collected.clear()
    write(topic, strategy, schema("Order", NOTE), {"id": 20, "note": "fragile"})
    with pytest.raises(StreamingQueryException, match=r"shop\.Order=1 to keep the columns"):
        run()
    prefix = f"{topic}-" if strategy.startswith("Topic") else ""
    run(**{"schema.registry.reader.version": f"{prefix}shop.Order=1"})
    assert collected == [("Order", '{"Order":{"id":20}}')]
    orders = spark.read.format("pykafka-group").options(**options, filter="valueType = 'Order'").load()
    rows = orders.select("value.Order.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(0, None), (10, None), (20, "fragile")]


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
        write(topic, "TopicRecordNameStrategy", schema(name), {"id": 7})
    names = {
        "broker-1:9092": kafka1.bootstrap_servers,
        '"events")': f'"{topic}").option("startingOffsets", "earliest")',
        "com.shop.": "shop.",
        "http://registry:8081": registry.url,
    }
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "events = (").with_names(names), result)
    collected: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        collected.extend(row.id for row in batch.collect())

    writer = result["orders"].writeStream.foreachBatch(collect)
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination(120)
    assert collected == [7]
