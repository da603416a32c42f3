"""Columns of framed Protobuf messages: Confluent's serialiser writes them, with ids of several schemas."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, timestamp_pb2

from protocol.errors import ConfigurationError
from protocol.schemas import protobuf_language, values
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.schemas.protobuf_source import parse_protobuf
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.values import ColumnDecoder
from protocol.testing.schema_registry import FakeSchemaRegistry
from tests.protocol.schemas.conftest import SUBJECT, decoded, decoder, header_column, id_to_header
from tests.protocol.schemas.protobuf_samples import as_column, message_class, text_of
from tests.support.protobuf_messages import Field, message_type

FIRST = message_type({"id": (1, Field.TYPE_INT64)})
SECOND = message_type({"note": (2, Field.TYPE_STRING), "id": (1, Field.TYPE_INT64)})
OTHER = message_type({"id": (1, Field.TYPE_INT64)}, "Refund", before=["First"])
IMPORTING = 'syntax = "proto3"; package shop; import "a.proto"; message Order { Address to = 1; }'
IMPORTED = 'syntax = "proto3"; package shop; message Address { string city = 1; }'
Serialize = Callable[..., bytes]


@pytest.fixture
def server() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry("NONE") as registry:
        yield registry


@pytest.fixture
def serialize(server: FakeSchemaRegistry) -> Serialize:
    """Return `serialize(message, headers, to_header)`: Confluent's bytes; it registers the schema."""
    client = SchemaRegistryClient({"url": server.url})

    def write(message: Any, headers: list[Any] | None = None, to_header: Any = header_schema_id_serializer) -> bytes:
        conf: dict[str, Any] = {"use.deprecated.format": False}
        if headers is not None:
            conf["schema.id.serializer"] = to_header
        serializer = ProtobufSerializer(type(message), client, conf)
        made = serializer(message, SerializationContext("orders", MessageField.VALUE, headers))
        assert made is not None
        return made

    return write


def decode(registry: SchemaRegistry, *values: bytes | None, message: str | None = None) -> tuple[list[Any], list[str]]:
    """Return the values, as messages of the latest version, and the errors of those that are invalid."""
    return decoded(decoder("confluent-protobuf", registry, protobuf=ProtobufSettings(message)), values)


def test_messages_of_all_versions_are_read_by_number(serialize: Serialize, registry: SchemaRegistry) -> None:
    values = [serialize(FIRST(id=1)), None, serialize(SECOND(id=2, note="two")), serialize(FIRST(id=3))]
    rows = [{"note": None, "id": 1}, None, {"note": "two", "id": 2}, {"note": None, "id": 3}]
    assert decode(registry, *values) == (rows, [])


def test_message_indexes_select_the_message(serialize: Serialize, registry: SchemaRegistry) -> None:
    refund = serialize(OTHER(id=5))
    # The first message has the short form of [0]; this one is [1].
    assert refund[5:7] == b"\x02\x02"
    first = refund[:5] + b"\0" + b"\x08\x07"
    long_form = refund[:5] + b"\x02\0" + b"\x08\x08"
    assert decode(registry, refund, first, long_form, refund, message="Refund") == (
        [{"id": 5}, None, None, {"id": 5}],
        ["schema id 1: its message is shop.First, not shop.Refund"] * 2,
    )
    assert decode(registry, refund, first, long_form) == (
        [None, {"x": 7}, {"x": 8}],
        ["schema id 1: its message is shop.Refund, not shop.First"],
    )


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
    error = "schema id 1: its message is shop.Refund.Item, not shop.Order.Item"
    assert decode(registry, *values, message="Order.Item") == ([{"id": 7}, None], [error])


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
    rows = [as_column(reader.FromString(message)) for message in messages]
    assert decode(registry, *(prefix + message for message in messages)) == (rows, [])


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
    rows = [as_column(reader.FromString(message)) for message in messages]
    assert rows[0] == {"a": None, "b": 2}
    assert decode(registry, *(b"\0\0\0\0\1\0" + message for message in messages)) == (rows, [])


@pytest.mark.parametrize(
    ("remainder", "reason"),
    [
        *((wrong, "its message indexes are truncated") for wrong in (b"", b"\x80", b"\2", b"\1", b"\xff" * 400)),
        (b"\x02\x12", "its message is number [9], which its schema does not have, not shop.Order"),
        (b"\0\x08", "the value ends in the middle of the field"),
        (b"\0\x13\x13\x14", "a group without its end"),
    ],
)
def test_invalid_message_is_reported(
    serialize: Serialize, registry: SchemaRegistry, remainder: bytes, reason: str
) -> None:
    good = serialize(FIRST(id=1))
    rows = [{"id": 1}, None, {"id": 1}]
    assert decode(registry, good, good[:5] + remainder, good) == (rows, [f"schema id 1: {reason}"])


def test_field_that_changed_its_type_makes_messages_invalid(serialize: Serialize, registry: SchemaRegistry) -> None:
    values = [serialize(FIRST(id=1)), serialize(message_type({"id": (1, Field.TYPE_STRING)})(id="x"))]
    types = "id, with the number 1, is int64 in the writer's schema, string in the reader's"
    error = f"schema id 1: incompatible Protobuf schemas: {types}"
    assert decode(registry, *values) == ([None, {"id": "x"}], [error])


def test_imported_messages_are_read(serialize: Serialize, registry: SchemaRegistry) -> None:
    address = message_type({"city": (1, Field.TYPE_STRING)}, "Address")
    order = message_type(
        {"to": (1, ".shop.Address"), "at": (2, ".google.protobuf.Timestamp")},
        imports=[address, timestamp_pb2.Timestamp],
    )
    message = order(at={"seconds": 1})
    message.to.city = "Kiel"
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
    assert decode(registry, serialize(message)) == ([{"to": {"city": "Kiel"}, "at": at}], [])


@pytest.mark.parametrize("to_header", [header_schema_id_serializer, id_to_header])
def test_number_of_the_message_is_read_behind_a_guid_or_an_id_in_a_header(
    serialize: Serialize, registry: SchemaRegistry, server: FakeSchemaRegistry, to_header: Any
) -> None:
    headers: list[Any] = []
    value = serialize(OTHER(id=1 << 40), headers, to_header)
    deserialize = ProtobufDeserializer(
        OTHER, {"use.deprecated.format": False}, SchemaRegistryClient({"url": server.url})
    )
    judged = deserialize(value, SerializationContext("orders", MessageField.VALUE, headers))
    assert judged == OTHER(id=1 << 40)
    column, invalid = decoder("confluent-protobuf", registry, protobuf=ProtobufSettings("Refund")).decode(
        pa.array([value]), header_column([headers])
    )
    assert (column.to_pylist(), invalid) == ([{"id": 1 << 40}], [])


def test_messages_in_headers_that_differ_in_each_record_are_neither_parsed_nor_kept(
    serialize: Serialize, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A padded number is the same message; a number that the schema does not have is none."""
    value = serialize(OTHER(id=7))
    prefix, payload = value[:5], value[5 + len(b"\2\2") :]
    padded = [b"\2" + b"\x82" + b"\x80" * size + b"\0" for size in range(40)]
    headers = [*padded, *(b"\2" + bytes((number,)) for number in range(4, 80, 2))]
    settings = ProtobufSettings("Refund")
    records = decoder("confluent-protobuf", registry, protobuf=settings)
    monkeypatch.setattr(values, "_MAX_WITH_MESSAGE", 8)
    parsed: list[str] = []
    monkeypatch.setattr(protobuf_language, "parse_protobuf", lambda *texts: parsed.append("") or parse_protobuf(*texts))
    inputs = header_column([[("__value_schema_id", prefix + header)] for header in headers])
    column, invalid = records.decode(pa.array([payload] * len(headers)), inputs)
    assert column.to_pylist() == [{"id": 7}] * 40 + [None] * 38
    assert {"does not have" in failure.reason for failure in invalid} == {True}
    assert len(parsed) <= 1
    assert len(records._decoders) <= 8


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
    assert decoded(ColumnDecoder(schema), [address(city="Kiel").SerializeToString()]) == ([{"city": "Kiel"}], [])
