"""Keys and values with a schema as columns: Confluent's serialiser writes them, Spark reads them with this source."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.spark_frames import await_end, batch, stream, streamed

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "country", "type": "string"}],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
SECOND: dict[str, Any] = {**FIRST, "fields": [*FIRST["fields"], NOTE]}


Run = Callable[..., list[tuple[Any, ...]]]
Write = Callable[..., None]


@pytest.fixture
def write(kafka1: LocalKafka, registry_client: SchemaRegistryClient) -> Write:
    """Return `write(topic, schema, [value, ...])`, as Confluent's serialiser writes; bytes are written as they are."""

    def send(topic: str, schema: Any, values: Sequence[Any], *, in_headers: bool = False) -> None:
        conf = {"schema.id.serializer": header_schema_id_serializer} if in_headers else {}
        serializer = AvroSerializer(registry_client, json.dumps(schema), conf=conf)
        for value in values:
            headers: list[Any] = []
            context = SerializationContext(topic, MessageField.VALUE, headers)
            raw = value if isinstance(value, bytes) else serializer(value, context)
            produce(kafka1, topic, raw, key=b"k", headers=headers)

    return send


@pytest.fixture
def options(registry: FakeSchemaRegistry) -> dict[str, str]:
    return {"valueFormat": "confluent-avro", "schema_registry_url": registry.url}


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, kafka1: LocalKafka, options: dict[str, str]) -> Load:
    """Return `load(topic, **options)`, a batch read."""
    return lambda topic, **more: batch(spark, kafka1, subscribe=topic, **options, **more)


@pytest.fixture
def run(spark: SparkSession, kafka1: LocalKafka, options: dict[str, str], tmp_path: Path) -> Run:
    """Return `run(topic, **options)`: runs a stream until nothing is new, and returns the fields of its values."""

    def fields(topic: str, **more: str) -> list[tuple[Any, ...]]:
        rows = stream(spark, kafka1, subscribe=topic, **options, **more).select("value.*")
        return [tuple(row) for row in streamed(rows, tmp_path)]

    return fields


def orders(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "country": "DE"} for number in numbers]


def test_values_are_columns_with_the_types_of_the_schema(topic1: TopicFactory, write: Write, load: Load) -> None:
    topic = topic1(2)
    write(topic, FIRST, orders(1, 2))
    write(topic, SECOND, [{"id": 3, "country": "FR", "note": "fragile"}])
    frame = load(topic)
    assert frame.schema["value"].dataType.simpleString() == "struct<id:bigint,country:string,note:string>"
    subject = {"schema.registry.subject": f"{topic}-value", "schema.registry.version": 2}
    assert frame.schema["value"].metadata == subject
    rows = frame.select("value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "DE", None), (2, "DE", None), (3, "FR", "fragile")]
    only = load(topic, valueFields="country")
    assert only.where("value.country = 'FR'").select("value").collect()[0][0].asDict() == {"country": "FR"}


def test_stream_reads_on_while_the_schema_evolves_and_keeps_its_version(
    topic1: TopicFactory, write: Write, run: Run
) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1))
    assert run(topic) == [(1, "DE")]
    write(topic, SECOND, [{"id": 2, "country": "FR", "note": "fragile"}])
    with pytest.raises(StreamingQueryException, match=r"Set schema\.registry\.reader\.version to 1 to keep"):
        run(topic)
    assert run(topic, schema_registry_reader_version="1") == [(2, "FR")]
    write(topic, SECOND, [{"id": 3, "country": "IT", "note": None}])
    assert run(topic, schema_registry_reader_version="latest") == [(3, "IT", None)]
    # The checkpoint has version 2 now.
    write(topic, FIRST, orders(4))
    assert run(topic) == [(4, "DE", None)]


def test_invalid_value_fails_the_query_with_its_place_and_the_remedy(
    topic1: TopicFactory, write: Write, run: Run
) -> None:
    topic = topic1()
    write(topic, FIRST, [*orders(1), b"not framed"])
    message = f"{topic}-0, offset 1: the value does not decode: it does not begin with a zero byte and a schema id"
    with pytest.raises(StreamingQueryException, match=message) as failed:
        run(topic)
    assert "onDecodeError=null" in str(failed.value)


def test_record_that_does_not_decode_is_a_dead_letter_and_no_row(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, write: Write, run: Run
) -> None:
    topic, dead = topic1(), topic1()
    write(topic, FIRST, [*orders(1), b"\0\0\0\0\x63\x04\x04DE", *orders(3)])
    assert run(topic, onDecodeError="dead-letter", deadLetterTopic=dead) == [(1, "DE"), (3, "DE")]
    (letter,) = batch(spark, kafka1, subscribe=dead, includeHeaders=True).collect()
    headers = {header.key: bytes(header.value).decode() for header in letter.headers}
    assert (bytes(letter.key), bytes(letter.value)) == (b"k", b"\0\0\0\0\x63\x04\x04DE")
    assert [headers[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset")] == [topic, "0", "1"]
    assert headers["__connect.errors.exception.message"] == "value: schema id 99: the registry does not have it"


def test_schema_ids_in_headers_are_read(topic1: TopicFactory, write: Write, load: Load) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1), in_headers=True)
    write(topic, FIRST, orders(2))
    rows = load(topic, schemaIdLocation="header").select("value.id").orderBy("id").collect()
    assert [row.id for row in rows] == [1, 2]


def test_fixed_schema_and_text_keys_need_no_registry(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, write: Write, tmp_path: Path
) -> None:
    topic = topic1()
    write(topic, FIRST, [b"\x02\x04DE", b"\x04\x04FR"])
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(FIRST))
    options = {"valueFormat": "avro", "valueSchema": f"file:{file}", "keyFormat": "string"}
    frame = batch(spark, kafka1, subscribe=topic, **options)
    rows = frame.select("key", "value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [("k", 1, "DE"), ("k", 2, "FR")]


def test_example_of_the_page_runs(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    write: Write,
    load: Load,
    tmp_path: Path,
) -> None:
    topic, paid = topic1(), topic1()
    write(topic, FIRST, orders(7))
    servers = {"broker-1:9092": kafka1.bootstrap_servers, "http://registry:8081": registry.url}
    source = {'"orders")': f'"{topic}").option("startingOffsets", "earliest")'}
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "orders = (").with_names({**servers, **source}), result)
    target = {'"paid")': f'"{paid}")', "/checkpoints/paid": str(tmp_path)}
    ended = {".start()": ".trigger(availableNow=True).start()"}
    exec(block("schemas.md", "written = (").with_names({**servers, **target, **ended}), result)
    await_end(result["written"])
    again = load(paid).select("value.*").collect()
    assert [tuple(row) for row in again] == [(7, 0)]


@pytest.mark.parametrize("streaming", [True, False])
def test_missing_dead_letter_topic_is_reported_before_the_first_record(
    topic1: TopicFactory, write: Write, load: Load, run: Run, *, streaming: bool
) -> None:
    topic = topic1()
    write(topic, FIRST, orders(1))
    options = {"onDecodeError": "dead-letter", "deadLetterTopic": f"{topic}-missing"}
    options |= {"fetchOffset_numRetries": "0", "kafka_default_api_timeout_ms": "3000"}
    with pytest.raises(Exception, match=f"deadLetterTopic: the topic {topic}-missing does not exist; create it first"):
        _ = run(topic, **options) if streaming else load(topic, **options).collect()
