"""Protobuf messages as columns: Confluent's serialiser writes them, Spark reads them with this source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.support.documents import block
from tests.support.protobuf_messages import Field, message_type

FIRST = message_type({"id": (1, Field.TYPE_INT64), "country": (2, Field.TYPE_STRING)})
SECOND = message_type(
    {"id": (1, Field.TYPE_INT64), "country": (2, Field.TYPE_STRING), "tags": (3, Field.TYPE_STRING, 3)}
)
REFUND = message_type({"id": (1, Field.TYPE_INT64)}, "Refund", before=["First"])
Write = Callable[..., None]


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


@pytest.fixture
def write(kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Write:
    """Return `write(topic, message, …)`, as Confluent's serialiser writes; bytes are written as they are."""
    client = SchemaRegistryClient({"url": registry.url})
    producer = Producer({"bootstrap.servers": kafka1.bootstrap_servers, "log_level": 0})

    def send(topic: str, *messages: Any) -> None:
        for message in messages:
            raw = message
            if not isinstance(message, bytes):
                serializer = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
                raw = serializer(message, SerializationContext(topic, MessageField.VALUE))
            producer.produce(topic, raw, key=b"k")
        assert producer.flush(30) == 0

    return send


@pytest.fixture
def load(spark: SparkSession, kafka1: LocalKafka, registry: FakeSchemaRegistry) -> Callable[..., DataFrame]:
    """Return `load(topic, option=…)`, a batch read."""

    def read(topic: str, **more: str) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": kafka1.bootstrap_servers,
            "subscribe": topic,
            "valueFormat": "confluent-protobuf",
            **({"schema.registry.url": registry.url} if "valueFormat" not in more else {}),
            **{name.replace("__", "."): text for name, text in more.items()},
        }
        return spark.read.format("pykafka-group").options(**options).load()

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
    only = load(topic, valueFields="id", emit__default__values="true")
    assert only.select("value.*").orderBy("id").collect() == [(1,), (2,)]


def test_stream_leaves_other_messages_to_the_dead_letter_topic(
    spark: SparkSession, kafka1: LocalKafka, topic1: Any, write: Write, registry: FakeSchemaRegistry, tmp_path: Path
) -> None:
    topic, dead = topic1(), topic1()
    write(topic, REFUND(id=1))
    refund = registry.requests  # of the serialiser
    assert refund
    write(topic, b"\0\0\0\0\1\0\x08\x05", b"no frame", REFUND(id=4))
    options = {
        "kafka.bootstrap.servers": kafka1.bootstrap_servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "valueFormat": "confluent-protobuf",
        "valueMessageName": "Refund",
        "schema.registry.url": registry.url,
        "onDecodeError": "dead-letter",
        "deadLetterTopic": dead,
    }
    frame = spark.readStream.format("pykafka-group").options(**options).load().select("value.id")
    collected: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        collected.extend(row.id for row in batch.collect())

    writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    assert collected == [1, 4]
    letters = spark.read.format("pykafka-group").options(**{
        "kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": dead, "includeHeaders": "true"
    }).load().orderBy("offset").collect()  # fmt: skip
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
