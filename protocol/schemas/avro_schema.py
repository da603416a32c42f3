"""An Avro schema as a tree of types, and the Arrow type of each.

The Arrow types are those that Spark's `from_avro` has for the same schema. Parsing is strict: a schema that this
module accepts can be read and written. Source: the Avro specification 1.12, "Schema Declaration", "Names", "Logical
Types".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.schemas.decoding import load_schema

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_MAX_DEPTH = 64
# References make a small text a large type. A hundred symbols of an enum count as a type.
_MAX_TYPES = 20_000
_SYMBOLS_OF_A_TYPE = 100
# As many bytes as a value of a binary column may have.
_MAX_FIXED_BYTES = 2**31 - 1
_MAX_PRECISION = 38
# A field without a default, for which None would be ambiguous.
NO_DEFAULT = object()

TIMESTAMP = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP = pa.timestamp("us")
# Logical types that change the Arrow type, with the types that they annotate. Others are ignored, as Avro demands.
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): LOCAL_TIMESTAMP,
}
# Logical types that only tell the unit of a number; the column has the number.
_UNITS = frozenset(
    [("int", "time-millis"), ("long", "time-micros"), ("long", "timestamp-nanos"), ("long", "local-timestamp-nanos")]
)
_ARROW = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_NAMES_BY_ARROW = {arrow: avro for avro, arrow in _ARROW.items() if avro not in ("fixed", "enum", "null")} | {
    pa.int8(): "int", pa.int16(): "int", pa.large_string(): "string", pa.large_binary(): "bytes",
}  # fmt: skip


@dataclass(frozen=True)
class AvroField:
    """A field of a record. `default` is the JSON value, or `NO_DEFAULT`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


@dataclass(frozen=True)
class AvroType:
    """A node of a schema.

    `kind`: one of `PRIMITIVES`, or record, enum, fixed, array, map, union.
    `name`: the full name of a record, an enum or a fixed.
    `aliases`: full names.
    `fields`: the fields of a record.
    `symbols`: the symbols of an enum; `default` is one of them or None.
    `size_bytes`: the size of a fixed.
    `children`: the items of an array, the values of a map, the branches of a union.
    `logical`: a logical type that changes the Arrow type; for decimals with `precision` and `scale`.
    `unit`: a logical type that only tells what a number counts, such as timestamp-nanos.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size_bytes: int = 0
    children: tuple[AvroType, ...] = ()
    logical: str | None = None
    precision: int = 0
    scale: int = 0
    unit: str | None = None

    @property
    def text(self) -> str:
        """The type in a word or two, for messages."""
        if self.kind == "union":
            return f"union of {', '.join(child.text for child in self.children)}"
        if self.logical == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return self.logical or self.unit or (f"{self.kind} {self.name}" if self.name else self.kind)

    @property
    def nullable(self) -> bool:
        """True for null and for a union with null."""
        return self.kind == "null" or any(child.kind == "null" for child in self.children if self.kind == "union")

    @property
    def members(self) -> tuple[AvroType, ...]:
        """The branches of a union without null."""
        return tuple(child for child in self.children if child.kind != "null")


def parse_avro(text: str, references: Mapping[str, str] | None = None) -> AvroType:
    """Parse a schema.

    `text`: the schema in JSON, or the bare name of a primitive type.
    `references`: schemas of named types that this one uses, by name, in the order of their use.
    Raises `ConfigurationError`: it is not a valid Avro schema, or one that no column can have (a recursive type); the
    message has the path.
    """
    parser = _Parser()
    *_, parsed = (parser.parse(_load(schema), "", "", 0) for schema in (*(references or {}).values(), text))
    return parsed


def _load(text: str) -> Any:
    return text.strip() if text.strip() in PRIMITIVES else load_schema(text, "the Avro schema")


@dataclass(frozen=True)
class _Named:
    """A named type with the number of types in it, itself included, and the depth of the deepest one."""

    type: AvroType
    types: int
    depth: int


class _Parser:
    """Parses schemas that share their named types.

    Counts the types of all schemas: each reference counts as many types as the schema that it refers to.
    """

    def __init__(self) -> None:
        self._named: dict[str, _Named | None] = {}  # None: its definition is being read
        self._types = 0
        self._deepest = 0

    def _count(self, types: int, depth: int, path: str) -> None:
        """Count types of which the deepest is at this depth."""
        self._types += types
        self._deepest = max(self._deepest, depth)
        if depth > _MAX_DEPTH:
            raise _invalid(path, f"is nested deeper than {_MAX_DEPTH} types")
        if self._types > _MAX_TYPES:
            raise _invalid(path, f"is one of more than {_MAX_TYPES} types")

    def parse(self, schema: Any, namespace: str, path: str, depth: int) -> AvroType:
        if isinstance(schema, str) and schema not in PRIMITIVES:
            return self._reference(schema, namespace, path, depth)
        self._count(1, depth, path)
        if isinstance(schema, str):
            return AvroType(schema)
        if isinstance(schema, list):
            return self._union(schema, namespace, path, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise _invalid(path, f"is no type: {json.dumps(schema)[:100]}")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace, path, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, schema, namespace, path, depth)
        if kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            if inside not in schema:
                raise _invalid(path, f"is {_an(kind)} without {inside}")
            return AvroType(kind, children=(self.parse(schema[inside], namespace, f"{path}[]", depth + 1),))
        if kind not in PRIMITIVES:
            return self._reference(kind, namespace, path, depth)
        return _with_logical(AvroType(kind), schema)

    def _reference(self, name: str, namespace: str, path: str, depth: int) -> AvroType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        full = full if full in self._named else name
        if full not in self._named:
            raise _invalid(path, f"has the unknown type {name}")
        named = self._named[full]
        if named is None:
            raise _invalid(path, f"contains the type {full} in itself: recursive types have no columns")
        self._count(named.types, depth + named.depth, path)
        return named.type

    def _union(self, schemas: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        branches = tuple(self.parse(branch, namespace, path, depth + 1) for branch in schemas)
        names = [branch.name or branch.kind for branch in branches]
        if not branches or any(branch.kind == "union" for branch in branches):
            raise _invalid(path, "is an empty union" if not branches else "is a union in a union")
        if len(set(names)) < len(names):
            raise _invalid(path, f"is a union with the same type twice: {', '.join(names)}")
        return AvroType("union", children=branches)

    def _define(self, kind: str, schema: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        name = self._name(schema, namespace, path)
        inner = name.rpartition(".")[0]
        if name in self._named:
            raise _invalid(path, f"defines the type {name} a second time")
        names = _aliases(schema, path)
        aliases = tuple(name if "." in name or not inner else f"{inner}.{name}" for name in names)
        self._named[name] = None
        types_before, deepest_before = self._types, self._deepest
        self._deepest = depth
        if kind == "enum":
            made = self._enum(name, aliases, schema, path)
            self._count(len(made.symbols) // _SYMBOLS_OF_A_TYPE, depth, path)
        elif kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or not 0 <= size <= _MAX_FIXED_BYTES:
                raise _invalid(path, f"is a fixed without a size from 0 to {_MAX_FIXED_BYTES}")
            made = _with_logical(AvroType("fixed", name, aliases, size_bytes=size), schema)
        else:
            made = AvroType("record", name, aliases, fields=self._fields(schema, inner, path, depth))
        # The type itself was counted before.
        self._named[name] = _Named(made, self._types - types_before + 1, self._deepest - depth)
        self._deepest = max(self._deepest, deepest_before)
        return made

    def _name(self, schema: dict[str, Any], namespace: str, path: str) -> str:
        name = schema.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid(path, f"has an invalid name: {name!r}")
        if "." in name:
            return name
        space = schema.get("namespace", namespace)
        return f"{space}.{name}" if space else name

    def _enum(self, name: str, aliases: tuple[str, ...], schema: dict[str, Any], path: str) -> AvroType:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(isinstance(symbol, str) for symbol in symbols):
            raise _invalid(path, "is an enum without symbols")
        default = schema.get("default")
        if len(set(symbols)) < len(symbols) or (default is not None and default not in symbols):
            raise _invalid(path, "is an enum with a symbol twice, or a default that is no symbol")
        return AvroType("enum", name, aliases, symbols=tuple(symbols), default=default)

    def _fields(self, schema: dict[str, Any], namespace: str, path: str, depth: int) -> tuple[AvroField, ...]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _invalid(path, "is a record without fields")
        made: list[AvroField] = []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
                raise _invalid(path, f"has an invalid field: {json.dumps(field)[:100]}")
            name = field["name"]
            below = f"{path}.{name}" if path else name
            # A logical type beside the field's type, instead of in it, is ignored.
            kind = self.parse(field["type"], namespace, below, depth + 1)
            made.append(AvroField(name, kind, _aliases(field, below), field.get("default", NO_DEFAULT)))
        names = [field.name for field in made]
        if len(set(names)) < len(names):
            raise _invalid(path, "has a field name twice")
        return tuple(made)


def _aliases(schema: Mapping[str, Any], path: str) -> tuple[str, ...]:
    aliases = schema.get("aliases", ())
    if not isinstance(aliases, (list, tuple)) or not all(isinstance(alias, str) for alias in aliases):
        raise _invalid(path, "has aliases that are no list of names")
    return tuple(aliases)


def _with_logical(plain: AvroType, schema: Mapping[str, Any]) -> AvroType:
    """Return the type with its logical type; an invalid one is ignored, as the specification demands."""
    logical = str(schema.get("logicalType"))
    if logical == "decimal" and plain.kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            isinstance(precision, int)
            and isinstance(scale, int)
            and 0 < precision <= _MAX_PRECISION
            and 0 <= scale <= precision
            and (plain.kind == "bytes" or precision <= _decimal_digits(plain.size_bytes))
        ):
            return AvroType(
                plain.kind, plain.name, plain.aliases, size_bytes=plain.size_bytes, logical="decimal",
                precision=precision, scale=scale,
            )  # fmt: skip
    elif (plain.kind, logical) in _LOGICAL:
        return AvroType(plain.kind, logical=logical)
    elif (plain.kind, logical) in _UNITS:
        return AvroType(plain.kind, unit=logical)
    return plain


def _decimal_digits(size_bytes: int) -> int:
    """Return the largest precision of a decimal in a fixed type: all of its numbers have a place."""
    bits = 8 * min(size_bytes, _MAX_PRECISION) - 1
    return len(str((1 << max(bits, 0)) - 1)) - 1


def _an(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _invalid(path: str, problem: str) -> ConfigurationError:
    return ConfigurationError(f"the Avro schema{f', field {path},' if path else ''} {problem}")


def arrow_type(avro: AvroType) -> pa.DataType:
    """Return the Arrow type of a schema.

    record: struct; array: list with the item field "element"; map: map with string keys; enum: string; fixed: binary;
    decimal: decimal128; a union with null: the other branch, nullable; int and long: int64; float and double: float64;
    any other union: struct of the nullable fields member0, member1, ….
    """
    if avro.kind == "record":
        return pa.struct([pa.field(field.name, arrow_type(field.type), field.type.nullable) for field in avro.fields])
    if avro.kind == "array":
        (items,) = avro.children
        return pa.list_(pa.field("element", arrow_type(items), items.nullable))
    if avro.kind == "map":
        (values,) = avro.children
        return pa.map_(pa.string(), pa.field("value", arrow_type(values), values.nullable))
    if avro.kind == "union":
        return _union_type(avro)
    if avro.logical == "decimal":
        return pa.decimal128(avro.precision, avro.scale)
    if avro.logical is not None:
        return _LOGICAL[avro.kind, avro.logical]
    return _ARROW[avro.kind]


def _union_type(union: AvroType) -> pa.DataType:
    members = union.members
    if not members:
        return pa.struct([])  # as Spark
    if len(members) == 1:
        return arrow_type(members[0])
    if widened := widened_kind(union):
        return _ARROW[widened]
    return pa.struct([pa.field(f"member{number}", arrow_type(member)) for number, member in enumerate(members)])


def schema_of(kind: pa.DataType, name: str = "Record") -> dict[str, Any]:
    """Return the Avro schema, as JSON, for columns of an Arrow type. Each field may be null, and is so by default.

    Raises `ConfigurationError`: there is none for the type.
    """
    made = _schema_of(kind, name, "", set())
    return made if isinstance(made, dict) else {"type": made}


def _schema_of(kind: pa.DataType, name: str, path: str, taken: set[str]) -> Any:
    if pa.types.is_struct(kind):
        return _record_schema(kind, name, path, taken)
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _schema_of(kind.value_type, f"{name}_item", f"{path}[]", taken)]}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _schema_of(kind.item_type, f"{name}_value", f"{path}[]", taken)]}
    if pa.types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if kind not in _NAMES_BY_ARROW:
        raise ConfigurationError(f"{path or 'the column'} is {kind}, which Avro does not have; cast it to another type")
    return _NAMES_BY_ARROW[kind]


def _record_schema(kind: pa.StructType, name: str, path: str, taken: set[str]) -> dict[str, Any]:
    while name in taken:  # that of another path, such as a.b_c and a_b.c
        name += "_"
    taken.add(name)
    fields = []
    for field in kind:
        below = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name) or "." in field.name:
            raise ConfigurationError(f"{below} is no name of an Avro field: it may have letters, digits and _")
        inner = _schema_of(field.type, f"{name}_{field.name}", below, taken)
        fields.append({"name": field.name, "type": ["null", inner], "default": None})
    return {"type": "record", "name": name, "fields": fields}


def widened_kind(union: AvroType) -> str | None:
    """Return "long" for a union of int and long, "double" for float and double: Spark reads them as one number."""
    kinds = {member.kind if member.logical is None else member.logical for member in union.members}
    return {frozenset(("int", "long")): "long", frozenset(("float", "double")): "double"}.get(frozenset(kinds))
