"""A JSON Schema as a tree of types, and the Arrow type of each.

Drafts 4 to 2020-12. These keywords give values a type: `type`, `properties`, `required`, `additionalProperties`,
`unevaluatedProperties`, `patternProperties`, `items`, `prefixItems`, `enum`, `const`, `oneOf`, `anyOf`, `allOf`,
`$ref`, `format` and `contentEncoding`. Keywords that only restrict values, such as `minimum`, are ignored.

Source: JSON Schema 2020-12, "Core" and "Validation"; `connect.type` as Kafka Connect's converter writes it.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.schemas.decoding import load_schema

_MAX_DEPTH = 64
# With references, a short text can describe a very large type.
_MAX_NODES = 10_000
# This number of enum values counts as one type in the limit above.
_VALUES_OF_A_NODE = 100
_MAX_TEXT = 100

_SIMPLE = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_FORMATS = {"date": pa.date32(), "date-time": pa.timestamp("us", "UTC")}
_CONNECT = {
    ("integer", "int8"): pa.int8(),
    ("integer", "int16"): pa.int16(),
    ("integer", "int32"): pa.int32(),
    ("number", "float32"): pa.float32(),
    ("string", "bytes"): pa.binary(),
}
_COMBINED = ("oneOf", "anyOf")


@dataclass(frozen=True)
class JsonField:
    """A property of an object."""

    name: str
    type: JsonType


@dataclass(frozen=True)
class JsonType:
    """A node of a schema.

    `kind`: object, map, array, string, integer, number, boolean, null, or any: a value that is kept as its JSON.
    `fields`: the properties of an object.
    `items`: the items of an array, the values of a map.
    `arrow`: the type of a column of strings, numbers or booleans.
    `nullable`: True if null is valid.
    `values`: the only valid values of an enum; empty: any.
    `open`: True if an object may have other properties.
    `required`: names that an object must have, also those that are no fields.
    """

    kind: str
    fields: tuple[JsonField, ...] = ()
    items: JsonType | None = None
    arrow: pa.DataType = field(default_factory=pa.string)
    nullable: bool = False
    values: tuple[Any, ...] = ()
    open: bool = True
    required: frozenset[str] = frozenset()


_ANY = JsonType("any", nullable=True)


def parse_json_schema(text: str, references: Mapping[str, str] | None = None) -> JsonType:
    """Parse a schema.

    `references`: schemas that this one refers to, by the name that its `$ref` has.
    Raises `ConfigurationError`: the text is not a JSON Schema, or no column can have its type (a recursive one); the
    message has the path.
    """
    document = _load(text, "the JSON Schema")
    documents = {name: _load(reference, f"the reference {name}") for name, reference in (references or {}).items()}
    try:
        return _Parser(document, documents).parse(document, _Base("", document), "", 0)
    except ValueError as error:
        raise ConfigurationError(f"the JSON Schema has an $id or $ref that is no URI: {error}") from None


def arrow_type(schema: JsonType) -> pa.DataType:
    """Return the Arrow type of a schema.

    object: struct; map: map with string keys; array: list with the item field "element"; integer: int64; number:
    float64; any: string. All fields may be null.
    """
    if schema.kind == "object":
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in schema.fields])
    if schema.kind in ("array", "map"):
        assert schema.items is not None
        inner = arrow_type(schema.items)
        if schema.kind == "array":
            return pa.list_(pa.field("element", inner))
        return pa.map_(pa.string(), pa.field("value", inner))
    return pa.null() if schema.kind == "null" else schema.arrow


def _load(text: str, subject: str) -> Any:
    document = load_schema(text, subject)
    if not isinstance(document, dict | bool):
        raise ConfigurationError(f"{subject} is neither an object nor a boolean")
    return document


@dataclass(frozen=True)
class _Base:
    """The document that a schema is in, with the URI or name that its references are relative to."""

    uri: str
    document: Any


class _Parser:
    def __init__(self, document: Any, references: Mapping[str, Any]) -> None:
        self._documents = {name: _Base(name, reference) for name, reference in references.items()}
        for name, node in (("", document), *references.items()):
            self._add_ids(node, name, node)
        self._open: list[int] = []  # the schemas that are being read, by identity
        self._nodes = 0
        self._anchors: dict[int, dict[str, Any]] = {}  # by the identity of a document

    def _add_ids(self, document: Any, uri: str, root: Any, depth: int = 0) -> None:
        """Index a document and the schemas embedded in it by their `$id`."""
        if not isinstance(document, dict) or depth > _MAX_DEPTH:
            return
        own = document.get("$id", document.get("id"))
        if isinstance(own, str) and not own.startswith("#"):
            uri = urllib.parse.urljoin(uri, own).rstrip("#")
            self._documents.setdefault(uri, _Base(uri, document))
        for name in ("$defs", "definitions"):
            inside = document.get(name)
            for node in inside.values() if isinstance(inside, dict) else ():
                self._add_ids(node, uri, root, depth + 1)

    def parse(self, schema: Any, base: _Base, path: str, depth: int) -> JsonType:
        """Parse a schema; raise `ConfigurationError` if it contains itself, or is too deep or too large."""
        self._nodes += 1
        if depth > _MAX_DEPTH:
            raise _invalid(path, f"is nested deeper than {_MAX_DEPTH} types")
        if self._nodes > _MAX_NODES:
            raise _invalid(path, f"is one of more than {_MAX_NODES} types")
        if isinstance(schema, bool):
            return _ANY
        if not isinstance(schema, dict):
            raise _invalid(path, f"is no schema: {json.dumps(schema)[:_MAX_TEXT]}")
        if id(schema) in self._open:
            raise _invalid(path, "contains a type in itself: recursive types have no columns")
        self._open.append(id(schema))
        try:
            return self._parse(schema, base, path, depth)
        finally:
            self._open.pop()

    def _parse(self, document: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        own = document.get("$id")
        if isinstance(own, str) and not own.startswith("#"):
            base = _Base(urllib.parse.urljoin(base.uri, own), document)
        parts: list[JsonType] = []
        reference = document.get("$ref")
        if reference is not None:
            target, where = self._resolve(reference, base, path)
            parts.append(self.parse(target, where, path, depth + 1))
        parts += [self.parse(schema, base, path, depth + 1) for schema in _schemas(document, "allOf", path)]
        for name in _COMBINED:
            if name in document:
                branches = [self.parse(schema, base, path, depth + 1) for schema in _schemas(document, name, path)]
                parts.append(_union(branches))
        parts.append(self._own(document, base, path, depth))
        return _all_of(parts, path)

    def _own(self, schema: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        """Return the type of a schema's keywords, except `$ref` and the combinations (`allOf`, `anyOf`, `oneOf`)."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None and (not isinstance(values, list) or not values):
            raise _invalid(path, "has an enum that is not a list of values")
        self._nodes += len(values or ()) // _VALUES_OF_A_NODE
        kinds = _kinds(schema, values, path)
        if not kinds:
            return replace(_ANY, required=_required(schema))
        made = _union([self._typed(kind, schema, base, path, depth) for kind in kinds])
        if values is None or made.kind not in _SIMPLE:
            return made
        nullable = made.nullable and None in values
        return replace(made, nullable=nullable, values=tuple(value for value in values if value is not None))

    def _typed(self, kind: str, schema: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        if kind == "null":
            return JsonType("null", nullable=True)
        if kind == "object":
            return self._object(schema, base, path, depth)
        if kind == "array":
            return JsonType("array", items=self._items(schema, base, path, depth))
        arrow = _CONNECT.get((kind, str(schema.get("connect.type"))), _SIMPLE[kind])
        if kind == "string":
            arrow = _FORMATS.get(str(schema.get("format")), arrow)
            arrow = pa.binary() if schema.get("contentEncoding") == "base64" else arrow
        return JsonType(kind, arrow=arrow)

    def _object(self, document: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        properties = document.get("properties", {})
        patterns = document.get("patternProperties", {})
        additional = document.get("additionalProperties", document.get("unevaluatedProperties", not patterns))
        required = _required(document)
        if not isinstance(properties, dict) or not isinstance(patterns, dict):
            raise _invalid(path, "has properties that are no object")
        if properties:
            fields = tuple(
                JsonField(name, self.parse(property_schema, base, _below(path, name), depth + 1))
                for name, property_schema in properties.items()
            )
            is_open = additional is not False or bool(patterns)
            return JsonType("object", fields=fields, open=is_open, required=required)
        schemas = [*patterns.values(), *([additional] if additional is not False else [])]
        if additional is False and not patterns:
            return JsonType("object", open=False, required=required)
        items = _union([self.parse(schema, base, f"{path}[]", depth + 1) for schema in schemas])
        return JsonType("map", items=items, required=required)

    def _items(self, document: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        items = document.get("items", True)
        schemas = document.get("prefixItems", [])
        if not isinstance(schemas, list):
            raise _invalid(path, "has prefixItems that are no list of schemas")
        schemas = list(schemas)
        if isinstance(items, list):  # before 2020-12, a list in place of prefixItems
            schemas, items = items, document.get("additionalItems", True)
        if not schemas or not isinstance(items, bool):
            schemas.append(items)
        return _union([self.parse(schema, base, f"{path}[]", depth + 1) for schema in schemas])

    def _resolve(self, reference: Any, base: _Base, path: str) -> tuple[Any, _Base]:
        if not isinstance(reference, str):
            raise _invalid(path, f"has an invalid $ref: {json.dumps(reference)[:_MAX_TEXT]}")
        name, _, pointer = reference.partition("#")
        if name:
            joined = urllib.parse.urljoin(base.uri, name)
            referenced = self._documents.get(name) or self._documents.get(joined) or self._documents.get(f"./{name}")
            if referenced is None:
                raise _invalid(path, f"refers to {name[:_MAX_TEXT]!r}, which is no reference of the schema")
            base = referenced
        target = base.document
        for word in pointer.split("/")[1:]:
            word = urllib.parse.unquote(word).replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(word)] if isinstance(target, list) else target[word]
            except (KeyError, IndexError, TypeError, ValueError):
                raise _invalid(path, f"refers to {reference[:_MAX_TEXT]!r}, which the schema does not have") from None
        if pointer and pointer[0] != "/":
            anchors = self._anchors.get(id(target))
            if anchors is None:
                anchors = self._anchors[id(target)] = _anchors(target, {})
            target = anchors.get(pointer)
            if target is None:
                raise _invalid(path, f"refers to {reference[:_MAX_TEXT]!r}, which the schema does not have")
        return target, base


_KINDS = {*_SIMPLE, "object", "array", "null"}
# Keywords that apply to one type only: they imply it if `type` is absent.
_IMPLIED = {"object": {"properties", "additionalProperties", "patternProperties"}, "array": {"items", "prefixItems"}}


def _kinds(schema: dict[str, Any], values: list[Any] | None, path: str) -> list[str]:
    """Return the types that `type`, else an enum, else keywords of one type only, give to a schema."""
    kinds = schema.get("type")
    if kinds is None and values is not None:
        kinds = sorted({_kind_of(value) for value in values})
    if kinds is None:
        kinds = [name for name, words in _IMPLIED.items() if not words.isdisjoint(schema)]
        kinds = kinds if len(kinds) == 1 else []
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in _KINDS for kind in kinds):
        raise _invalid(path, f"has the unknown type {json.dumps(kinds)[:_MAX_TEXT]}")
    return kinds


def _anchors(document: Any, anchors: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the schemas with an `$anchor`, or before 2019-09 an `$id` that is a fragment."""
    if not isinstance(document, dict) or depth > _MAX_DEPTH:
        return anchors
    for name in (document.get("$anchor"), *map(_fragment, (document.get("$id"), document.get("id")))):
        if isinstance(name, str):
            anchors.setdefault(name, document)
    for word in ("$defs", "definitions"):
        inside = document.get(word)
        for node in inside.values() if isinstance(inside, dict) else ():
            _anchors(node, anchors, depth + 1)
    return anchors


def _fragment(uri: Any) -> str | None:
    return uri[1:] if isinstance(uri, str) and uri.startswith("#") else None


def _schemas(schema: dict[str, Any], name: str, path: str) -> list[Any]:
    schemas = schema.get(name, [])
    if not isinstance(schemas, list) or (name in schema and not schemas):
        raise _invalid(path, f"has {name} without schemas")
    return schemas


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    names = schema.get("required")  # in draft 3 a boolean of the property
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def _union(branches: list[JsonType]) -> JsonType:
    """Return the type of values that fit one of several schemas.

    It is `any`, unless the schemas differ only in null, in enum values, or in integer and number.
    """
    nullable = any(branch.nullable for branch in branches)
    names = [branch.required for branch in branches if branch.kind != "null"]
    required = names[0].intersection(*names[1:]) if names else frozenset()
    members: list[JsonType] = []
    for branch in branches:
        plain = replace(branch, nullable=False, required=required)
        if branch.kind != "null" and plain not in members:
            members.append(plain)
    if not members:
        return JsonType("null", nullable=True)
    merged = members[0] if len(members) == 1 else _widest(members, required)
    return replace(merged, nullable=nullable)


def _widest(members: list[JsonType], required: frozenset[str]) -> JsonType:
    kinds = {member.kind for member in members}
    if kinds == {"integer", "number"}:
        return JsonType("number", arrow=pa.float64())
    if len(kinds) == 1 and kinds <= set(_SIMPLE) and len({member.arrow for member in members}) == 1:
        # Enums of one type.
        values = tuple(value for member in members for value in member.values)
        return replace(members[0], values=values if all(member.values for member in members) else ())
    return JsonType("any", required=required)


def _all_of(parts: list[JsonType], path: str) -> JsonType:
    """Return the type of values that all schemas take. Raises `ConfigurationError` if columns have no such type."""
    required = frozenset().union(*(part.required for part in parts))
    nullable = all(part.nullable for part in parts)
    types = [part for part in parts if part.kind != "any"]
    kinds = {part.kind for part in types}
    if not types:
        return replace(_ANY, nullable=nullable, required=required)
    if "object" in kinds:
        # In `allOf`, a map beside an object only says that the value is an object.
        types = [part for part in types if part.kind != "map"]
        kinds.discard("map")
    if kinds == {"integer", "number"}:
        integer = JsonType("integer", arrow=_SIMPLE["integer"])
        types = [part if part.kind == "integer" else replace(integer, values=part.values) for part in types]
    elif len(kinds) > 1:
        raise _invalid(path, f"is to have several types at once: {', '.join(sorted(kinds))}")
    merged = types[0]
    for part in types[1:]:
        merged = _both(merged, part, path)
    return replace(merged, nullable=nullable, required=required)


def _both(first: JsonType, second: JsonType, path: str) -> JsonType:
    """Return the type of values that two schemas of the same kind take."""
    fields = {field.name: field for field in first.fields}
    for added in second.fields:
        before = fields.get(added.name)
        kind = added.type if before is None else _all_of([before.type, added.type], _below(path, added.name))
        fields[added.name] = JsonField(added.name, kind)
    items = [kind.items for kind in (first, second) if kind.items is not None]
    # A type by format or connect.type is more exact than the type of the kind.
    arrows = {kind.arrow for kind in (first, second)} - {_SIMPLE.get(first.kind)} or {first.arrow}
    if len(arrows) > 1:
        raise _invalid(path, f"is to have several types at once: {', '.join(sorted(map(str, arrows)))}")
    return replace(
        first,
        fields=tuple(fields.values()),
        items=_all_of(items, f"{path}[]") if items else None,
        arrow=arrows.pop(),
        values=_common(first.values, second.values, path),
        open=first.open and second.open,
    )


def _common(first: tuple[Any, ...], second: tuple[Any, ...], path: str) -> tuple[Any, ...]:
    """Return the values that two enums have in common, without arrays and objects, which have no hash."""
    if not first or not second:
        return first or second
    hashables = {value for value in second if isinstance(value, Hashable)}
    values = tuple(value for value in first if isinstance(value, Hashable) and value in hashables)
    if not values:
        raise _invalid(path, "has no value that all of its schemas allow")
    return values


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _invalid(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"the JSON Schema{f', field {path},' if path else ''} {problem}")
