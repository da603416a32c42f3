"""Values of several types for one topic, as Confluent's serialisers write them.

A module uses the fixtures by `registry, fake, write = value_types.registry, value_types.fake, value_types.write`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from protocol.testing import FakeKafka, FakeSchemaRegistry
from spark_kafka_source.process_state import PROCESS
from tests.support.protobuf_messages import Field, message_type

Write = Callable[..., None]


def record(name: str, *fields: dict[str, Any], namespace: str = "shop") -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": namespace, "fields": list(fields)}


ID, NOTE = {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}
REASON, USER = {"name": "reason", "type": "string"}, {"name": "user", "type": "string"}
ORDER, NEWER_ORDER = record("Order", ID), record("Order", ID, NOTE)
REFUND, LOGIN = record("Refund", REASON), record("Login", USER)
# The rows of `{"id": 1}` and `{"reason": "late"}`, read as the types Order and Refund.
FIRST, SECOND = {"Order": {"id": 1}, "Refund": None}, {"Order": None, "Refund": {"reason": "late"}}
# The message is not the first one of its schema.
INVOICE = message_type({"id": (1, Field.TYPE_INT64)}, "Invoice", before=["First"])
REMINDER = message_type({"reason": (1, Field.TYPE_STRING)}, "Reminder")
STRATEGIES = {
    "TopicRecordNameStrategy": topic_record_subject_name_strategy,
    "RecordNameStrategy": record_subject_name_strategy,
}
_BY_RECORD: dict[str, Any] = {"subject.name.strategy": record_subject_name_strategy}
_CONTEXT = SerializationContext("events", MessageField.VALUE)


def avro_value(
    client: SchemaRegistryClient,
    schema: dict[str, Any],
    value: Any,
    strategy: str = "TopicRecordNameStrategy",
    topic: str = "events",
) -> bytes:
    serialize = AvroSerializer(client, json.dumps(schema), conf={"subject.name.strategy": STRATEGIES[strategy]})
    written: bytes = serialize(value, SerializationContext(topic, MessageField.VALUE))
    return written


def json_value(client: SchemaRegistryClient, value: dict[str, Any]) -> bytes:
    """Return an order or a refund, with the subject of its record."""
    name, field, kind = ("Order", "id", "integer") if "id" in value else ("Refund", "reason", "string")
    schema = {"title": f"shop.{name}", "type": "object", "properties": {field: {"type": kind}}}
    written: bytes = JSONSerializer(json.dumps(schema), client, conf=_BY_RECORD)(value, _CONTEXT)
    return written


def protobuf_value(client: SchemaRegistryClient, message: Any) -> bytes:
    """Return a message, with the subject of its record."""
    conf = {**_BY_RECORD, "use.deprecated.format": False}
    written: bytes = ProtobufSerializer(type(message), client, conf)(message, _CONTEXT)
    return written


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry("NONE") as running:
        yield running


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield a Kafka with the empty topics `events` and `dead`."""
    with FakeKafka() as running:
        running.create_topic("events")
        running.create_topic("dead")
        yield running
    PROCESS.reset()


@pytest.fixture
def write(fake: FakeKafka, registry: FakeSchemaRegistry) -> Write:
    """Return `write(schema, value, strategy)`, which writes a record to the topic `events`."""
    client = SchemaRegistryClient({"url": registry.url})

    def send(schema: dict[str, Any], value: dict[str, Any], strategy: str = "TopicRecordNameStrategy") -> None:
        fake.produce("events", avro_value(client, schema, value, strategy), partition=0)

    return send


def write_events(write: Write) -> None:
    """Write an order, a record of another type and a refund."""
    for schema, value in ((ORDER, {"id": 1}), (LOGIN, {"user": "ann"}), (REFUND, {"reason": "late"})):
        write(schema, value)


def write_json_and_protobuf(fake: FakeKafka, registry: FakeSchemaRegistry) -> None:
    """Write an order and a refund to the topic `events`, and an invoice and a reminder to `messages`."""
    client = SchemaRegistryClient({"url": registry.url})
    fake.produce("events", *(json_value(client, value) for value in ({"id": 1}, {"reason": "late"})), partition=0)
    fake.create_topic("messages", 1)
    messages = INVOICE(id=1), REMINDER(reason="late")
    fake.produce("messages", *(protobuf_value(client, message) for message in messages), partition=0)
