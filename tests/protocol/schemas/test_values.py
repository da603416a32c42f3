"""Columns of framed values: Confluent's serialiser writes them, with ids of several schemas of a registry."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import protocol
from protocol.errors import ConfigurationError, KafkaError, RegistryFailed
from protocol.schemas import avro_language
from protocol.schemas.avro_schema import parse_avro
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.values import ColumnDecoder
from protocol.testing import FakeKafka
from protocol.testing.schema_registry import FakeSchemaRegistry
from tests.protocol.schemas.conftest import SUBJECT, decoded, decoder, header_column, id_to_header

FIRST: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND: dict[str, Any] = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}
THIRD = {**FIRST, "fields": [*reversed(SECOND["fields"]), {"name": "paid", "type": "boolean", "default": True}]}
Serialize = Any


@pytest.fixture
def serialize(server: FakeSchemaRegistry) -> Serialize:
    """Return `serialize(schema, value, headers, to_header)`: Confluent's bytes; it registers the schema."""
    client = SchemaRegistryClient({"url": server.url})

    def write(
        schema: Any, value: Any, headers: list[Any] | None = None, to_header: Any = header_schema_id_serializer
    ) -> bytes:
        conf = {"auto.register.schemas": True}
        if headers is not None:
            conf["schema.id.serializer"] = to_header
        serializer = AvroSerializer(client, json.dumps(schema), conf=conf)
        made = serializer(value, SerializationContext("orders", MessageField.VALUE, headers))
        assert made is not None
        return made

    return write


def decode(registry: SchemaRegistry, *values: bytes | None, **more: Any) -> tuple[list[Any], list[str]]:
    """Return the values, resolved to the latest version, and the errors of those that are invalid."""
    return decoded(decoder("confluent-avro", registry, **more), values)


def test_values_of_all_versions_are_resolved_to_the_readers(serialize: Serialize, registry: SchemaRegistry) -> None:
    values = [
        *(serialize(FIRST, {"id": 1}), serialize(SECOND, {"id": 2, "note": "two"}), None),
        *(serialize(THIRD, {"note": None, "id": 3, "paid": False}), serialize(FIRST, {"id": 4})),
    ]
    rows = [(None, 1, True), ("two", 2, True), None, (None, 3, False), (None, 4, True)]
    names = ("note", "id", "paid")
    assert decode(registry, *values) == ([row and dict(zip(names, row, strict=True)) for row in rows], [])


def test_invalid_values_are_null_and_reported(serialize: Serialize, registry: SchemaRegistry) -> None:
    good = serialize(SECOND, {"id": 7, "note": "x"})
    no_ids = b"", b"\0\0\0", b'{"id": 7}', b"\0\xff\xff\xff\xff\2"
    values = [good, *no_ids, good[:-1], good + b"\0", struct.pack(">bI", 0, 99) + b"\2", good]
    rows, errors = decode(registry, *values)
    assert rows == [{"id": 7, "note": "x"}, *[None] * 7, {"id": 7, "note": "x"}]
    assert errors == [
        *["it does not begin with a zero byte and a schema id"] * 4,
        "schema id 1, field note: a length that exceeds the value",
        "schema id 1: bytes are left behind the value",
        "schema id 99: the registry does not have it",
    ]


def test_incompatible_writer_makes_its_values_invalid(
    serialize: Serialize, registry: SchemaRegistry, server: FakeSchemaRegistry
) -> None:
    old = serialize(FIRST, {"id": 1})
    server.register(SUBJECT, json.dumps({**FIRST, "fields": [{"name": "id", "type": "string"}]}))
    error = "schema id 1: incompatible Avro schemas: id is long in the writer's schema, string in the reader's"
    assert decode(registry, old) == ([None], [error])


def test_registry_that_is_away_fails_instead_of_making_values_invalid(
    serialize: Serialize, registry: SchemaRegistry, server: FakeSchemaRegistry
) -> None:
    value = serialize(FIRST, {"id": 1})
    both = decoder("confluent-avro", registry)
    server.stop()
    with pytest.raises(RegistryFailed, match="does not respond to the request for the schema with the id 1"):
        decoded(both, [value])
    server.start()
    assert decoded(both, [value]) == ([{"id": 1}], [])


def test_ids_and_guids_in_headers_are_read_beside_ids_in_values(
    serialize: Serialize, registry: SchemaRegistry, server: FakeSchemaRegistry
) -> None:
    headers: list[list[Any]] = [[], [("x", b"y")], [], []]
    # Confluent's deserialiser refuses values of less than six bytes.
    expected = [{"id": 1 << 40}, {"id": 2, "note": "two more"}, {"id": 3, "note": "three"}, {"id": 4, "note": "fourth"}]
    schemas, places = (FIRST, SECOND, SECOND, SECOND), (headers[0], headers[1], None, headers[3])
    forms = (header_schema_id_serializer, id_to_header, None, header_schema_id_serializer)
    values = pa.array([serialize(*fields) for fields in zip(schemas, expected, places, forms, strict=True)])
    sizes = [[len(value) for key, value in header if key != "x"] for header in headers]
    assert sizes == [[17], [5], [], [17]]
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": server.url}))
    judged = [
        deserialize(value, SerializationContext("orders", MessageField.VALUE, header))
        for value, header in zip(values.to_pylist(), headers, strict=True)
    ]
    assert judged == expected
    inputs = header_column(headers)
    for first in (0, 1):
        column, invalid = decoder("confluent-avro", registry).decode(values.slice(first), inputs.slice(first))
        assert (column.to_pylist(), invalid) == ([{"note": None, **row} for row in expected[first:]], [])


@pytest.mark.parametrize(
    ("header", "errors"),
    [
        (b"\0\0\0\0\x63", ["schema id 99: the registry does not have it"]),
        (b"\0\0\0\0\1\0", ["schema id 1: the header has more bytes than a schema's id or GUID"]),
        *((short, []) for short in (b"", b"\0\0\0\1", b"\1" + bytes(15), b"\2" + bytes(16))),
    ],
)
def test_header_without_a_known_schema(
    serialize: Serialize, registry: SchemaRegistry, header: bytes, errors: list[str]
) -> None:
    """Headers that are neither an id nor a GUID do not count: the value has its prefix."""
    values = pa.array([serialize(FIRST, {"id": 1})])
    column, invalid = decoder("confluent-avro", registry).decode(
        values, header_column([[("__value_schema_id", header)]])
    )
    assert (column.to_pylist(), [str(failure) for failure in invalid]) == ([None if errors else {"id": 1}], errors)


def test_bytes_behind_ids_in_headers_that_differ_in_each_record_are_not_kept(
    serialize: Serialize, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialize(FIRST, {"id": 1})
    parsed: list[str] = []
    monkeypatch.setattr(avro_language, "parse_avro", lambda *texts: parsed.append("") or parse_avro(*texts))
    headers = header_column([[("__value_schema_id", struct.pack(">bII", 0, 1, number))] for number in range(40)])
    records = decoder("confluent-avro", registry)
    parsed.clear()
    column = pa.array([b"\2"] * 40)
    _, invalid = records.decode(column, headers)
    assert [failure.reason for failure in invalid] == ["the header has more bytes than a schema's id or GUID"] * 40
    names, untyped = records.type_names(column, headers)
    assert names.null_count == len(untyped) == 40
    assert parsed == []
    assert not records._decoders
    assert not records._writer_names


def test_configuration_error_of_the_registry_is_no_invalid_value(
    serialize: Serialize, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a secret that this executor lacks: the values may be valid."""
    value = serialize(FIRST, {"id": 1})

    def fail(schema_id: int) -> Any:
        raise ConfigurationError("the variable TOKEN is not set")

    monkeypatch.setattr(registry, "by_id", fail)
    with pytest.raises(ConfigurationError, match="TOKEN"):
        decode(registry, value)


def test_selected_fields_are_decoded_alone(serialize: Serialize, registry: SchemaRegistry) -> None:
    value = serialize(THIRD, {"note": "n", "id": 3, "paid": False})
    assert decode(registry, value, fields=("paid", "id")) == ([{"id": 3, "paid": False}], [])
    fixed = ReaderSchema("avro", json.dumps(THIRD), fields=("paid", "id"))
    assert decoded(ColumnDecoder(fixed), [b"\2\4no\16\1"]) == ([{"paid": True, "id": 7}], [])


def test_invalid_value_without_schema_id_points_to_the_writers_schema() -> None:
    _, (error,) = decoded(ColumnDecoder(ReaderSchema("avro", '"string"')), [b"\x08ab"])
    assert error == "a length that exceeds the value; the schema probably differs from the writer's"


def test_columns_are_decoded_and_encoded_without_pandas() -> None:
    """Arrow's own conversions import it at their first call: 0.3 s and 50 MB in each worker of Spark."""
    code = """
import sys
import numpy as np
import pyarrow as pa
from protocol.records.arrow_numpy import nullable_binaries, to_arrow
from protocol.schemas.encoding import encode
from protocol.schemas.formats import language_of
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.values import ColumnDecoder, with_union_types

union = '[{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "string"}}]}]'
decoder = ColumnDecoder(with_union_types(ReaderSchema("avro", union)))
column = nullable_binaries([b"\\0\\2\\2a\\0", None])
assert decoder.type_names(column)[0].to_pylist() == ["R", None]
assert decoder.decode(column)[0].to_pylist() == [{"R": {"a": ["a"]}}, None]

texts = nullable_binaries([b"a", None]).cast(pa.string())
lists = pa.ListArray.from_arrays(to_arrow(np.array([0, 1, 1], np.int32)), texts[:1])
names = ["id", "text", "list", "yes"]
arrays = [to_arrow(np.array([1, 2])), texts, lists, texts.is_valid()]
kind = pa.struct(list(zip(names, [array.type for array in arrays])))
for validity in (None, pa.py_buffer(b"\\1")):
    column = pa.Array.from_buffers(kind, 2, [validity], children=arrays)
    for format in ("avro", "json", "protobuf"):
        language = language_of(format)
        writer, _ = language.writer(language.text_of(kind), {}, None, kind)
        assert encode(writer, column, b"prefix").null_count == (validity is not None)
print("pandas" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("False\n", "")


# -- protocol.read ----------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as running:
        running.create_topic("orders", 1)
        yield running


def properties(broker: FakeKafka, server: FakeSchemaRegistry) -> dict[str, object]:
    return {"bootstrap.servers": broker.bootstrap_servers, "schema.registry.url": server.url}


def write(broker: FakeKafka, values: Sequence[bytes | None]) -> None:
    table = pa.table({"value": pa.array(values, pa.binary()), "key": [b"k"] * len(values)})
    protocol.write({"bootstrap.servers": broker.bootstrap_servers}, "orders", table)


def test_topic_is_read_with_decoded_values(serialize: Serialize, server: FakeSchemaRegistry, broker: FakeKafka) -> None:
    write(broker, [serialize(FIRST, {"id": 1}), None, serialize(SECOND, {"id": 2, "note": "x"})])
    reader = protocol.read(
        properties(broker, server), "orders", columns=["value", "key"], value_format="confluent-avro",
        key_format="string", value_fields=["id"],
    )  # fmt: skip
    table = reader.read_all()
    assert table.schema.field("value").type == pa.struct([pa.field("id", pa.int64(), nullable=False)])
    assert table.column("value").to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert table.column("key").to_pylist() == ["k"] * 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"value_format": "avro"}, "the format avro needs a schema"),
        ({"value_format": "confluent-avro"}, "orders-value with the status 404"),
        ({"value_format": "confluent-avro", "value_subject": "x"}, "subject x with the status 404"),
    ],
)
def test_read_without_a_schema_is_refused(
    server: FakeSchemaRegistry, broker: FakeKafka, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(KafkaError, match=message):
        protocol.read(properties(broker, server), "orders", **more)
