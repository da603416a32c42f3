"""Types of JSON Schemas, and values that Confluent's serialiser has written with them."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema as ConfluentSchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from protocol.errors import ConfigurationError
from protocol.schemas.json_schema import arrow_type, parse_json_schema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.values import ColumnDecoder, choose_schema
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.task.row_schema import spark_type
from tests.protocol.schemas.conftest import decoded

STRING, INTEGER, NUMBER = ({"type": name} for name in ("string", "integer", "number"))


def text_of(kind: pa.DataType) -> str:
    """Return the type as Spark writes it."""
    from pyspark.sql.types import StructField

    field = {"name": "a", "type": spark_type(kind), "nullable": True, "metadata": {}}
    return StructField.fromJson(field).dataType.simpleString()


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (STRING, "string"),
        (INTEGER, "bigint"),
        ({"type": "integer", "connect.type": "int32"}, "int"),
        (NUMBER, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "null"}, "void"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "uuid"}, "string"),
        ({"type": "string", "contentEncoding": "base64"}, "binary"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"type": ["integer", "number"]}, "double"),
        ({"oneOf": [{"type": "null"}, INTEGER]}, "bigint"),
        ({"anyOf": [INTEGER, {"type": "null"}]}, "bigint"),
        ({"oneOf": [STRING, INTEGER]}, "string"),
        ({"type": "array", "items": INTEGER}, "array<bigint>"),
        ({"type": "array"}, "array<string>"),
        ({"items": STRING}, "array<string>"),
        ({"type": "array", "prefixItems": [INTEGER, NUMBER], "items": False}, "array<double>"),
        ({"type": "array", "items": [INTEGER, STRING]}, "array<string>"),
        ({"type": "object", "properties": {"a": INTEGER, "b": STRING}}, "struct<a:bigint,b:string>"),
        ({"properties": {"a": {"properties": {"b": STRING}}}}, "struct<a:struct<b:string>>"),
        ({"type": "object", "additionalProperties": INTEGER}, "map<string,bigint>"),
        ({"type": "object", "patternProperties": {"^x": NUMBER}}, "map<string,double>"),
        ({"patternProperties": {"^x": INTEGER}, "unevaluatedProperties": NUMBER}, "map<string,double>"),
        ({"type": "object"}, "map<string,string>"),
        ({"enum": ["NEW", "PAID"]}, "string"),
        ({"enum": [1, 2, None]}, "bigint"),
        ({"enum": [1, "x"]}, "string"),
        ({"const": True}, "boolean"),
        ({"const": 1.5}, "double"),
        ({"allOf": [{"properties": {"a": STRING}}, {"properties": {"b": NUMBER}}]}, "struct<a:string,b:double>"),
        ({"allOf": [{"type": "array"}, {"type": "array", "items": INTEGER}]}, "array<bigint>"),
        ({"allOf": [{"items": NUMBER}, {"items": INTEGER}]}, "array<bigint>"),
        ({"allOf": [{"items": {"properties": {"a": STRING}}}, {"items": {"properties": {"b": INTEGER}}}]},
         "array<struct<a:string,b:bigint>>"),
        ({"allOf": [{"type": "object"}, {"type": "object", "additionalProperties": INTEGER}]}, "map<string,bigint>"),
        ({"$ref": "#/$defs/A", "items": INTEGER, "$defs": {"A": {"type": "array"}}}, "array<bigint>"),
        ({"allOf": [STRING, {"type": "string", "format": "date"}]}, "date"),
        ({"allOf": [{"type": "number", "connect.type": "float32"}, INTEGER]}, "bigint"),
        ({"oneOf": [{"properties": {"a": STRING}, "required": ["b"]}, {"properties": {"a": STRING}}]},
         "struct<a:string>"),
        ({"type": "object", "properties": {"a": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
         "struct<a:string>"),
        ({}, "string"),
        (True, "string"),
        ({"$ref": "#/definitions/A", "definitions": {"A": INTEGER}}, "bigint"),
        ({"properties": {"a": {"$ref": "#/$defs/A~1B"}}, "$defs": {"A/B": NUMBER}}, "struct<a:double>"),
        ({"properties": {"a": {"$ref": "#x"}}, "$defs": {"A": {"$anchor": "x", "type": "number"}}}, "struct<a:double>"),
        ({"$id": "http://x/y.json", "properties": {"a": {"$ref": "z.json#/$defs/B"}},
          "$defs": {"A": {"$id": "z.json", "$defs": {"B": NUMBER}}}}, "struct<a:double>"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "#/$defs/A"}}, "$defs": {"A": NUMBER}},
         "struct<a:double,b:double>"),
        ({"type": "object", "properties": {"a": {"$ref": "other.json"}}}, "struct<a:bigint>"),
        ({"type": "object", "properties": {"a": {"$ref": "nested.json#/definitions/N"}}}, "struct<a:struct<o:bigint>>"),
    ],
)  # fmt: skip
def test_schema_has_a_type_of_spark(schema: Any, expected: str) -> None:
    further = {
        "other.json": json.dumps(INTEGER),
        "nested.json": json.dumps({"definitions": {"N": {"properties": {"o": {"$ref": "other.json"}}}}}),
    }
    assert text_of(arrow_type(parse_json_schema(json.dumps(schema), further))) == expected


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "the JSON Schema is not JSON"),
        ("[]", "neither an object nor a boolean"),
        ({"type": "text"}, 'has the unknown type \\["text"\\]'),
        ({"properties": {"a": {"properties": {"b": {"type": 1}}}}}, r"field a\.b, has the unknown type 1"),
        ({"properties": {"a": {"$ref": "#"}}}, "field a, contains a type in itself"),
        ({"properties": {"a": {"$ref": "#/definitions/A"}},
          "definitions": {"A": {"items": {"$ref": "#/definitions/A"}}}}, r"field a\[\], contains a type in itself"),
        ({"properties": {"a": {"$ref": "#/definitions/A"}}}, "field a, refers to '#/definitions/A', which the schema"),
        ({"properties": {"a": {"$ref": "b.json"}}}, "field a, refers to 'b.json', which is no reference"),
        ({"allOf": [STRING, INTEGER]}, "is to have several types at once: integer, string"),
        ({"properties": {"a": {"allOf": [{"items": STRING}, {"items": INTEGER}]}}},
         r"field a\[\], is to have several types at once: integer, string"),
        ({"allOf": [{"type": "object", "additionalProperties": schema} for schema in (STRING, INTEGER)]},
         r"field \[\], is to have several types at once: integer, string"),
        ({"properties": {"a": {"allOf": [{**STRING, "format": name} for name in ("date", "date-time")]}}},
         r"field a, is to have several types at once: date32\[day\], timestamp"),
        ({"properties": {"a": {"allOf": [{"enum": ["x", "y"]}, {"enum": ["z"]}]}}},
         "field a, has no value that all of its schemas allow"),
        ({"$id": "http://[x", "properties": {"a": {"$ref": "b"}}}, "has an .id or .ref that is no URI: Invalid IPv6"),
        ({"properties": {"a": 1}}, "field a, is no schema: 1"),
        ({"oneOf": []}, "has oneOf without schemas"),
    ],
)  # fmt: skip
def test_schema_without_a_type_is_refused_with_its_path(schema: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_json_schema(schema if isinstance(schema, str) else json.dumps(schema))


def test_hostile_schemas_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"items": deep}
    with pytest.raises(ConfigurationError, match="is nested deeper than 64 types"):
        parse_json_schema(json.dumps(deep))
    doubling: dict[str, Any] = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {
        f"d{n}": {"properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "lr"}}
        for n in range(25)}}  # fmt: skip
    doubling["$defs"]["d25"] = STRING
    with pytest.raises(ConfigurationError, match="is one of more than 10000 types"):
        parse_json_schema(json.dumps(doubling))


def test_words_of_all_schemas_of_allof_are_kept() -> None:
    parsed = parse_json_schema(
        json.dumps(
            {
                "properties": {"a": {"enum": ["x", "y", "z"]}, "b": INTEGER, "c": INTEGER},
                "required": ["c"],
                "allOf": [{"required": ["a"]}, {"properties": {"a": {"enum": ["z", "y", "w"]}}}],
                "anyOf": [{"required": ["b", "c"]}, {"required": ["c"]}],
            }
        )
    )
    assert {field.name: set(field.type.values) for field in parsed.fields} == {"a": {"y", "z"}, "b": set(), "c": set()}
    assert parsed.required == {"a", "c"}


# -- values of a registry ---------------------------------------------------------------------

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": INTEGER,
        "at": {"type": "string", "format": "date-time"},
        "note": {"oneOf": [{"type": "null"}, STRING]},
        "to": {"$ref": "address.json"},
        "tags": {"type": "object", "additionalProperties": INTEGER},
    },
    "required": ["id"],
}
ADDRESS = {"$id": "address.json", "type": "object", "properties": {"city": STRING}}


def test_values_of_confluents_serializer_are_read(server: FakeSchemaRegistry, registry: SchemaRegistry) -> None:
    server.register("address", json.dumps(ADDRESS), "JSON")
    client = SchemaRegistryClient({"url": server.url})
    schema = ConfluentSchema(json.dumps(ORDER), "JSON", [SchemaReference("address.json", "address", 1)])
    serializer = JSONSerializer(schema, client, conf={"auto.register.schemas": True})
    written = [
        {"id": 1, "at": "2026-01-31T12:00:00Z", "note": None, "to": {"city": "Kiel"}, "tags": {"a": 1}},
        {"id": 2, "note": "x"},
    ]
    context = SerializationContext("orders", MessageField.VALUE)
    values = [*(serializer(value, context) for value in written), None, b'{"id": 1}']
    reader = choose_schema("confluent-json", registry, "orders-value")
    assert text_of(reader.type) == (
        "struct<id:bigint,at:timestamp,note:string,to:struct<city:string>,tags:map<string,bigint>>"
    )
    at = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert decoded(ColumnDecoder(reader, registry), values) == (
        [
            {"id": 1, "at": at, "note": None, "to": {"city": "Kiel"}, "tags": [("a", 1)]},
            {"id": 2, "at": None, "note": "x", "to": None, "tags": None},
            *(None, None),
        ],
        ["it does not begin with a zero byte and a schema id"],
    )
