"""Write Arrow columns as Protobuf messages: each field becomes a column of bytes, and these are joined row by row.

The counterpart of `protobuf_columns`. Types are checked once, when the encoder is made, values column by column. Fields
are written in the order of their numbers, as other implementations do.

Source: the Protobuf documentation, "Encoding".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import to_arrow, to_numpy, valid
from protocol.schemas.decoding import inside, text_values
from protocol.schemas.encoding import (
    ColumnWriter,
    binary_values,
    bytes_of,
    constant,
    elements,
    fixed_width,
    joined,
    mask,
    owners,
    refuse_at,
    spread,
    unsigned_varints,
    write_some,
)
from protocol.schemas.proto_text import MAP_KEYS
from protocol.schemas.protobuf_columns import WRAPPERS, time_type
from protocol.schemas.protobuf_scan import BYTES, FIXED32, FIXED64, GROUP, GROUP_END, VARINT
from protocol.schemas.protobuf_schema import EnumType, FieldType, MessageType

_SMALL = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_WIDE = (*_SMALL, pa.int64(), pa.uint32())
# Arrow types that each kind accepts without loss. Unsigned kinds accept signed types, as the decoder returns them, and
# write the same bits. But an int64 for uint32 or fixed32 must be in their range.
_TAKES: dict[str, tuple[pa.DataType, ...]] = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), _SMALL),
    **dict.fromkeys(("uint32", "fixed32"), _WIDE),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), _WIDE),
    **dict.fromkeys(("uint64", "fixed64"), (*_WIDE, pa.uint64(), pa.decimal128(20, 0))),
    "bool": (pa.bool_(),),
    "float": (pa.float32(),),
    "double": (pa.float32(), pa.float64()),
    "string": (pa.string(), pa.large_string()),
    "bytes": (pa.binary(), pa.large_binary()),
    "enum": (pa.string(), pa.large_string(), *_SMALL),
}
_FIXED = {"double": "<f8", "float": "<f4", "fixed64": "<u8", "sfixed64": "<u8", "fixed32": "<u4", "sfixed32": "<u4"}
_MICROS = 1_000_000
_MAX_UINT32 = 2**32 - 1


def encoder(message: MessageType, kind: pa.DataType) -> ColumnWriter:
    """Return a writer of columns of an Arrow type as messages; `encoding.encode` keeps nulls of the column itself.

    Raises `ConfigurationError`: the message cannot take the column; the text has the field's path.
    """
    if not pa.types.is_struct(kind):
        raise ConfigurationError(f"the column is {kind}, which the message {message.name} cannot take")
    return _Message(message, kind, "")


# -- values: without tag and length -----------------------------------------------------------


@dataclass(frozen=True)
class _Values:
    """Bytes of the values of a column without nulls, and which of them are zero or empty."""

    encoded: pa.Array
    empty: npt.NDArray[np.bool_]


class _Item:
    """Writes values of one type.

    `wire`: the wire type; before `BYTES` the length is written.
    """

    wire: int = BYTES

    def values(self, column: pa.Array) -> _Values:
        """Return the values of a column without nulls. Raises `InvalidRows`."""
        raise NotImplementedError


class _Number(_Item):
    def __init__(self, kind: str, path: str) -> None:
        self._kind, self._path = kind, path
        self.wire = VARINT
        if kind in _FIXED:
            self.wire = FIXED64 if _FIXED[kind].endswith("8") else FIXED32

    def values(self, column: pa.Array) -> _Values:
        kind = self._kind
        if kind == "bool":
            numbers: npt.NDArray[Any] = to_numpy(column.cast(pa.uint8())).astype(np.uint64)
        elif kind in ("float", "double"):
            numbers = to_numpy(column).astype(_FIXED[kind])
            bits = numbers.view("<u8" if kind == "double" else "<u4")
            return _Values(fixed_width(numbers), bits == 0)
        else:
            numbers = self._integers(column)
        if kind in _FIXED:
            return _Values(fixed_width(numbers.astype(_FIXED[kind])), numbers == 0)
        return _Values(unsigned_varints(numbers), numbers == 0)

    def _integers(self, column: pa.Array) -> Any:
        """Return the bits to write as uint64; fixed kinds of 4 bytes take the lower half."""
        kind = self._kind
        if pa.types.is_decimal128(column.type):
            words = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
            words = words[column.offset : column.offset + len(column)]
            refuse_at(words[:, 1] != 0, self._path, f"a number that {kind} cannot have")
            return np.ascontiguousarray(words[:, 0])
        if column.type == pa.uint64():
            return to_numpy(column)
        numbers = to_numpy(column).astype(np.int64)
        if kind in ("uint32", "fixed32"):
            if column.type == pa.int64():
                refuse_at((numbers < 0) | (numbers > _MAX_UINT32), self._path, f"a number that {kind} cannot have")
            return numbers.view(np.uint64) & np.uint64(_MAX_UINT32)
        if kind in ("sint32", "sint64"):
            return ((numbers >> 63) ^ (numbers << 1)).view(np.uint64)
        return numbers.view(np.uint64)


class _Enum(_Number):
    def __init__(self, enum: EnumType, path: str) -> None:
        super().__init__("int32", path)
        self._enum = enum
        self._names = text_values(enum.numbers)
        self._numbers = np.array(list(enum.numbers.values()), np.int64)

    def _integers(self, column: pa.Array) -> Any:
        if pa.types.is_integer(column.type):
            return super()._integers(column)
        index = pc.index_in(column.cast(pa.string()), self._names)
        refuse_at(~valid(index), self._path, f"a text that is no symbol of the enum {self._enum.name}")
        return self._numbers[to_numpy(index)].view(np.uint64)


class _Bytes(_Item):
    def values(self, column: pa.Array) -> _Values:
        raw = column.cast(pa.binary())
        return _Values(raw, to_numpy(pc.binary_length(raw)) == 0)


class _Time(_Item):
    """`Timestamp` and `Duration`."""

    def __init__(self, message: MessageType, toward_zero: bool) -> None:
        self._seconds, self._nanos = (_Field(field, _Number(field.kind, ""), "") for field in message.fields)
        self._toward_zero = toward_zero

    def values(self, column: pa.Array) -> _Values:
        unit = pa.duration("us") if pa.types.is_duration(column.type) else pa.timestamp("us", column.type.tz)
        micros = to_numpy((column if column.type == unit else column.cast(unit)).cast(pa.int64()))
        seconds = micros // _MICROS
        if self._toward_zero:
            seconds = seconds + ((micros < 0) & (micros % _MICROS != 0))
        nanos = ((micros - seconds * _MICROS) * 1000).astype(np.int32)
        parts = (self._seconds.write(_plain(seconds)), self._nanos.write(_plain(nanos)))
        return _Values(joined(parts), np.zeros(len(column), np.bool_))


def _plain(numbers: npt.NDArray[Any]) -> pa.Array:
    kind = pa.from_numpy_dtype(numbers.dtype)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


class _Wrapped(_Item):
    """A wrapper such as `Int64Value`, from its value."""

    def __init__(self, field: ColumnWriter) -> None:
        self._field = field

    def values(self, column: pa.Array) -> _Values:
        return _Values(self._field.write(column), np.zeros(len(column), np.bool_))


class _Nested(_Item):
    def __init__(self, message: ColumnWriter, is_group: bool) -> None:
        self._message = message
        self.wire = GROUP if is_group else BYTES

    def values(self, column: pa.Array) -> _Values:
        return _Values(self._message.write(column), np.zeros(len(column), np.bool_))


# -- fields -----------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def _lengths(column: pa.Array) -> pa.Array:
    return unsigned_varints(to_numpy(pc.binary_length(column)).astype(np.uint64))


class _Tagged(ColumnWriter):
    """Writes values without nulls behind tag and length."""

    def __init__(self, number: int, item: _Item) -> None:
        self._item = item
        self._tag = _varint(number << 3 | item.wire)
        self._end = _varint(number << 3 | GROUP_END) if item.wire == GROUP else b""

    def write(self, column: pa.Array) -> pa.Array:
        return self.framed(self._item.values(column).encoded)

    def framed(self, encoded: pa.Array) -> pa.Array:
        parts = [constant(self._tag, len(encoded))]
        if self._item.wire == BYTES:
            parts.append(_lengths(encoded))
        parts.append(encoded)
        if self._end:
            parts.append(constant(self._end, len(encoded)))
        return joined(parts)


class _Field(ColumnWriter):
    """Writes a single field: nothing for null, nor for zero without presence."""

    def __init__(self, field: FieldType, item: _Item, path: str) -> None:
        self._field, self._item, self._path = field, item, path
        self._tagged = _Tagged(field.number, item)

    def write(self, column: pa.Array) -> pa.Array:
        present = valid(column)
        if self._field.required:
            refuse_at(~present, self._path, "null, which a required field cannot have")
        if not self._field.presence:
            rows = np.flatnonzero(present)
            with inside("", rows):
                values = self._item.values(column if len(rows) == len(column) else column.take(to_arrow(rows)))
            present = ~values.empty
            encoded = self._tagged.framed(values.encoded if present.all() else values.encoded.filter(mask(present)))
            return spread(encoded, rows[present], len(column))
        if present.all():
            return self._tagged.write(column)
        return write_some(self._tagged, column, present)


class _Repeated(ColumnWriter):
    """Writes arrays and maps: each item behind its tag, or the numbers of an array behind one tag."""

    def __init__(self, field: FieldType, item: _Item, path: str) -> None:
        self._item, self._path = item, path
        self._tagged = _Tagged(field.number, item)
        self._packed = _Tagged(field.number, _Item()) if field.packed else None

    def write(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            present = valid(column)
            if not present.all():
                return write_some(self, column, present)
        offsets, children = elements(column)
        items = pa.StructArray.from_arrays(children, ["key", "value"]) if len(children) > 1 else children[0]
        with inside("", owners(offsets)):
            if items.null_count:
                refuse_at(~valid(items), self._path, "null in an array or map")
            values = self._item.values(items).encoded
        data, ends = bytes_of(values if self._packed else self._tagged.framed(values))
        blocks = binary_values(data, ends[offsets[1:]])
        if self._packed is None:
            return blocks
        some = np.flatnonzero(np.diff(offsets))
        blocks = blocks if len(some) == len(column) else blocks.take(to_arrow(some))
        return spread(self._packed.framed(blocks), some, len(column))


class _Message(ColumnWriter):
    """Writes structs as messages, without tag and length.

    Raises `ConfigurationError`: the message cannot take the struct.
    """

    def __init__(self, message: MessageType, kind: pa.StructType, path: str) -> None:
        self._path = path
        names = [kind.field(number).name for number in range(kind.num_fields)]
        types = {field.name: field for field in message.fields}
        prefix = f"{path}." if path else ""
        if unknown := [name for name in names if name not in types]:
            raise ConfigurationError(
                f"the schema has no field {prefix}{unknown[0]}; it has {listed(types, CHOICES) or 'none'}"
            )
        if missing := [field.name for field in message.fields if field.required and field.name not in names]:
            raise ConfigurationError(f"the column has no field {prefix}{missing[0]}, which is required in the schema")
        chosen = sorted(names, key=lambda name: types[name].number)
        self._steps = [
            (names.index(name), _field(types[name], kind.field(name).type, f"{prefix}{name}", message.is_map_entry))
            for name in chosen
        ]
        oneofs: dict[int, list[int]] = {}
        for number, name in enumerate(names):
            oneof = types[name].oneof
            if oneof is not None:
                oneofs.setdefault(oneof, []).append(number)
        self._oneofs = [numbers for numbers in oneofs.values() if len(numbers) > 1]

    def write(self, column: pa.Array) -> pa.Array:
        for numbers in self._oneofs:
            count = np.zeros(len(column), np.int64)
            for number in numbers:
                count += valid(column.field(number))
            refuse_at(count > 1, self._path, "more than one member of a oneof")
        parts = [writer.write(column.field(number)) for number, writer in self._steps]
        return joined(parts) if parts else constant(b"", len(column))


def _field(field: FieldType, kind: pa.DataType, path: str, in_map: bool) -> ColumnWriter:
    if field.repeated:
        entry = field.message is not None and field.message.is_map_entry
        if entry and pa.types.is_map(kind):
            assert field.message is not None
            pairs = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
            return _Repeated(field, _Nested(_Message(field.message, pairs, path), False), path)
        if not entry and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            return _Repeated(field, _item(field, kind.value_type, path), path)
        raise _cannot_take(field, kind, path)
    item = _item(field, kind, path)
    # Entries of maps always have both fields.
    return _Required(field, item, path) if in_map else _Field(field, item, path)


class _Required(ColumnWriter):
    """Writes the key or value of a map's entry, which may not be null and is written even if zero."""

    def __init__(self, field: FieldType, item: _Item, path: str) -> None:
        self._tagged, self._path = _Tagged(field.number, item), path

    def write(self, column: pa.Array) -> pa.Array:
        refuse_at(~valid(column), self._path, "null in an array or map")
        return self._tagged.write(column)


def _item(field: FieldType, kind: pa.DataType, path: str) -> _Item:
    if field.enum is not None:
        if kind in _TAKES["enum"]:
            return _Enum(field.enum, path)
    elif field.message is not None:
        return _message_item(field, field.message, kind, path)
    elif kind in _TAKES[field.kind]:
        return _Bytes() if field.kind in ("string", "bytes") else _Number(field.kind, path)
    raise _cannot_take(field, kind, path)


def _message_item(field: FieldType, message: MessageType, kind: pa.DataType, path: str) -> _Item:
    time = time_type(message)
    if time is not None:
        if pa.types.is_duration(time) and pa.types.is_duration(kind):
            return _Time(message, toward_zero=True)
        if pa.types.is_timestamp(time) and pa.types.is_timestamp(kind) and kind.tz is not None:
            return _Time(message, toward_zero=False)
    if pa.types.is_struct(kind):
        return _Nested(_Message(message, kind, path), field.kind == "group")
    if message.name in WRAPPERS:
        only = message.fields[0]
        return _Wrapped(_Field(only, _item(only, kind, path), path))
    raise _cannot_take(field, kind, path)


def _cannot_take(field: FieldType, kind: pa.DataType, path: str) -> ConfigurationError:
    named = field.message or field.enum
    text = f"{'repeated ' if field.repeated else ''}{field.kind if named is None else named.name}"
    return ConfigurationError(f"{path} is {kind}, which the schema's {text} cannot take")


# -- schemas of columns -----------------------------------------------------------------------

_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = {
    pa.bool_(): "bool",
    pa.int8(): "int32",
    pa.int16(): "int32",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}
_TIMES = {"Timestamp": "google/protobuf/timestamp.proto", "Duration": "google/protobuf/duration.proto"}


def schema_of(kind: pa.DataType, name: str = "Value") -> str:
    """Return the text of a proto3 file for a column, with fields numbered in their order.

    `name`: the message, with or without its package.
    Raises `ConfigurationError`: a field has a type, or a name, that Protobuf does not have.
    """
    if not pa.types.is_struct(kind):
        raise ConfigurationError(f"a column of the type {kind} has no Protobuf schema; make it a struct")
    imports: set[str] = set()
    body = _body(kind, "", "  ", imports)
    package, _, message = name.rpartition(".")
    lines = [f"package {package};"] if package else []
    lines += [f'import "{_TIMES[time]}";' for time in sorted(imports)]
    return "\n".join(['syntax = "proto3";', *lines, f"message {message} {{", *body, "}", ""])


def _body(kind: pa.StructType, path: str, indent: str, imports: set[str]) -> list[str]:
    lines: list[str] = []
    taken = {field.name for field in kind}  # a message may not have the name of a field
    for number in range(kind.num_fields):
        field = kind.field(number)
        below = f"{path}.{field.name}" if path else field.name
        if not _NAME.fullmatch(field.name):
            raise ConfigurationError(f"{below} is no name of a Protobuf field: it may have letters, digits and _")
        nested: list[str] = []
        if pa.types.is_map(field.type):
            key = _SCALARS.get(field.type.key_type, "")
            if key not in MAP_KEYS:
                raise ConfigurationError(f"{below} is {field.type}; keys of a map are texts, integers or booleans")
            value = _type_name(field.type.item_type, below, field.name, indent, imports, nested, taken)
            text = f"map<{key}, {value}>"
        elif pa.types.is_list(field.type):
            text = f"repeated {_type_name(field.type.value_type, below, field.name, indent, imports, nested, taken)}"
        else:
            text = f"optional {_type_name(field.type, below, field.name, indent, imports, nested, taken)}"
        lines += [*nested, f"{indent}{text} {field.name} = {number + 1};"]
    return lines


def _type_name(
    kind: pa.DataType, path: str, name: str, indent: str, imports: set[str], nested: list[str], taken: set[str]
) -> str:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if pa.types.is_duration(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None):
        time = "Duration" if pa.types.is_duration(kind) else "Timestamp"
        imports.add(time)
        return f"google.protobuf.{time}"
    if pa.types.is_struct(kind):
        made = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Value"
        while made in taken:
            made += "_"
        taken.add(made)
        nested += [f"{indent}message {made} {{", *_body(kind, path, f"{indent}  ", imports), f"{indent}}}"]
        return made
    raise ConfigurationError(f"{path} has the type {kind}, which Protobuf does not have; cast it to another one")


def message_indexes(indexes: Sequence[int]) -> bytes:
    """Encode Confluent's message indexes, which follow the schema id in front of a value."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(indexes), *indexes))


def message_index(index: int) -> bytes:
    """Encode AWS Glue's message index, which follows the header of a value."""
    return _varint(index)
