"""Compatibility of new versions in `FakeSchemaRegistry`, by the rules of this project's readers or of the test."""

from __future__ import annotations

import json
import textwrap
import urllib.error
import urllib.request
from typing import Any

import pytest

from protocol.errors import RegistryFailed
from protocol.schemas.registry import RegisteredSchema
from protocol.testing import FakeSchemaRegistry
from tests.protocol.schemas.conftest import client

OLD_PROTO = """
    int64 id = 1; string name = 2; optional int32 age = 3; repeated int32 marks = 4; Kind kind = 5;
    map<string, int32> counts = 6; Part part = 7; oneof which { int32 a = 8; int32 b = 9; }
    message Part { int32 x = 1; }
    enum Kind { NONE = 0; }
"""


def proto(body: str, head: str = 'syntax = "proto3"; package shop;') -> str:
    return f"{head} message Order {{ {textwrap.dedent(body)} }}"


def check(kind: str, old: str, new: str, level: str = "BACKWARD") -> list[str]:
    """Return the reasons why a registry refuses a new version."""
    with FakeSchemaRegistry(level) as server:
        server.register("s", old, kind)
        compatible, messages = client(server.url).compatible("s", RegisteredSchema(new, kind))
    assert compatible == (not messages)
    return messages


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("int64 id = 1;", "", ""),
        ("int64 id = 1;", "int64 id = 1; string more = 99;", ""),
        ("string name = 2;", "bytes other = 2;", ""),
        ("int64 id = 1;", "uint32 id = 1;", ""),
        ("Kind kind = 5;", "int32 kind = 5;", ""),
        ("oneof which { int32 a = 8; int32 b = 9; }", "int32 a = 8; int32 b = 9;", ""),
        ("oneof which { int32 a = 8; int32 b = 9; }", "", ""),
        ("int64 id = 1;", "sint64 id = 1;", "id, with the number 1, is int64 in the writer's schema, sint64 in"),
        ("int64 id = 1;", "Part id = 1;", "id, with the number 1, is int64 in the writer's schema, shop.Order.Part in"),
        ("optional int32 age = 3;", "repeated int32 age = 3;", "age, with the number 3, is int32 in"),
        ("map<string, int32> counts", "map<string, string> counts", "counts.value, with the number 2, is int32"),
        ("{ int32 x = 1; }", "{ string x = 1; }", "part.x, with the number 1, is int32 in the writer's schema, string"),
        ("message Part", "message Piece { } message Part", ""),
        ("message Part { int32 x = 1; }", "message Part2 { } message Part { int32 x = 1; }", ""),
    ],
)
def test_protobuf_versions_are_compared_by_field_number(old: str, new: str, reason: str) -> None:
    assert old in OLD_PROTO
    result = check("PROTOBUF", proto(OLD_PROTO), proto(OLD_PROTO.replace(old, new)))
    assert (result == []) if not reason else any(reason in record for record in result), result


def test_removed_message_is_incompatible_backward_only() -> None:
    two = proto("int32 x = 1;") + " message Refund { }"
    assert check("PROTOBUF", two, proto("int32 x = 1;")) == ["shop.Refund is removed"]
    assert check("PROTOBUF", two, proto("int32 x = 1;"), "FORWARD") == []


def test_all_versions_of_json_are_compatible_unless_the_test_compares_them() -> None:
    assert check("JSON", '{"type": "integer"}', '{"type": "string"}') == []
    compared: list[Any] = []

    def compare(*schemas: Any) -> list[str]:
        compared.append(schemas)
        return ["they differ"]

    with FakeSchemaRegistry("FULL", compare=compare) as server:
        server.register("s", '{"type": "integer"}', "JSON")
        result = client(server.url).compatible("s", RegisteredSchema('{"type": "string"}', "JSON"))
    assert result == (False, ["they differ"] * 2)
    old, new = ('{"type": "integer"}', {}), ('{"type": "string"}', {})
    assert compared == [("JSON", old, new), ("JSON", new, old)]


def test_version_is_registered_again_although_a_later_one_is_incompatible_with_it() -> None:
    with FakeSchemaRegistry() as server:
        registry = client(server.url)
        old = RegisteredSchema(proto("int64 a = 1;"), "PROTOBUF")
        two = RegisteredSchema(old.text + " message Refund { }", "PROTOBUF")
        assert [registry.register("s", schema) for schema in (old, two, old)] == [1, 2, 1]


@pytest.mark.parametrize(
    ("version", "compatible"), [("", False), ("/1", True), ("/2", False), ("/latest", False), ("/3", None)]
)
def test_schema_is_compared_with_the_version_of_the_request_alone(version: str, compatible: bool | None) -> None:
    with FakeSchemaRegistry("BACKWARD_TRANSITIVE") as server:
        for text in ('"long"', '"string"'):
            server.register("s", text)
        path = f"{server.url}/compatibility/subjects/s/versions{version}"
        request = urllib.request.Request(path, json.dumps({"schema": '"long"'}).encode())
        if compatible is None:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(request)
        else:
            assert json.load(urllib.request.urlopen(request))["is_compatible"] is compatible


def test_invalid_schemas_and_other_types_are_refused() -> None:
    with FakeSchemaRegistry() as server:
        registry = client(server.url)
        server.register("s", '"string"')
        for kind, text, reason in (
            ("PROTOBUF", "message A {", "status 422.*instead of a name in line 1"),
            ("JSON", "7", "status 422.*neither an object nor a boolean"),
            ("THRIFT", "", "status 422.*Invalid schema type THRIFT"),
            ("JSON", "true", "status 409.*type of the schema changes from AVRO to JSON"),
        ):
            with pytest.raises(RegistryFailed, match=reason):
                registry.register("s", RegisteredSchema(text, kind))


def test_subject_with_a_level_of_compatibility_alone_is_not_found() -> None:
    with FakeSchemaRegistry() as server:

        def request(method: str, path: str, body: bytes | None = None) -> int:
            call = urllib.request.Request(f"{server.url}{path}", body, method=method)
            try:
                with urllib.request.urlopen(call) as response:
                    return int(response.status)
            except urllib.error.HTTPError as error:
                return error.code

        registry = client(server.url)
        assert request("PUT", "/config/orders-value", b'{"compatibility": "NONE"}') == 200
        assert registry.subjects() == []
        for ask in (registry.version, registry.versions):
            with pytest.raises(RegistryFailed, match=r"Subject 'orders-value' not found"):
                ask("orders-value")
        assert request("DELETE", "/subjects/orders-value") == 404
        for schema in ('"string"', '"int"'):
            registry.register("orders-value", RegisteredSchema(schema))
        assert request("DELETE", "/subjects/orders-value") == 200
        assert registry.subjects() == []
