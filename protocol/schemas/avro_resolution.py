"""Read records of one Avro schema with another: the writer's and the reader's schema give a tree of column readers.

Source: the Avro specification 1.12, "Schema Resolution". Stricter in one point: a change that would give other values
without an error, such as another scale of a decimal or another unit of a timestamp, is an incompatible change.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.records.varints import Bytes, Positions
from protocol.schemas.avro_columns import (
    ArrayReader,
    BytesReader,
    ColumnReader,
    EnumReader,
    FieldStep,
    FixedWidthReader,
    MemberReader,
    NullReader,
    NumberReader,
    RecordReader,
    UnionReader,
    read_column,
)
from protocol.schemas.avro_default import encode_default
from protocol.schemas.avro_schema import NO_DEFAULT, AvroField, AvroType, arrow_type, widened_kind
from protocol.schemas.decoding import InvalidRows, InvalidValue, check_fields, read_valid, refuse

# By the writer's type: the reader's types that it may be read as.
_PROMOTIONS = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
    "bytes": ("bytes", "string"),
    "string": ("string", "bytes"),
}
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


class Incompatible(Exception):
    """The reader's schema cannot read what the writer's schema writes; the text has the field's path."""


def column_reader(writer: AvroType, reader: AvroType, path: str = "") -> ColumnReader:
    """Return a `ColumnReader` that reads the writer's bytes as a column of the reader's Arrow type.

    `path` is the field's path for error messages.

    Raises `Incompatible`: no value of the writer's schema can be read with the reader's.
    """
    if writer.kind == "union":
        return _from_union(writer, reader, path)
    if reader.kind == "union":
        return _to_union(writer, reader, path)
    if reader.kind in _PROMOTIONS.get(writer.kind, ()):
        return _primitive(writer, reader, path)
    kind = writer.kind
    if kind != reader.kind or (kind in ("record", "enum", "fixed") and not _same_name(writer, reader)):
        raise _incompatible(writer, reader, path)
    if kind == "record":
        return _record(writer, reader, path)
    if kind in ("array", "map"):
        return _items(writer, reader, path)
    if kind == "enum":
        own = set(reader.symbols)
        symbols = [symbol if symbol in own else reader.default for symbol in writer.symbols]
        return EnumReader(symbols, writer.symbols)
    if kind == "fixed":
        if writer.size_bytes != reader.size_bytes:
            raise _incompatible(writer, reader, path)
        _require_same_logical(writer, reader, path)
        return BytesReader(arrow_type(reader), writer.size_bytes)
    return NullReader() if kind == "null" else FixedWidthReader("u1", pa.bool_())


def _incompatible(writer: AvroType, reader: AvroType, path: str) -> Incompatible:
    return Incompatible(f"{path or 'the value'} is {writer.text} in the writer's schema, {reader.text} in the reader's")


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    """Compare names as Java does: without the namespace, or by the reader's aliases."""
    short = writer.name.rpartition(".")[2]
    return short == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _require_same_logical(writer: AvroType, reader: AvroType, path: str) -> None:
    if (writer.logical, writer.precision, writer.scale) == (reader.logical, reader.precision, reader.scale):
        return
    wider = writer.logical == reader.logical == "decimal" and writer.scale == reader.scale
    if not (wider and writer.precision <= reader.precision):
        raise _incompatible(writer, reader, path)


def _primitive(writer: AvroType, reader: AvroType, path: str) -> ColumnReader:
    written, read = (kind.logical or kind.unit for kind in (writer, reader))
    # A plain number may become a date or a timestamp, and the reverse: the number stays the same.
    if written != read and None not in (written, read):
        raise _incompatible(writer, reader, path)
    if writer.logical is not None or reader.logical is not None:
        if writer.kind in ("bytes", "string"):
            _require_same_logical(writer, reader, path)
        if reader.kind not in (writer.kind, "long"):
            raise _incompatible(writer, reader, path)
    target = arrow_type(reader)
    if writer.kind in ("int", "long"):
        return NumberReader(writer.kind, target, 1000 if reader.logical in _MILLIS else 1)
    if writer.kind in ("float", "double"):
        return FixedWidthReader("<f4" if writer.kind == "float" else "<f8", target)
    return BytesReader(target)


def _items(writer: AvroType, reader: AvroType, path: str) -> ColumnReader:
    values = column_reader(writer.children[0], reader.children[0], f"{path}[]")
    target = arrow_type(reader)
    if reader.kind == "array":
        return ArrayReader(target, values)
    entries = pa.struct([target.key_field, target.item_field])
    steps = [FieldStep("", BytesReader(pa.string()), 0), FieldStep("", values, 1)]
    return ArrayReader(target, RecordReader(entries, steps, {}))


def _record(writer: AvroType, reader: AvroType, path: str) -> ColumnReader:
    columns: dict[str, int] = {}
    defaults: dict[int, pa.Array] = {}
    written = {field.name for field in writer.fields}
    for number, field in enumerate(reader.fields):
        names = [name for name in (field.name, *field.aliases) if name in written and name not in columns]
        if names:
            columns[names[0]] = number
        else:
            defaults[number] = _default_column(field, path)
    steps: list[FieldStep] = []
    for field in writer.fields:
        below = f"{path}.{field.name}" if path else field.name
        column = columns.get(field.name)
        target = field.type if column is None else reader.fields[column].type
        steps.append(FieldStep(field.name, column_reader(field.type, target, below), column))
    return RecordReader(arrow_type(reader), steps, defaults)


def _default_column(field: AvroField, path: str) -> pa.Array:
    """Return the default as a column of one row: it is encoded and read again."""
    below = f"{path}.{field.name}" if path else field.name
    if field.default is NO_DEFAULT:
        raise Incompatible(f"{below} is missing in the writer's schema, and has no default in the reader's")
    reader = column_reader(field.type, field.type, below)
    try:
        encoded = encode_default(field.type, field.default)
        # A byte follows, so that the buffer is not empty: a value such as null has no bytes.
        data = np.frombuffer(encoded + b"\0", np.uint8)
        column, _ = read_column(reader, data, np.zeros(1, np.int64), np.array([len(encoded)]))
    except ValueError as error:
        raise Incompatible(f"{below} has {error}") from None
    except InvalidRows as error:
        raise Incompatible(f"{below} has a default with {error}") from None
    return column


def _to_union(writer: AvroType, reader: AvroType, path: str) -> ColumnReader:
    """Read values of one type as a union: the first branch of the same type, else the first that can take them."""
    target = arrow_type(reader)
    if writer.kind == "null":
        if reader.nullable:
            return NullReader(target)
        raise _incompatible(writer, reader, path)
    members = reader.members
    if len(members) == 1:
        return column_reader(writer, members[0], path)

    def is_same(member: AvroType) -> bool:
        return member.kind == writer.kind and (not member.name or member.name == writer.name)

    for number, member in sorted(enumerate(members), key=lambda pair: not is_same(pair[1])):
        try:
            reader_of_member = column_reader(writer, member, path)
        except Incompatible:
            continue
        # Such a union, for example of int and long, is read as one number.
        if widened := widened_kind(reader):
            return column_reader(writer, AvroType(widened), path)
        return MemberReader(target, number, reader_of_member)
    raise _incompatible(writer, reader, path)


def _from_union(writer: AvroType, reader: AvroType, path: str) -> ColumnReader:
    """Read each branch as the reader's type. A branch that cannot be read fails only the records that have it."""
    branches: list[ColumnReader | str] = []
    for branch in writer.children:
        try:
            branches.append(column_reader(branch, reader, path))
        except Incompatible as error:
            branches.append(str(error))
    if all(isinstance(branch, str) for branch in branches):
        namesakes = (
            number for number, branch in enumerate(writer.children) if branch.name and _same_name(branch, reader)
        )
        raise Incompatible(branches[next(namesakes, 0)])
    return UnionReader(arrow_type(reader), branches)


class AvroDecoder:
    """Decodes columns of Avro values that were written with one schema.

    Raises `ConfigurationError`: the reader's schema cannot read what the writer's writes.
    """

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self.type = arrow_type(reader)
        try:
            self._reader = column_reader(writer, reader)
        except Incompatible as error:
            raise ConfigurationError(f"incompatible Avro schemas: {error}") from None

    def decode(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions, list[InvalidValue]]:
        """Decode values, as `decoding.ValueDecoder`."""
        return read_valid(self._read, data, at, ends)

    def _read(self, data: Bytes, at: Positions, ends: Positions) -> pa.Array:
        column, after = read_column(self._reader, data, at, ends)
        refuse(after != ends, "bytes are left behind the value")
        return column


def select_fields(avro: AvroType, fields: Collection[str]) -> AvroType:
    """Return a record's schema with these fields only, in its own order.

    Raises `UnknownName`: `avro` is not a record, or has no such field.
    """
    check_fields([field.name for field in avro.fields], fields)
    chosen = tuple(field for field in avro.fields if field.name in fields)
    return AvroType("record", avro.name, avro.aliases, fields=chosen)
