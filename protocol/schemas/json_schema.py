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
    required: bool = False


@dataclass(frozen=True)
class JsonType:
    """A node of a schema.

    Attributes
    ----------
    kind : str
        object, map, array, string, integer, number, boolean, null, or any: a value that is kept as its JSON.
    fields : tuple of JsonField
        The properties of an object.
    items : JsonType or None
        The items of an array, the values of a map.
    arrow : pyarrow.DataType
        The type of a column of strings, numbers or booleans.
    nullable : bool
        True if null is valid.
    values : tuple
        The only valid values of an enum; empty: any.
    open : bool
        True if an object may have other properties.
    required : frozenset of str
        Names that an object must have, also those that are no fields.
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

    Parameters
    ----------
    text : str
    references : mapping of str to str, optional
        Schemas that this one refers to, by the name that its `$ref` has.

    Raises
    ------
    ConfigurationError
        The text is not a JSON Schema, or no column can have its type (a recursive one); the message has the path.
    """
    document = _load(text, "the JSON Schema")
    others = {name: _load(each, f"the reference {name}") for name, each in (references or {}).items()}
    return _Parser(document, others).parse(document, _Base("", document), "", 0)


def arrow_type(schema: JsonType) -> pa.DataType:
    """Return the Arrow type of a schema.

    Notes
    -----
    object: struct; map: map with string keys; array: list with the item field "element"; integer: int64; number:
    float64; any: string. All fields may be null.
    """
    if schema.kind == "object":
        return pa.struct([pa.field(each.name, arrow_type(each.type)) for each in schema.fields])
    if schema.kind in ("array", "map"):
        assert schema.items is not None
        inner = arrow_type(schema.items)
        if schema.kind == "array":
            return pa.list_(pa.field("element", inner))
        return pa.map_(pa.string(), pa.field("value", inner))
    return pa.null() if schema.kind == "null" else schema.arrow


def _load(text: str, what: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} is not JSON: {error}") from None
    if not isinstance(found, dict | bool):
        raise ConfigurationError(f"{what} is neither an object nor a boolean")
    return found


@dataclass(frozen=True)
class _Base:
    """The document that a schema is in, with the URI or name that its references are relative to."""

    uri: str
    document: Any


class _Parser:
    def __init__(self, document: Any, references: Mapping[str, Any]) -> None:
        self._documents = {name: _Base(name, each) for name, each in references.items()}
        for name, each in (("", document), *references.items()):
            self._add_ids(each, name, each)
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
            for each in inside.values() if isinstance(inside, dict) else ():
                self._add_ids(each, uri, root, depth + 1)

    def parse(self, given: Any, base: _Base, path: str, depth: int) -> JsonType:
        """Parse a schema; raise `ConfigurationError` if it contains itself, or is too deep or too large."""
        self._nodes += 1
        if depth > _MAX_DEPTH:
            raise _invalid(path, f"is nested deeper than {_MAX_DEPTH} types")
        if self._nodes > _MAX_NODES:
            raise _invalid(path, f"is one of more than {_MAX_NODES} types")
        if isinstance(given, bool):
            return _ANY
        if not isinstance(given, dict):
            raise _invalid(path, f"is no schema: {json.dumps(given)[:_MAX_TEXT]}")
        if id(given) in self._open:
            raise _invalid(path, "contains a type in itself: recursive types have no columns")
        self._open.append(id(given))
        try:
            return self._parse(given, base, path, depth)
        finally:
            self._open.pop()

    def _parse(self, given: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        own = given.get("$id")
        if isinstance(own, str) and not own.startswith("#"):
            base = _Base(urllib.parse.urljoin(base.uri, own), given)
        parts: list[JsonType] = []
        reference = given.get("$ref")
        if reference is not None:
            target, where = self._resolve(reference, base, path)
            parts.append(self.parse(target, where, path, depth + 1))
        parts += [self.parse(each, base, path, depth + 1) for each in _schemas(given, "allOf", path)]
        for name in _COMBINED:
            if name in given:
                branches = [self.parse(each, base, path, depth + 1) for each in _schemas(given, name, path)]
                parts.append(_union(branches))
        parts.append(self._own(given, base, path, depth))
        return _all_of(parts, path)

    def _own(self, given: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        """Return the type of a schema's keywords, except `$ref` and the combinations (`allOf`, `anyOf`, `oneOf`)."""
        kinds = given.get("type")
        values = [given["const"]] if "const" in given else given.get("enum")
        if values is not None and (not isinstance(values, list) or not values):
            raise _invalid(path, "has an enum that is not a list of values")
        self._nodes += len(values or ()) // _VALUES_OF_A_NODE
        if kinds is None and values is not None:
            kinds = sorted({_kind_of(each) for each in values})
        if kinds is None:
            kinds = [name for name, words in _IMPLIED.items() if any(word in given for word in words)]
            kinds = kinds if len(kinds) == 1 else []
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, list) or not all(isinstance(each, str) and each in _KINDS for each in kinds):
            raise _invalid(path, f"has the unknown type {json.dumps(kinds)[:_MAX_TEXT]}")
        if not kinds:
            return replace(_ANY, required=_required(given))
        made = _union([self._typed(kind, given, base, path, depth) for kind in kinds])
        if values is None or made.kind not in _SIMPLE:
            return made
        nullable = made.nullable and None in values
        return replace(made, nullable=nullable, values=tuple(each for each in values if each is not None))

    def _typed(self, kind: str, given: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        if kind == "null":
            return JsonType("null", nullable=True)
        if kind == "object":
            return self._object(given, base, path, depth)
        if kind == "array":
            return JsonType("array", items=self._items(given, base, path, depth))
        arrow = _CONNECT.get((kind, str(given.get("connect.type"))), _SIMPLE[kind])
        if kind == "string":
            arrow = _FORMATS.get(str(given.get("format")), arrow)
            arrow = pa.binary() if given.get("contentEncoding") == "base64" else arrow
        return JsonType(kind, arrow=arrow)

    def _object(self, given: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        properties = given.get("properties", {})
        patterns = given.get("patternProperties", {})
        others = given.get("additionalProperties", given.get("unevaluatedProperties", not patterns))
        required = _required(given)
        if not isinstance(properties, dict) or not isinstance(patterns, dict):
            raise _invalid(path, "has properties that are no object")
        if properties:
            fields = []
            for name, each in properties.items():
                kind = self.parse(each, base, _below(path, name), depth + 1)
                fields.append(JsonField(name, kind, name in required))
            is_open = others is not False or bool(patterns)
            return JsonType("object", fields=tuple(fields), open=is_open, required=required)
        schemas = [*patterns.values(), *([others] if others is not False else [])]
        if others is False and not patterns:
            return JsonType("object", open=False, required=required)
        items = _union([self.parse(each, base, f"{path}[]", depth + 1) for each in schemas])
        return JsonType("map", items=items, required=required)

    def _items(self, given: dict[str, Any], base: _Base, path: str, depth: int) -> JsonType:
        items = given.get("items", True)
        schemas = given.get("prefixItems", [])
        if not isinstance(schemas, list):
            raise _invalid(path, "has prefixItems that are no list of schemas")
        schemas = list(schemas)
        if isinstance(items, list):  # before 2020-12, a list in place of prefixItems
            schemas, items = items, given.get("additionalItems", True)
        if not schemas or not isinstance(items, bool):
            schemas.append(items)
        return _union([self.parse(each, base, f"{path}[]", depth + 1) for each in schemas])

    def _resolve(self, reference: Any, base: _Base, path: str) -> tuple[Any, _Base]:
        if not isinstance(reference, str):
            raise _invalid(path, f"has an invalid $ref: {json.dumps(reference)[:_MAX_TEXT]}")
        name, _, pointer = reference.partition("#")
        if name:
            joined = urllib.parse.urljoin(base.uri, name)
            found = self._documents.get(name) or self._documents.get(joined) or self._documents.get(f"./{name}")
            if found is None:
                raise _invalid(path, f"refers to {name[:_MAX_TEXT]!r}, which is no reference of the schema")
            base = found
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
_IMPLIED = {
    "object": ("properties", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems"),
}


def _anchors(document: Any, found: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return the schemas with an `$anchor`, or before 2019-09 an `$id` that is a fragment."""
    if not isinstance(document, dict) or depth > _MAX_DEPTH:
        return found
    for name in (document.get("$anchor"), *map(_fragment, (document.get("$id"), document.get("id")))):
        if isinstance(name, str):
            found.setdefault(name, document)
    for word in ("$defs", "definitions"):
        inside = document.get(word)
        for each in inside.values() if isinstance(inside, dict) else ():
            _anchors(each, found, depth + 1)
    return found


def _fragment(uri: Any) -> str | None:
    return uri[1:] if isinstance(uri, str) and uri.startswith("#") else None


def _schemas(given: dict[str, Any], name: str, path: str) -> list[Any]:
    found = given.get(name, [])
    if not isinstance(found, list) or (name in given and not found):
        raise _invalid(path, f"has {name} without schemas")
    return found


def _required(given: Mapping[str, Any]) -> frozenset[str]:
    names = given.get("required")  # in draft 3 a boolean of the property
    return frozenset(each for each in names if isinstance(each, str)) if isinstance(names, list) else frozenset()


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)]


def _union(branches: list[JsonType]) -> JsonType:
    """Return the type of values that fit one of several schemas.

    It is `any`, unless the schemas differ only in null, in enum values, or in integer and number.
    """
    nullable = any(each.nullable for each in branches)
    names = [each.required for each in branches if each.kind != "null"]
    required = names[0].intersection(*names[1:]) if names else frozenset()
    members: list[JsonType] = []
    for each in branches:
        plain = replace(each, nullable=False, required=required)
        if each.kind != "null" and plain not in members:
            members.append(plain)
    if not members:
        return JsonType("null", nullable=True)
    if len(members) == 1:
        return replace(members[0], nullable=nullable)
    kinds = {each.kind for each in members}
    if kinds == {"integer", "number"}:
        return JsonType("number", arrow=pa.float64(), nullable=nullable)
    if len(kinds) == 1 and kinds <= set(_SIMPLE) and len({each.arrow for each in members}) == 1:
        # Enums of one type.
        values = tuple(value for each in members for value in each.values)
        return replace(members[0], nullable=nullable, values=values if all(each.values for each in members) else ())
    return JsonType("any", nullable=nullable, required=required)


def _all_of(parts: list[JsonType], path: str) -> JsonType:
    """Return the type of values that all schemas take. Raises `ConfigurationError` if columns have no such type."""
    required = frozenset().union(*(each.required for each in parts))
    known = [each for each in parts if each.kind != "any"]
    if not known:
        return replace(_ANY, nullable=all(each.nullable for each in parts), required=required)
    if any(each.kind == "object" for each in known):
        # In `allOf`, a map beside an object only says that the value is an object.
        known = [each for each in known if each.kind != "map"]
    kinds = {each.kind for each in known}
    if kinds == {"integer", "number"}:
        integer = JsonType("integer", arrow=_SIMPLE["integer"])
        known = [each if each.kind == "integer" else replace(integer, values=each.values) for each in known]
    elif len(kinds) > 1:
        raise _invalid(path, f"is to have several types at once: {', '.join(sorted(kinds))}")
    merged = known[0]
    for each in known[1:]:
        merged = _both(merged, each, path)
    fields = tuple(replace(each, required=each.required or each.name in required) for each in merged.fields)
    return replace(merged, fields=fields, nullable=all(each.nullable for each in parts), required=required)


def _both(one: JsonType, other: JsonType, path: str) -> JsonType:
    """Return the type of values that two schemas of the same kind take."""
    fields = {each.name: each for each in one.fields}
    for each in other.fields:
        before = fields.get(each.name)
        kind = each.type if before is None else _all_of([before.type, each.type], _below(path, each.name))
        fields[each.name] = JsonField(each.name, kind, each.required or (before is not None and before.required))
    items = [each.items for each in (one, other) if each.items is not None]
    # A type by format or connect.type is more exact than the type of the kind.
    arrows = {each.arrow for each in (one, other)} - {_SIMPLE.get(one.kind)} or {one.arrow}
    if len(arrows) > 1:
        raise _invalid(path, f"is to have several types at once: {', '.join(sorted(map(str, arrows)))}")
    values = one.values or other.values
    if one.values and other.values:
        values = _common(one.values, other.values)
        if not values:
            raise _invalid(path, "has no value that all of its schemas allow")
    return replace(
        one,
        fields=tuple(fields.values()),
        items=_all_of(items, f"{path}[]") if items else None,
        arrow=arrows.pop(),
        values=values,
        open=one.open and other.open,
    )


def _common(some: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values that two enums have in common, without arrays and objects, which have no hash."""
    known = {each for each in others if isinstance(each, Hashable)}
    return tuple(each for each in some if isinstance(each, Hashable) and each in known)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _invalid(path: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"the JSON Schema{f', field {path},' if path else ''} {what}")
