"""Write Arrow columns as JSON values, as Spark's `to_json` does: null fields are left out.

With a JSON Schema types are checked once, when the writer is made, and values with each column. Unlike `to_json`,
microseconds are kept, and NaN and infinities are refused where a schema demands a number.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import binaries, to_arrow, to_numpy, valid
from protocol.schemas.decoding import inside
from protocol.schemas.encoding import (
    ColumnWriter,
    bytes_of,
    constant,
    constant_where,
    elements,
    joined,
    mask,
    owners,
    refuse_at,
    write_some,
)
from protocol.schemas.json_schema import JsonType

_DRAFT = "http://json-schema.org/draft-07/schema#"
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS = (pa.float16(), pa.float32(), pa.float64())
_TEXTS = (pa.string(), pa.large_string())
_BYTES = (pa.binary(), pa.large_binary())
_MAX_DEPTH = 64
# Arrow writes other years as "<value out of range: …>".
_FIRST_DAY, _LAST_DAY = -12_687_428, 11_248_737
_MICROS_OF_A_DAY = 86_400_000_000
_COMMA = binaries([b","])[0]
# JSON numbers that only some types of Kafka Connect have.
_CONNECT = {pa.int8(): "int8", pa.int16(): "int16", pa.int32(): "int32", pa.float32(): "float32"}
_ANY = JsonType("any", nullable=True)
_LEAVES: dict[pa.DataType, dict[str, Any]] = {
    **{kind: {"type": "integer"} for kind in _INTEGERS},
    **{kind: {"type": "number"} for kind in _FLOATS},
    pa.bool_(): {"type": "boolean"},
    pa.null(): {"type": "null"},
    **{kind: {"type": "string"} for kind in _TEXTS},
    **{kind: {"type": "string", "contentEncoding": "base64"} for kind in _BYTES},
    pa.date32(): {"type": "string", "format": "date"},
}


def json_writer(schema: JsonType | None, kind: pa.DataType) -> ColumnWriter:
    """Return what writes a column of an Arrow type.

    `schema`: None: any schema.
    Raises `ConfigurationError`: the schema cannot take the column, or there is no JSON for its type; the message has
    the field's path.
    """
    return _writer(schema or _ANY, kind, "", 0)


def schema_of(kind: pa.DataType) -> dict[str, Any]:
    """Return the JSON Schema of a column. No field is required. Raises `ConfigurationError`."""
    return {"$schema": _DRAFT, **_schema_of(kind, "")}


def _schema_of(kind: pa.DataType, path: str) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        properties = {
            field.name: _schema_of(field.type, f"{path}.{field.name}" if path else field.name) for field in kind
        }
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if _is_list(kind):
        return {"type": "array", "items": _nullable(_schema_of(kind.value_type, f"{path}[]"))}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "object", "additionalProperties": _nullable(_schema_of(kind.item_type, f"{path}[]"))}
    schema = _LEAVES.get(kind)
    if schema is None and pa.types.is_decimal(kind):
        schema = {"type": "number"}
    elif schema is None and pa.types.is_timestamp(kind):
        schema = {"type": "string", **({"format": "date-time"} if kind.tz else {})}
    if schema is None:
        raise _no_json(kind, path)
    return {**schema, "connect.type": _CONNECT[kind]} if kind in _CONNECT else dict(schema)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"oneOf": [{"type": "null"}, schema]}


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _no_json(kind: pa.DataType, path: str) -> ConfigurationError:
    return ConfigurationError(f"{path or 'the column'} is {kind}, for which there is no JSON")


# -- plan -------------------------------------------------------------------------------------


def _writer(schema: JsonType, kind: pa.DataType, path: str, depth: int) -> ColumnWriter:
    if depth > _MAX_DEPTH:
        raise ConfigurationError(f"{path} is nested deeper than {_MAX_DEPTH} types")
    if not _takes(schema, kind):
        subject = "enum" if schema.values else schema.kind
        raise ConfigurationError(f"{path or 'the column'} is {kind}, which the schema's {subject} cannot take")
    if pa.types.is_struct(kind):
        return _struct(schema, kind, path, depth)
    if _is_list(kind) or pa.types.is_map(kind):
        inner = kind.item_type if pa.types.is_map(kind) else kind.value_type
        items = schema.items or _ANY
        writer = _writer(items, inner, f"{path}[]", depth + 1)
        return (_Map if pa.types.is_map(kind) else _List)(writer, items.nullable, path)
    leaf = _leaf(kind, path, strict=schema.kind == "number")
    return _Enum(leaf, kind, schema.values, path) if schema.values else leaf


def _takes(schema: JsonType, kind: pa.DataType) -> bool:
    """Return whether a schema takes columns of a type, apart from what is inside."""
    return bool(_TAKES[schema.kind](schema, kind))


def _text_takes(schema: JsonType, kind: pa.DataType) -> bool:
    if kind in _TEXTS:  # a text may be a date, too
        return schema.arrow not in _BYTES
    if pa.types.is_timestamp(kind):
        return bool(pa.types.is_timestamp(schema.arrow) if kind.tz else schema.arrow in _TEXTS)
    return (kind in _BYTES and schema.arrow in _BYTES) or bool(kind == schema.arrow)


_TAKES: dict[str, Callable[[JsonType, pa.DataType], bool]] = {
    "any": lambda schema, kind: True,
    "object": lambda schema, kind: pa.types.is_struct(kind),
    "map": lambda schema, kind: (
        pa.types.is_struct(kind) or (pa.types.is_map(kind) and pa.types.is_string(kind.key_type))
    ),
    "array": lambda schema, kind: _is_list(kind),
    "string": _text_takes,
    "integer": lambda schema, kind: kind in _INTEGERS and kind.bit_width <= schema.arrow.bit_width,
    "number": lambda schema, kind: kind in _INTEGERS or kind in _FLOATS or pa.types.is_decimal(kind),
    "boolean": lambda schema, kind: kind == pa.bool_(),
    "null": lambda schema, kind: kind == pa.null(),
}


def _struct(schema: JsonType, kind: pa.StructType, path: str, depth: int) -> ColumnWriter:
    types = {field.name: field.type for field in schema.fields}
    _check_fields(schema, types, {field.name for field in kind}, path)
    others = (schema.items if schema.kind == "map" else None) or _ANY
    fields = []
    for field in kind:
        below = f"{path}.{field.name}" if path else field.name
        type = types.get(field.name, others)
        fields.append(_StructField(field.name, below, _writer(type, field.type, below, depth + 1), type.nullable))
    return _Struct(fields, schema.required)


def _check_fields(schema: JsonType, types: Mapping[str, JsonType], own: Set[str], path: str) -> None:
    if not schema.open and schema.kind == "object" and (unknown := own - types.keys()):
        names = listed(types, CHOICES) or "none"
        where = f"the object {path}" if path else "the schema"
        raise ConfigurationError(f"{where} has no field {listed(sorted(unknown))}; it has {names}")
    if missing := schema.required - own:
        where = f"{path} " if path else "the column "
        raise ConfigurationError(f"{where}lacks the field {listed(sorted(missing))}, which the schema requires")


def _leaf(kind: pa.DataType, path: str, *, strict: bool) -> ColumnWriter:
    if kind in _INTEGERS or pa.types.is_decimal(kind) or kind in (pa.bool_(), pa.null()):
        return _Plain()
    if kind in _FLOATS:
        return _Float(path, strict)
    if kind in _TEXTS:
        return _Text()
    if kind in _BYTES:
        return _Base64()
    if kind == pa.date32():
        return _Date(path)
    if pa.types.is_timestamp(kind):
        return _Timestamp(path)
    raise _no_json(kind, path)


# -- columns ----------------------------------------------------------------------------------


def _quoted(texts: pa.Array, end: bytes = b'"') -> pa.Array:
    return joined([constant(b'"', len(texts)), texts.cast(pa.binary()), constant(end, len(texts))])


class _Plain(ColumnWriter):
    """Integers, decimals, booleans, and the type null, of which there are no values."""

    def write(self, column: pa.Array) -> pa.Array:
        return column.cast(pa.string()).cast(pa.binary())


class _Float(ColumnWriter):
    def __init__(self, path: str, strict: bool) -> None:
        self._path, self._strict = path, strict

    def write(self, column: pa.Array) -> pa.Array:
        values = to_numpy(column)
        odd = ~np.isfinite(values)
        texts = column.cast(pa.string())
        if not odd.any():
            return texts.cast(pa.binary())
        if self._strict:
            refuse_at(odd, self._path, "NaN or an infinity, which JSON does not have")
        # As Spark writes and reads them.
        rows: list[str] = texts.to_pylist()
        for row in np.flatnonzero(odd).tolist():
            rows[row] = '"NaN"' if np.isnan(values[row]) else '"Infinity"' if values[row] > 0 else '"-Infinity"'
        return binaries([row.encode() for row in rows])


class _Text(ColumnWriter):
    def write(self, column: pa.Array) -> pa.Array:
        column = column.cast(pa.string())
        data, _ = bytes_of(column)
        if (data < ord(" ")).any():
            return binaries([json.dumps(text, ensure_ascii=False).encode() for text in column.to_pylist()])
        if (data == ord("\\")).any():
            column = pc.replace_substring(column, "\\", "\\\\")
        if (data == ord('"')).any():
            column = pc.replace_substring(column, '"', '\\"')
        return _quoted(column)


class _Date(ColumnWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, column: pa.Array) -> pa.Array:
        _refuse_far(to_numpy(column.view(pa.int32())), self._path)
        return _quoted(column.cast(pa.string()))


class _Base64(ColumnWriter):
    def write(self, column: pa.Array) -> pa.Array:
        return binaries([b'"%b"' % base64.b64encode(data) for data in column.to_pylist()])


def _refuse_far(days: npt.NDArray[Any], path: str) -> None:
    refuse_at((days < _FIRST_DAY) | (days > _LAST_DAY), path, "a time that is not in the years -32767 to 32767")


class _Timestamp(ColumnWriter):
    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, column: pa.Array) -> pa.Array:
        micros = to_numpy(column.cast(pa.timestamp("us", column.type.tz)))
        _refuse_far(micros // _MICROS_OF_A_DAY, self._path)
        plain = to_arrow(micros).view(pa.timestamp("us"))
        is_whole = micros % 1_000 == 0
        texts = plain.cast(pa.string())
        if is_whole.any():
            millis = plain.cast(pa.timestamp("ms"), safe=False).cast(pa.string())
            texts = millis if is_whole.all() else pc.if_else(mask(is_whole), millis, texts)
        texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
        return _quoted(texts, b'Z"' if column.type.tz else b'"')


class _Enum(ColumnWriter):
    def __init__(self, writer: ColumnWriter, kind: pa.DataType, values: tuple[Any, ...], path: str) -> None:
        self._writer, self._path = writer, path
        try:
            self._values = pa.array(values).cast(kind)
        except (pa.ArrowException, OverflowError):
            raise ConfigurationError(f"{path or 'the column'} is {kind}, which the schema's enum cannot take") from None

    def write(self, column: pa.Array) -> pa.Array:
        index = pc.index_in(column, self._values)
        refuse_at(~valid(index), self._path, "a value that the schema's enum does not have")
        return self._writer.write(column)


class _StructField(NamedTuple):
    name: str
    path: str
    writer: ColumnWriter
    nullable: bool


class _Struct(ColumnWriter):
    def __init__(self, fields: Sequence[_StructField], required: Set[str]) -> None:
        self._fields = fields
        self._keys = [json.dumps(field.name, ensure_ascii=False).encode() + b":" for field in fields]
        self._required = required

    def write(self, column: pa.Array) -> pa.Array:
        rows = len(column)
        parts = [constant(b"{", rows)]
        begun = np.zeros(rows, np.bool_)
        for number, (key, field) in enumerate(zip(self._keys, self._fields, strict=True)):
            values = column.field(number)
            present = valid(values)
            required = field.name in self._required
            if required and not field.nullable:
                refuse_at(~present, field.path, "null, which the schema does not allow")
            shown = np.ones(rows, np.bool_) if required else present
            parts += [constant_where(b",", begun & shown), constant_where(key, shown)]
            if required and not present.all():
                parts.append(constant_where(b"null", ~present))
            parts.append(field.writer.write(values) if present.all() else write_some(field.writer, values, present))
            begun |= shown
        return joined([*parts, constant(b"}", rows)])


class _List(ColumnWriter):
    _open, _close = b"[", b"]"

    def __init__(self, items: ColumnWriter, nullable: bool, path: str) -> None:
        self._items, self._nullable, self._path = items, nullable, path

    def write(self, column: pa.Array) -> pa.Array:
        offsets, children = elements(column)
        with inside("", owners(offsets)):
            entries = self._entries(children)
        lists = pa.ListArray.from_arrays(to_arrow(offsets.astype(np.int32)), entries)
        inner = pc.binary_join(lists, _COMMA)
        return joined([constant(self._open, len(column)), inner, constant(self._close, len(column))])

    def _entries(self, children: Sequence[pa.Array]) -> pa.Array:
        (items,) = children
        return self._written(items)

    def _written(self, values: pa.Array) -> pa.Array:
        present = valid(values)
        if present.all():
            return self._items.write(values)
        if not self._nullable:
            refuse_at(~present, f"{self._path}[]", "null, which the schema does not allow")
        return joined([write_some(self._items, values, present), constant_where(b"null", ~present)])


class _Map(_List):
    _open, _close = b"{", b"}"

    def _entries(self, children: Sequence[pa.Array]) -> pa.Array:
        keys, items = children
        return joined([_Text().write(keys), constant(b":", len(keys)), self._written(items)])
