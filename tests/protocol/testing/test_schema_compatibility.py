"""Compatibility of new versions in `FakeSchemaRegistry`, by the rules of Confluent's registry."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from protocol.errors import RegistryFailed
from protocol.schemas.registry import RegisteredSchema, SchemaRegistry
from protocol.schemas.registry_config import parse_registry
from protocol.testing import FakeSchemaRegistry

OLD_PROTO = """
    int64 id = 1; string name = 2; optional int32 age = 3; repeated int32 marks = 4; Kind kind = 5;
    map<string, int32> counts = 6; Part part = 7; oneof which { int32 a = 8; int32 b = 9; }
    message Part { int32 x = 1; }
    enum Kind { NONE = 0; }
"""
OLD_JSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string", "maxLength": 9},
        "kind": {"enum": ["a", "b"]},
        "either": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "tags": {"type": "array", "items": {"type": "integer"}},
        "part": {"$ref": "#/definitions/Part"},
    },
    "required": ["id"],
    "additionalProperties": False,
    "definitions": {"Part": {"type": "object", "properties": {"x": {}, "next": {"$ref": "#/definitions/Part"}}}},
}


def proto(body: str, head: str = 'syntax = "proto3"; package shop;') -> str:
    return f"{head} message Order {{ {textwrap.dedent(body)} }}"


def check(kind: str, old: str, new: str, level: str = "BACKWARD") -> list[str]:
    """Return the reasons why a registry refuses a new version."""
    with FakeSchemaRegistry(level) as server:
        server.register("s", old, kind)
        compatible, messages = client(server).compatible("s", RegisteredSchema(new, kind))
    assert compatible == (not messages)
    return messages


def client(server: FakeSchemaRegistry) -> SchemaRegistry:
    config = parse_registry({"schema.registry.url": server.url})
    assert config is not None
    return SchemaRegistry(config)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int64 id = 1;", "", ""),
        ("int64 id = 1;", "int64 id = 1; string more = 99;", ""),
        ("string name = 2;", "bytes other = 2;", ""),
        ("int64 id = 1;", "uint32 id = 1;", ""),
        ("Kind kind = 5;", "int32 kind = 5;", ""),
        ("repeated int32 marks = 4;", "int32 marks = 4;", ""),
        ("oneof which { int32 a = 8; int32 b = 9; }", "int32 a = 8; int32 b = 9;", ""),
        ("oneof which { int32 a = 8; int32 b = 9; }", "", ""),
        ("int64 id = 1;", "sint64 id = 1;", "Order.id changes from int64 to sint64"),
        ("int64 id = 1;", "Part id = 1;", "Order.id changes from int64 to message"),
        ("optional int32 age = 3;", "repeated int32 age = 3;", "Order.age changes from optional to repeated"),
        ("map<string, int32> counts = 6;", "map<string, string> counts = 6;", "Order.counts.value changes from int32"),
        ("{ int32 x = 1; }", "{ string x = 1; }", "Order.Part.x changes from int32 to string"),
        ("message Part", "message Piece { } message Part", ""),
        ("int32 a = 8; int32 b = 9; }", "int32 a = 8; }", "Order.b is removed from its oneof"),
    ],
)
def test_protobuf_versions_are_compared_by_field_number(old: str, new: str, reason: str) -> None:
    assert old in OLD_PROTO
    found = check("PROTOBUF", proto(OLD_PROTO), proto(OLD_PROTO.replace(old, new)))
    assert (found == []) if not reason else any(reason in each for each in found), found


def test_protobuf_oneof_takes_at_most_one_field_from_outside() -> None:
    old = "int32 a = 1; int32 b = 2; oneof o { int32 c = 3; }"
    assert check("PROTOBUF", proto(old), proto("oneof n { int32 a = 1; } int32 b = 2; oneof o { int32 c = 3; }")) == []
    for new in (
        "oneof n { int32 a = 1; int32 b = 2; } int32 c = 3;",
        "int32 a = 1; oneof o { int32 b = 2; int32 c = 3; }",
    ):
        (reason,) = check("PROTOBUF", proto(old), proto(new))
        assert "of shop.Order are moved to one oneof" in reason


def test_protobuf_packages_messages_and_required_fields_stay() -> None:
    two = proto("int32 x = 1;") + " message Refund { }"
    assert check("PROTOBUF", two, proto("int32 x = 1;")) == ["the message shop.Refund is removed"]
    assert check("PROTOBUF", two, proto("int32 x = 1;"), "FORWARD") == []
    other = proto("int32 x = 1;", 'syntax = "proto3"; package other;')
    assert check("PROTOBUF", proto("int32 x = 1;"), other) == ["the package changes from 'shop' to 'other'"]
    versions = [proto(body, 'syntax = "proto2";') for body in ("optional int32 x = 1;", "required int32 y = 2;")]
    assert check("PROTOBUF", *versions) == ["the required field Order.y is added"]
    assert check("PROTOBUF", *reversed(versions)) == ["the required field Order.y is removed"]


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("properties/more", {"type": "string"}, ""),
        ("properties/id", {"type": "number"}, ""),
        ("properties/id", {"title": "anything"}, ""),
        ("properties/id", {"type": ["integer", "null"]}, ""),
        ("properties/kind", {"enum": ["c", "b", "a"]}, ""),
        ("properties/either", {"oneOf": [{"type": "boolean"}, {"type": "string"}, {"type": "null"}]}, ""),
        ("properties/name", {"type": "string", "maxLength": 10}, ""),
        ("required", [], ""),
        ("additionalProperties", True, ""),
        ("properties/id", {"type": "string"}, "#/properties/id: the type changes from integer to string"),
        ("properties/id", None, "#/properties/id: removed, and the new version allows no other properties"),
        ("properties/kind", {"enum": ["a"]}, "#/properties/kind: values of an enum are removed"),
        ("properties/either", {"type": "string"}, "#/properties/either: a type of a union is removed or changed"),
        ("properties/name", {"type": "string", "maxLength": 8}, "#/properties/name/maxLength: is stricter"),
        ("properties/tags/items", {"type": "string"}, "#/properties/tags/items: the type changes"),
        ("required", ["id", "name"], "#/properties/name: becomes required, without a default"),
        ("definitions/Part/properties/x", {"type": "null"}, "#/properties/part/properties/x: the type changes"),
        ("definitions/Part/properties/y", {"type": "null"}, "part/properties/y: added, and the old version allows any"),
    ],
)
def test_json_versions_are_compared_by_property(path: str, value: Any, reason: str) -> None:
    new = json.loads(json.dumps(OLD_JSON))
    *above, last = path.split("/")
    place = new
    for word in above:
        place = place[word]
    if value is None:
        del place[last]
    else:
        place[last] = value
    found = check("JSON", json.dumps(OLD_JSON), json.dumps(new))
    assert (found == []) if not reason else any(reason in each for each in found), found


def test_json_property_is_added_as_required_only_with_a_default() -> None:
    def versions(**more: Any) -> list[str]:
        added = {**OLD_JSON["properties"], "more": {"type": "string", **more}}
        new = {**OLD_JSON, "properties": added, "required": ["id", "more"]}
        return check("JSON", json.dumps(OLD_JSON), json.dumps(new))

    assert versions() == ["#/properties/more: added as required, without a default"]
    assert versions(default="x") == []


def test_invalid_schemas_and_other_types_are_refused() -> None:
    with FakeSchemaRegistry() as server:
        registry = client(server)
        server.register("s", '"string"')
        for kind, text, reason in (
            ("PROTOBUF", "message A {", "status 422.*instead of a name in line 1"),
            ("JSON", "7", "status 422.*neither an object nor a boolean"),
            ("THRIFT", "", "status 422.*Invalid schema type THRIFT"),
            ("JSON", "true", "status 409.*type of the schema changes from AVRO to JSON"),
        ):
            with pytest.raises(RegistryFailed, match=reason):
                registry.register("s", RegisteredSchema(text, kind))
