"""Protobuf messages as columns: Confluent's serialiser writes them, Spark reads them with this source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.protobuf_messages import Field, message_type
from tests.support.spark_frames import batch, stream, streamed

FIELDS = {"id": (1, Field.TYPE_INT64), "country": (2, Field.TYPE_STRING)}
FIRST, SECOND = message_type(FIELDS), message_type({**FIELDS, "tags": (3, Field.TYPE_STRING, 3)})
REFUND = message_type({"id": (1, Field.TYPE_INT64)}, "Refund", before=["First"])
Write = Callable[..., None]


@pytest.fixture
def write(kafka1: LocalKafka, registry_client: SchemaRegistryClient) -> Write:
    """Return `write(topic, message, …)`, as Confluent's serialiser writes; bytes are written as they are."""

    def serialized(topic: str, message: Any) -> bytes | None:
        serializer = ProtobufSerializer(type(message), registry_client, {"use.deprecated.format": False})
        return serializer(message, SerializationContext(topic, MessageField.VALUE))

    def send(topic: str, *messages: Any) -> None:
        raw = [message if isinstance(message, bytes) else serialized(topic, message) for message in messages]
        produce(kafka1, topic, *raw, key=b"k")

    return send


@pytest.fixture
def load(spark: SparkSession, kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Callable[..., DataFrame]:
    """Return `load(topic, option=…)`, a batch read."""

    def read(topic: str, **more: str) -> DataFrame:
        framed = {"valueFormat": "confluent-protobuf", "schema_registry_url": registry.url}
        return batch(spark, kafka1, subscribe=topic, **(more if "valueFormat" in more else framed | more))

    return read


def test_messages_are_columns_with_the_types_of_the_schema(topic1: Any, write: Write, load: Any) -> None:
    topic = topic1(2)
    write(topic, FIRST(id=1, country="DE"))
    write(topic, SECOND(id=2, tags=["a", "b"]))
    frame = load(topic)
    kind = "struct<id:bigint,country:string,tags:array<string>>"
    assert frame.schema["value"].dataType.simpleString() == kind
    assert frame.schema["value"].metadata["schema.registry.version"] == 2
    rows = frame.select("value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, "DE", []), (2, None, ["a", "b"])]
    only = load(topic, valueFields="id", emit_default_values="true")
    assert only.select("value.*").orderBy("id").collect() == [(1,), (2,)]


def test_stream_leaves_other_messages_to_the_dead_letter_topic(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, write: Write, registry: FakeSchemaRegistry, tmp_path: Path
) -> None:
    topic, dead = topic1(), topic1()
    write(topic, REFUND(id=1))
    refund = registry.requests  # of the serialiser
    assert refund
    write(topic, b"\0\0\0\0\1\0\x08\x05", b"no frame", REFUND(id=4))
    options = {"valueFormat": "confluent-protobuf", "valueMessageName": "Refund", "schema_registry_url": registry.url}
    options |= {"onDecodeError": "dead-letter", "deadLetterTopic": dead}
    rows = streamed(stream(spark, kafka1, subscribe=topic, **options).select("value.id"), tmp_path)
    assert [row.id for row in rows] == [1, 4]
    letters = batch(spark, kafka1, subscribe=dead, includeHeaders=True).orderBy("offset").collect()
    reasons = [
        {header.key: bytes(header.value).decode() for header in row.headers}["__connect.errors.exception.message"]
        for row in letters
    ]
    assert reasons == [
        "value: schema id 1: its message is shop.First, not shop.Refund",
        "value: it does not begin with a zero byte and a schema id",
    ]


def test_example_of_the_page_writes_and_reads_messages(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: Any,
    registry: FakeSchemaRegistry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = topic1()
    places = {"broker-1:9092": kafka1.bootstrap_servers, '"shipments"': f'"{topic}"'}
    places["http://registry:8081"] = registry.url
    exec(block("schemas.md", "shipments = ").with_names(places), {"spark": spark})
    assert "|  7|     DE|[new]|" in capsys.readouterr().out


def test_fixed_schema_needs_no_registry(topic1: Any, write: Write, load: Any, tmp_path: Path) -> None:
    topic = topic1()
    write(topic, b"\x08\x01\x12\x02DE", b"\x08\x02")
    text = 'syntax = "proto3"; message Order { int64 id = 1; string country = 2; }'
    expected = [(1, "DE"), (2, None)]
    frame = load(topic, valueFormat="protobuf", valueSchema=text)
    assert [tuple(row) for row in frame.select("value.*").orderBy("id").collect()] == expected
    files = descriptor_pb2.FileDescriptorSet()
    FIRST.DESCRIPTOR.file.CopyToProto(files.file.add())
    path = tmp_path / "order.desc"
    path.write_bytes(files.SerializeToString())
    frame = load(topic, valueFormat="protobuf", valueSchema=f"file:{path}", valueMessageName="shop.Order")
    assert [tuple(row) for row in frame.select("value.*").orderBy("id").collect()] == expected
