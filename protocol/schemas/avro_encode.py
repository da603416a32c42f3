"""Write Arrow columns as Avro values: each field becomes a column of bytes, and the columns are joined row by row.

The counterpart of `avro_columns`. Types are checked once, when the encoder is made, values column by column.

Source: the Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.base.listing import CHOICES, listed
from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import to_numpy, valid
from protocol.schemas.avro_default import encode_default, zigzag_varint
from protocol.schemas.avro_schema import NO_DEFAULT, AvroField, AvroType, widened_kind
from protocol.schemas.decoding import inside, text_values
from protocol.schemas.encoding import (
    ColumnWriter,
    binary_values,
    bytes_of,
    constant,
    constant_where,
    elements,
    fixed_width,
    joined,
    owners,
    refuse_at,
    write_some,
    zigzag_varints,
)

_STORED = {"float": "<f4", "double": "<f8"}
# Arrow types whose values a type can take without loss.
_TAKES: dict[str, tuple[pa.DataType, ...]] = {
    "null": (pa.null(),),
    "boolean": (pa.bool_(),),
    "int": (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()),
    "long": (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    "float": (pa.float32(),),
    "double": (pa.float32(), pa.float64()),
    "bytes": (pa.binary(), pa.large_binary()),
    "string": (pa.string(), pa.large_string()),
    "enum": (pa.string(), pa.large_string()),
    "fixed": (pa.binary(), pa.large_binary()),
}
_DECIMAL_BYTES = 16
# Spark's type of a union of null alone.
_NO_FIELDS = pa.struct([])


def encoder(avro: AvroType, kind: pa.DataType) -> ColumnWriter:
    """Return a writer of columns of an Arrow type with a schema; null of the column itself stays null.

    Raises `ConfigurationError`: the schema cannot take the column; the message has the field's path.
    """
    return _writer(avro, kind, "")


def _writer(avro: AvroType, kind: pa.DataType, path: str) -> ColumnWriter:
    if avro.kind == "union":
        return _union(avro, kind, path)
    if avro.kind == "record" and pa.types.is_struct(kind):
        return _record(avro, kind, path)
    if avro.kind == "array" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return _Items(_required(avro.children[0], kind.value_type, f"{path}[]"))
    if avro.kind == "map" and pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return _Map(_required(avro.children[0], kind.item_type, f"{path}[]"))
    writer = _leaf(avro, kind, path)
    if writer is None:
        raise _cannot_take(avro, kind, path)
    return writer


def _leaf(avro: AvroType, kind: pa.DataType, path: str) -> ColumnWriter | None:
    """Return a writer for a type without fields and items; None: it cannot take the column."""
    if avro.logical == "decimal":
        fits = pa.types.is_decimal128(kind) and kind.scale == avro.scale and kind.precision <= avro.precision
        return _Decimal(avro) if fits else None
    if avro.logical == "date":
        return _Number() if pa.types.is_date32(kind) else None
    if avro.logical is not None:
        fits = "timestamp" in avro.logical and pa.types.is_timestamp(kind)
        fits = fits and avro.logical.startswith("local") == (kind.tz is None)
        return _Timestamp(avro.logical.endswith("millis")) if fits else None
    return _simple(avro, path) if kind in _TAKES.get(avro.kind, ()) else None


def _cannot_take(avro: AvroType, kind: pa.DataType, path: str) -> ConfigurationError:
    return ConfigurationError(f"{path or 'the column'} is {kind}, which the schema's {avro.text} cannot take")


def _simple(avro: AvroType, path: str) -> ColumnWriter:
    if avro.kind == "null":
        return _Constant(b"")
    if avro.kind in ("int", "long"):
        return _Number()
    if avro.kind in ("float", "double"):
        return _FixedWidth(_STORED[avro.kind])
    if avro.kind == "boolean":
        return _Boolean()
    if avro.kind == "enum":
        return _Enum(avro, path)
    return _Fixed(avro.size_bytes, path) if avro.kind == "fixed" else _Bytes()


def _record(avro: AvroType, kind: pa.StructType, path: str) -> ColumnWriter:
    names = [field.name for field in kind]
    if unknown := [name for name in names if name not in {field.name for field in avro.fields}]:
        raise ConfigurationError(
            f"the schema has no field {f'{path}.' if path else ''}{unknown[0]}; it has "
            f"{listed([field.name for field in avro.fields], CHOICES)}"
        )
    steps: list[tuple[int | None, ColumnWriter]] = []
    for field in avro.fields:
        below = f"{path}.{field.name}" if path else field.name
        if field.name in names:
            number = names.index(field.name)
            steps.append((number, _required(field.type, kind.field(number).type, below)))
        else:
            steps.append((None, _default(field, below)))
    return _Record(steps)


def _default(field: AvroField, path: str) -> ColumnWriter:
    if field.default is NO_DEFAULT:
        raise ConfigurationError(f"the column has no field {path}, which has no default in the schema")
    try:
        return _Constant(encode_default(field.type, field.default))
    except ValueError as error:
        raise ConfigurationError(f"{path} has {error}") from None


def _required(avro: AvroType, kind: pa.DataType, path: str) -> ColumnWriter:
    """Return a writer that refuses null, unless the type takes it."""
    writer = _writer(avro, kind, path)
    return writer if avro.nullable else _NotNull(writer, avro, path)


def _union(avro: AvroType, kind: pa.DataType, path: str) -> ColumnWriter:
    null = next((number for number, branch in enumerate(avro.children) if branch.kind == "null"), None)
    members = avro.members
    if _has_members(avro, kind):
        writers = [_writer(member, field.type, path) for member, field in zip(members, kind, strict=True)]
        return _Members([avro.children.index(member) for member in members], writers, null, path)
    if null is not None and (pa.types.is_null(kind) or (not members and kind == _NO_FIELDS)):
        return _Constant(zigzag_varint(null))
    for number, branch in enumerate(avro.children):
        if branch.kind == "null":
            continue
        try:
            return _Union(number, _writer(branch, kind, path), null, path)
        except ConfigurationError:
            if len(members) == 1:
                raise
    raise _cannot_take(avro, kind, path)


def _has_members(union: AvroType, kind: pa.DataType) -> bool:
    """Return whether Spark's type of the union is a struct of members, and the column is one."""
    if len(union.members) < 2 or widened_kind(union) or not pa.types.is_struct(kind):
        return False
    return [field.name for field in kind] == [f"member{number}" for number in range(len(union.members))]


class _NotNull(ColumnWriter):
    def __init__(self, writer: ColumnWriter, avro: AvroType, path: str) -> None:
        self._writer, self._avro, self._path = writer, avro, path

    def write(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            refuse_at(~valid(column), self._path, f"null, which the schema's {self._avro.text} cannot take")
        return self._writer.write(column)


class _Constant(ColumnWriter):
    def __init__(self, value: bytes) -> None:
        self._value = value

    def write(self, column: pa.Array) -> pa.Array:
        return constant(self._value, len(column))


class _Number(ColumnWriter):
    def write(self, column: pa.Array) -> pa.Array:
        integers = column.view(pa.int32()) if pa.types.is_date32(column.type) else column
        return zigzag_varints(to_numpy(integers).astype(np.int64))


class _Timestamp(ColumnWriter):
    def __init__(self, millis: bool) -> None:
        self._millis = millis

    def write(self, column: pa.Array) -> pa.Array:
        micros = column.cast(pa.timestamp("us", column.type.tz)) if column.type.unit != "us" else column
        numbers = to_numpy(micros)
        return zigzag_varints(numbers // 1000 if self._millis else numbers.astype(np.int64))


class _FixedWidth(ColumnWriter):
    def __init__(self, stored: str) -> None:
        self._stored = stored

    def write(self, column: pa.Array) -> pa.Array:
        return fixed_width(to_numpy(column).astype(self._stored))


class _Boolean(ColumnWriter):
    def write(self, column: pa.Array) -> pa.Array:
        return fixed_width(to_numpy(column.cast(pa.uint8())))


class _Bytes(ColumnWriter):
    def write(self, column: pa.Array) -> pa.Array:
        raw = column.cast(pa.binary())
        return joined([zigzag_varints(to_numpy(pc.binary_length(raw)).astype(np.int64)), raw])


class _Fixed(ColumnWriter):
    def __init__(self, size_bytes: int, path: str) -> None:
        self._size_bytes, self._path = size_bytes, path

    def write(self, column: pa.Array) -> pa.Array:
        raw = column.cast(pa.binary())
        wrong = to_numpy(pc.binary_length(raw)) != self._size_bytes
        refuse_at(wrong, self._path, f"other than {self._size_bytes} bytes")
        return raw


class _Enum(ColumnWriter):
    def __init__(self, avro: AvroType, path: str) -> None:
        self._symbols = text_values(avro.symbols)
        self._path = path

    def write(self, column: pa.Array) -> pa.Array:
        index = pc.index_in(column.cast(pa.string()), self._symbols)
        refuse_at(~valid(index), self._path, "a text that is no symbol of the enum")
        return zigzag_varints(to_numpy(index).astype(np.int64))


class _Decimal(ColumnWriter):
    def __init__(self, avro: AvroType) -> None:
        self._size_bytes = avro.size_bytes if avro.kind == "fixed" else None

    def write(self, column: pa.Array) -> pa.Array:
        raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, _DECIMAL_BYTES)
        big = raw[column.offset : column.offset + len(column), ::-1]
        sign = np.where(big[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
        if self._size_bytes is not None:
            if self._size_bytes > _DECIMAL_BYTES:
                big = np.concatenate([np.repeat(sign, self._size_bytes - _DECIMAL_BYTES, axis=1), big], axis=1)
            digits = np.ascontiguousarray(big[:, big.shape[1] - self._size_bytes :])
            return binary_values(digits.reshape(-1), np.arange(1, len(column) + 1, dtype=np.int64) * self._size_bytes)
        # The fewest bytes: drop leading bytes that repeat the sign, as long as the next one has it, too.
        droppable = (big[:, :-1] == sign) & ((big[:, 1:] >= 0x80) == (sign == 0xFF))
        dropped = np.cumprod(droppable, axis=1).sum(axis=1)
        sizes = _DECIMAL_BYTES - dropped
        keep = np.arange(_DECIMAL_BYTES) >= dropped[:, None]
        return joined([zigzag_varints(sizes.astype(np.int64)), binary_values(big[keep], np.cumsum(sizes))])


class _Record(ColumnWriter):
    def __init__(self, steps: Sequence[tuple[int | None, ColumnWriter]]) -> None:
        self._steps = steps

    def write(self, column: pa.Array) -> pa.Array:
        if not self._steps:
            return constant(b"", len(column))
        fields = [column if number is None else column.field(number) for number, _ in self._steps]
        return joined([writer.write(field) for field, (_, writer) in zip(fields, self._steps, strict=True)])


class _Items(ColumnWriter):
    def __init__(self, items: ColumnWriter) -> None:
        self._items = items

    def write(self, column: pa.Array) -> pa.Array:
        offsets, children = elements(column)
        with inside("", owners(offsets)):
            entries = self._entries(children)
        data, ends = bytes_of(entries)
        blocks = binary_values(data, ends[offsets[1:]])
        counts = np.diff(offsets)
        # An empty array is one zero byte, any other ends with one behind its items.
        return joined([zigzag_varints(counts), blocks, constant_where(b"\0", counts > 0)])

    def _entries(self, children: Sequence[pa.Array]) -> pa.Array:
        (items,) = children
        return self._items.write(items)


class _Map(_Items):
    def _entries(self, children: Sequence[pa.Array]) -> pa.Array:
        keys, items = children
        return joined([_Bytes().write(keys), self._items.write(items)])


class _Union(ColumnWriter):
    """A union of which a column has one branch, and null."""

    def __init__(self, branch: int, writer: ColumnWriter, null: int | None, path: str) -> None:
        self._branch, self._writer, self._null, self._path = branch, writer, null, path

    def write(self, column: pa.Array) -> pa.Array:
        present = valid(column)
        if present.all():
            return joined([constant(zigzag_varint(self._branch), len(column)), self._writer.write(column)])
        if self._null is None:
            refuse_at(~present, self._path, "null, which the schema's union cannot take")
        branch = zigzag_varints(np.where(present, self._branch, self._null or 0))
        return joined([branch, write_some(self._writer, column, present)])


class _Members(ColumnWriter):
    """A union whose branches are the fields of a struct, of which one is not null."""

    def __init__(self, branches: Sequence[int], writers: Sequence[ColumnWriter], null: int | None, path: str) -> None:
        self._branches, self._writers, self._null, self._path = branches, writers, null, path

    def write(self, column: pa.Array) -> pa.Array:
        present = valid(column)
        full = np.full(len(column), -1 if self._null is None else self._null, np.int64)
        values: list[pa.Array] = []
        count = np.zeros(len(column), np.int64)
        for number, (branch, writer) in enumerate(zip(self._branches, self._writers, strict=True)):
            member = column.field(number)
            has = valid(member) & present
            count += has
            full[has] = branch
            values.append(write_some(writer, member, has))
        refuse_at(count > 1, self._path, "more than one member of a union")
        refuse_at((full < 0) & present, self._path, "no member of a union that cannot be null")
        return joined([zigzag_varints(np.maximum(full, 0)), *values])
