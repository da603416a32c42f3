"""Columns of framed Protobuf messages: Confluent's serialiser writes them, with ids of several schemas."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2

import protocol
from protocol.errors import ConfigurationError
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.registry_config import parse_registry
from protocol.schemas.values import ColumnDecoder, registered
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.schema_registry import FakeSchemaRegistry
from tests.protocol.schemas.protobuf_samples import as_column, message_class, text_of
from tests.support.protobuf_messages import Field, message_type

SUBJECT = "orders-value"
FIRST = message_type({"id": (1, Field.TYPE_INT64)})
SECOND = message_type({"note": (2, Field.TYPE_STRING), "id": (1, Field.TYPE_INT64)})
OTHER = message_type({"id": (1, Field.TYPE_INT64)}, "Refund", before=["First"])
Serialize = Callable[..., bytes]


@pytest.fixture
def server() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry("NONE") as registry:
        yield registry


@pytest.fixture
def registry(server: FakeSchemaRegistry) -> SchemaRegistry:
    config = parse_registry({"schema.registry.url": server.url, "schema.registry.max.retries": 0})
    assert config is not None
    return SchemaRegistry(config, ManualClock())


@pytest.fixture
def serialize(server: FakeSchemaRegistry) -> Serialize:
    """Return `serialize(message, headers)`: Confluent's bytes; it registers the schema."""
    client = SchemaRegistryClient({"url": server.url})

    def write(message: Any, headers: list[Any] | None = None) -> bytes:
        conf: dict[str, Any] = {"use.deprecated.format": False}
        if headers is not None:
            conf["schema.id.serializer"] = header_schema_id_serializer
        serializer = ProtobufSerializer(type(message), client, conf)
        made = serializer(message, SerializationContext("orders", MessageField.VALUE, headers))
        assert made is not None
        return made

    return write


def decoder(registry: SchemaRegistry, message: str | None = None, **more: Any) -> ColumnDecoder:
    schema = registered("confluent-protobuf", registry, registry.version(SUBJECT))
    return ColumnDecoder(ReaderSchema(**{**vars(schema), "protobuf": ProtobufSettings(message), **more}), registry)


def column(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def test_messages_of_all_versions_are_read_by_number(serialize: Serialize, registry: SchemaRegistry) -> None:
    values = [serialize(FIRST(id=1)), None, serialize(SECOND(id=2, note="two")), serialize(FIRST(id=3))]
    decoded, invalid = decoder(registry).decode(column(values))
    assert invalid == []
    assert decoded.to_pylist() == [{"note": None, "id": 1}, None, {"note": "two", "id": 2}, {"note": None, "id": 3}]


def test_message_indexes_select_the_message(serialize: Serialize, registry: SchemaRegistry) -> None:
    refund = serialize(OTHER(id=5))
    # The first message has the short form of [0]; this one is [1].
    assert refund[5:7] == b"\x02\x02"
    first = refund[:5] + b"\0" + b"\x08\x07"
    long_form = refund[:5] + b"\x02\0" + b"\x08\x08"
    decoded, invalid = decoder(registry, "Refund").decode(column([refund, first, long_form, refund]))
    assert decoded.to_pylist() == [{"id": 5}, None, None, {"id": 5}]
    assert [str(failure) for failure in invalid] == ["schema id 1: its message is shop.First, not shop.Refund"] * 2
    decoded, invalid = decoder(registry).decode(column([refund, first, long_form]))
    assert decoded.to_pylist() == [None, {"x": 7}, {"x": 8}]
    assert [str(failure) for failure in invalid] == ["schema id 1: its message is shop.Refund, not shop.First"]


NESTED = """
syntax = "proto3"; package shop;
message Order { Item first = 1; message Item { int64 id = 1; } }
message Refund { Item first = 1; message Item { int64 id = 1; } }
"""


def test_message_of_the_same_name_in_another_message_is_refused(
    registry: SchemaRegistry, server: FakeSchemaRegistry
) -> None:
    prefix = struct.pack(">bI", 0, server.register(SUBJECT, NESTED, "PROTOBUF"))
    values = [prefix + indexes + b"\x08\x07" for indexes in (b"\4\0\0", b"\4\2\0")]
    decoded, invalid = decoder(registry, "Order.Item").decode(column(values))
    assert decoded.to_pylist() == [{"id": 7}, None]
    assert [str(failure) for failure in invalid] == [
        "schema id 1: its message is shop.Refund.Item, not shop.Order.Item"
    ]


INTEGERS = ["int32", "int64", "uint32", "uint64", "bool"]


@pytest.mark.parametrize(
    ("old", "new"), [*itertools.permutations(INTEGERS, 2), ("sint32", "sint64"), ("sint64", "sint32")]
)
def test_integer_of_another_size_is_converted_as_by_the_protobuf_package(
    registry: SchemaRegistry, server: FakeSchemaRegistry, old: str, new: str
) -> None:
    writer, reader = (message_type({"a": (1, getattr(Field, f"TYPE_{name.upper()}"))}) for name in (old, new))
    numbers = [0, 1, 5, 2**31 - 1, -(2**31), -1, 2**31, 2**32 - 1, 2**32, 2**40 + 5, 2**63 - 1, -(2**63), 2**64 - 1]
    messages = []
    for number in numbers:
        with contextlib.suppress(ValueError):
            messages.append(writer(a=bool(number) if old == "bool" else number).SerializeToString())
    prefix = b"\0\0\0\0\1\0"
    for kind in (old, new):
        text = f'syntax = "proto3"; package shop; message Order {{ {kind} a = 1; }}'
        server.register(SUBJECT, text, "PROTOBUF")
    decoded, invalid = decoder(registry).decode(column([prefix + message for message in messages]))
    assert invalid == []
    assert decoded.to_pylist() == [as_column(reader.FromString(message)) for message in messages]


def test_fields_that_become_a_oneof_keep_the_last_one_as_in_the_protobuf_package(
    registry: SchemaRegistry, server: FakeSchemaRegistry
) -> None:
    text = 'syntax = "proto3"; package shop; message Order { %s }'
    server.register(SUBJECT, text % "int32 a = 1; int32 b = 2;", "PROTOBUF")
    server.register(SUBJECT, text % "oneof choice { int32 a = 1; int32 b = 2; }", "PROTOBUF")
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.oneof_decl.add(name="choice")
    for number, name in enumerate("ab", 1):
        message.field.add(name=name, number=number, type=Field.TYPE_INT32, label=1, oneof_index=0)
    reader = message_class(file, "shop.Order")
    messages = [b"\x08\1\x10\2", b"\x10\2\x08\1", b"\x08\1", b"\x10\0"]
    decoded, invalid = decoder(registry).decode(column([b"\0\0\0\0\1\0" + message for message in messages]))
    assert invalid == []
    assert decoded.to_pylist() == [as_column(reader.FromString(message)) for message in messages]
    assert decoded.to_pylist()[0] == {"a": None, "b": 2}


@pytest.mark.parametrize(
    ("remainder", "reason"),
    [
        (b"", "its message indexes are truncated"),
        (b"\x80", "its message indexes are truncated"),
        (b"\x02", "its message indexes are truncated"),
        (b"\x01", "its message indexes are truncated"),
        (b"\xff" * 400, "its message indexes are truncated"),
        (b"\x02\x12", "its message is number [9], which its schema does not have, not shop.Order"),
        (b"\0\x08", "the value ends in the middle of the field"),
        (b"\0\x13\x13\x14", "a group without its end"),
    ],
)
def test_invalid_message_is_reported(
    serialize: Serialize, registry: SchemaRegistry, remainder: bytes, reason: str
) -> None:
    good = serialize(FIRST(id=1))
    decoded, invalid = decoder(registry).decode(column([good, good[:5] + remainder, good]))
    assert decoded.to_pylist() == [{"id": 1}, None, {"id": 1}]
    assert [str(failure) for failure in invalid] == [f"schema id 1: {reason}"]


def test_field_that_changed_its_type_makes_messages_invalid(serialize: Serialize, registry: SchemaRegistry) -> None:
    values = [serialize(FIRST(id=1)), serialize(message_type({"id": (1, Field.TYPE_STRING)})(id="x"))]
    decoded, invalid = decoder(registry).decode(column(values))
    assert decoded.to_pylist() == [None, {"id": "x"}]
    assert [str(failure) for failure in invalid] == [
        "schema id 1: incompatible Protobuf schemas: id, with the number 1, is int64 in the writer's schema, string in "
        "the reader's"
    ]


def test_imported_messages_are_read(serialize: Serialize, registry: SchemaRegistry) -> None:
    address = message_type({"city": (1, Field.TYPE_STRING)}, "Address")
    order = message_type(
        {"to": (1, ".shop.Address"), "at": (2, ".google.protobuf.Timestamp")},
        imports=[address, timestamp_pb2.Timestamp],
    )
    message = order(at={"seconds": 1})
    message.to.city = "Kiel"
    value = serialize(message)
    decoded, invalid = decoder(registry).decode(column([value]))
    assert invalid == []
    assert decoded.field("to").to_pylist() == [{"city": "Kiel"}]
    assert decoded.field("at").cast(pa.int64()).to_pylist() == [1_000_000]


def test_text_of_a_registry_is_parsed(registry: SchemaRegistry, server: FakeSchemaRegistry) -> None:
    address = 'syntax = "proto3"; package shop; message Address { string city = 1; }'
    server.register("address", address, "PROTOBUF")
    text = 'syntax = "proto3"; package shop; import "address.proto"; '
    text += "message Order { Address to = 1; optional int32 n = 2; }"
    references = [{"name": "address.proto", "subject": "address", "version": 1}]
    schema_id = server.register(SUBJECT, text, "PROTOBUF", references)
    value = struct.pack(">bI", 0, schema_id) + b"\0\x0a\x06\x0a\x04Kiel\x10\0"
    decoded, invalid = decoder(registry).decode(column([value]))
    assert (decoded.to_pylist(), invalid) == ([{"to": {"city": "Kiel"}, "n": 0}], [])


def test_missing_message_is_refused(serialize: Serialize, registry: SchemaRegistry) -> None:
    serialize(FIRST(id=1))
    with pytest.raises(ConfigurationError, match="has no message Bill; it has shop"):
        decoder(registry, "Bill")


IMPORTING = 'syntax = "proto3"; package shop; import "a.proto"; message Order { Address to = 1; }'
IMPORTED = 'syntax = "proto3"; package shop; message Address { string city = 1; }'


@pytest.mark.parametrize("name", ["Address", "shop.Address", "google.protobuf.Timestamp", "Order.TagsEntry"])
def test_message_of_an_imported_file_is_refused(name: str) -> None:
    text = IMPORTING.replace("message Order {", 'import "google/protobuf/timestamp.proto"; message Order {'
                             " google.protobuf.Timestamp at = 2; map<string, string> tags = 3;")  # fmt: skip
    for format in ("protobuf", "confluent-protobuf"):
        schema = ReaderSchema(format, text, (("a.proto", IMPORTED),), protobuf=ProtobufSettings(name))  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=f"has no message {name}; it has shop.Order$"):
            _ = schema.type


def test_message_of_any_file_in_a_set_of_descriptors_is_read() -> None:
    """As by `from_protobuf`."""
    address = message_type({"city": (1, Field.TYPE_STRING)}, "Address")
    order = message_type({"to": (1, ".shop.Address")}, imports=[address])
    files = []
    for message in (address, order):
        files.append(descriptor_pb2.FileDescriptorProto())
        message.DESCRIPTOR.file.CopyToProto(files[-1])
    schema = ReaderSchema("protobuf", text_of(*files), protobuf=ProtobufSettings("Address"))
    decoded, invalid = ColumnDecoder(schema).decode(column([address(city="Kiel").SerializeToString()]))
    assert (decoded.to_pylist(), invalid) == ([{"city": "Kiel"}], [])


def test_topic_is_read_with_decoded_messages(serialize: Serialize, server: FakeSchemaRegistry) -> None:
    refund = serialize(OTHER(id=5))
    with FakeKafka() as broker:
        broker.create_topic("orders", 1)
        protocol.write({"bootstrap.servers": broker.bootstrap_servers}, "orders", pa.table({"value": column([refund])}))
        properties = {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": server.url}
        settings = ProtobufSettings("Refund")
        reader = protocol.read(
            properties, "orders", columns=["value"], value_format="confluent-protobuf", protobuf=settings
        )
        assert reader.read_all().column("value").to_pylist() == [{"id": 5}]
