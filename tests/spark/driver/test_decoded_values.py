"""Keys and values with a schema as columns: Confluent's serialiser writes them, Spark reads them with this source."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.documents import block

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
SECOND: dict[str, Any] = {**FIRST, "fields": [*FIRST["fields"], NOTE]}


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


Write = Callable[..., None]


@pytest.fixture
def write(kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Write:
    """Return `write(topic, schema, [value, ...])`, as Confluent's serialiser writes; bytes are written as they are."""
    client = SchemaRegistryClient({"url": registry.url})
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})

    def send(topic: str, schema: Any, values: Sequence[Any], *, in_headers: bool = False) -> None:
        conf = {"schema.id.serializer": header_schema_id_serializer} if in_headers else {}
        serializer = AvroSerializer(client, json.dumps(schema), conf=conf)
        for value in values:
            headers: list[Any] = []
            raw = value
            if not isinstance(value, bytes):
                raw = serializer(value, SerializationContext(topic, MessageField.VALUE, headers))
            producer.produce(topic, raw, key=b"k", headers=headers)
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def options(kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Callable[..., dict[str, str]]:
    def make(topic: str, **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": kafka1.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "valueFormat": "confluent-avro",
            "schema.registry.url": registry.url,
            **{name.replace("_", "."): text for name, text in more.items()},
        }

    return make


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("pykafka-group").options(**options).load()


def orders(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "country": "DE"} for number in numbers]


def run(spark: SparkSession, options: dict[str, str], folder: Path) -> list[tuple[Any, ...]]:
    """Run a stream until nothing is new, and return the fields of its values."""
    frame = spark.readStream.format("pykafka-group").options(**options).load().select("value.*")
    collected: list[tuple[Any, ...]] = []

    def collect(batch: DataFrame, _: int) -> None:
        collected.extend(tuple(row) for row in batch.collect())

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    return collected


def test_values_are_columns_with_the_types_of_the_schema(
    spark: SparkSession, topic1: Any, registry: FakeSchemaRegistry, write: Write, options: Any
) -> None:
    topic = topic1(2)
    write(topic, FIRST, orders(1, 2))
    write(topic, SECOND, [{"id": 3, "country": "FR", "note": "fragile"}])
    frame = read(spark, options(topic))
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,country:string,note:string>"
    assert frame.schema["value"].metadata == {
        "schema.registry.subject": f"{topic}-value",
        "schema.registry.version": 2,
    }
    rows = frame.select("value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "DE", None), (2, "DE", None), (3, "FR", "fragile")]
    only = read(spark, options(topic, valueFields="country"))
    assert only.where("value.country = 'FR'").select("value").collect()[0][0].asDict() == {"country": "FR"}


def test_stream_reads_on_while_the_schema_evolves_and_keeps_its_version(
    spark: SparkSession, topic1: Any, write: Write, options: Any, tmp_path: Path
) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1))
    assert run(spark, options(topic), tmp_path) == [(1, "DE")]
    write(topic, SECOND, [{"id": 2, "country": "FR", "note": "fragile"}])
    with pytest.raises(StreamingQueryException, match=r"Set schema\.registry\.reader\.version to 1 to keep"):
        run(spark, options(topic), tmp_path)
    assert run(spark, options(topic, schema_registry_reader_version="1"), tmp_path) == [(2, "FR")]
    write(topic, SECOND, [{"id": 3, "country": "IT", "note": None}])
    assert run(spark, options(topic, schema_registry_reader_version="latest"), tmp_path) == [(3, "IT", None)]
    # The checkpoint has version 2 now.
    write(topic, FIRST, orders(4))
    assert run(spark, options(topic), tmp_path) == [(4, "DE", None)]


def test_invalid_value_fails_the_query_with_its_place_and_the_remedy(
    spark: SparkSession, topic1: Any, write: Write, options: Any, tmp_path: Path
) -> None:
    topic = topic1()
    write(topic, FIRST, [*orders(1), b"not framed"])
    message = f"{topic}-0, offset 1: the value does not decode: it does not begin with a zero byte and a schema id"
    with pytest.raises(StreamingQueryException, match=message) as failed:
        run(spark, options(topic), tmp_path)
    assert "onDecodeError=null" in str(failed.value)


def test_record_that_does_not_decode_is_a_dead_letter_and_no_row(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: Any,
    write: Write,
    options: Any,
    registry: FakeSchemaRegistry,
    tmp_path: Path,
) -> None:
    topic, dead = topic1(), topic1()
    inputs = options(topic, onDecodeError="dead-letter", deadLetterTopic=dead)
    write(topic, FIRST, [*orders(1), b"\0\0\0\0\x63\x04\x04DE", *orders(3)])
    assert run(spark, inputs, tmp_path) == [(1, "DE"), (3, "DE")]
    (letter,) = spark.read.format("pykafka-group").options(**{
        "kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": dead, "includeHeaders": "true"
    }).load().collect()  # fmt: skip
    headers = {header.key: bytes(header.value).decode() for header in letter.headers}
    assert (bytes(letter.key), bytes(letter.value)) == (b"k", b"\0\0\0\0\x63\x04\x04DE")
    assert [headers[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset")] == [topic, "0", "1"]
    assert headers["__connect.errors.exception.message"] == "value: schema id 99: the registry does not have it"


def test_schema_ids_in_headers_are_read(spark: SparkSession, topic1: Any, write: Write, options: Any) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1), in_headers=True)
    write(topic, FIRST, orders(2))
    rows = read(spark, options(topic, schemaIdLocation="header")).select("value.id").orderBy("id").collect()
    assert [row.id for row in rows] == [1, 2]


def test_fixed_schema_and_text_keys_need_no_registry(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, write: Write, options: Any, tmp_path: Path
) -> None:
    topic = topic1()
    write(topic, FIRST, [b"\x02\x04DE", b"\x04\x04FR"])
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(FIRST))
    texts = {name: text for name, text in options(topic).items() if not name.startswith("schema.registry")}
    frame = read(spark, {**texts, "valueFormat": "avro", "valueSchema": f"file:{file}", "keyFormat": "string"})
    rows = frame.select("key", "value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("k", 1, "DE"), ("k", 2, "FR")]


def test_example_of_the_page_runs(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: Any,
    registry: FakeSchemaRegistry,
    write: Write,
    options: Any,
    tmp_path: Path,
) -> None:
    topic, paid = topic1(), topic1()
    write(topic, FIRST, orders(7))
    inputs = f'"{topic}").option("startingOffsets", "earliest")'
    names = {"broker-1:9092": kafka1.bootstrap_servers, '"orders")': inputs, "http://registry:8081": registry.url}
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "orders = (").with_names(names), result)
    names = {"broker-1:9092": kafka1.bootstrap_servers, '"paid")': f'"{paid}")', "/checkpoints/paid": str(tmp_path),
             "http://registry:8081": registry.url, ".start()": ".trigger(availableNow=True).start()"}  # fmt: skip
    exec(block("schemas.md", "written = (").with_names(names), result)
    result["written"].awaitTermination(120)
    again = read(spark, options(paid)).select("value.*").collect()
    assert [tuple(row) for row in again] == [(7, 0)]


@pytest.mark.parametrize("streaming", [True, False])
def test_missing_dead_letter_topic_is_reported_before_the_first_record(
    spark: SparkSession, topic1: Any, write: Write, options: Any, tmp_path: Path, *, streaming: bool
) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1))
    soon = {"fetchOffset_numRetries": "0", "kafka_default_api_timeout_ms": "3000"}
    inputs = options(topic, onDecodeError="dead-letter", deadLetterTopic=f"{topic}-missing", **soon)
    with pytest.raises(Exception, match=f"deadLetterTopic: the topic {topic}-missing does not exist; create it first"):
        _ = run(spark, inputs, tmp_path) if streaming else read(spark, inputs).collect()
