"""Read Protobuf messages as Arrow columns, with the types of Spark's `from_protobuf`.

`protobuf_scan` finds the fields of all messages; each reader makes the column of one field from their places.
`message_reader` builds the tree of readers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import binary_column, take_rows, text_column, to_arrow
from protocol.records.varints import Bytes, Integers, Positions
from protocol.schemas.decoding import InvalidRows, check_fields, inside, refuse, text_values
from protocol.schemas.protobuf_scan import (
    BYTES,
    END,
    FIXED32,
    FIXED64,
    GROUP,
    NOTHING,
    VARINT,
    Column,
    Found,
    narrow,
    read_unsigned,
    scan,
)
from protocol.schemas.protobuf_scan import join as join_found
from protocol.schemas.protobuf_schema import EnumType, FieldType, MessageType
from protocol.schemas.protobuf_settings import DEFAULT_SETTINGS, ProtobufSettings

_FIXED = {"double": "<f8", "float": "<f4", "fixed64": "<i8", "sfixed64": "<i8", "fixed32": "<i4", "sfixed32": "<i4"}
_LONGS = ("int64", "uint64", "sint64")
_MAX_DEPTH = 10
_MAX_FIELDS = 20_000
MAX_NESTING = 64
_MICROS = 1_000_000
WRAPPERS = tuple(
    f"google.protobuf.{wrapper}Value"
    for wrapper in ["Bool", "Int32", "UInt32", "Int64", "UInt64", "String", "Bytes", "Float", "Double"]
)
_DUMMY = "__dummy_field_in_empty_struct"
# Enums with numbers up to this one are looked up in a table.
_MAX_TABLE = 255
_MISSING = "a required field is missing"


# -- items: single values ---------------------------------------------------------------------


class ItemReader(ABC):
    """Reads values of one type.

    `wire`: the wire type.
    """

    type: pa.DataType
    wire: int

    @abstractmethod
    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the values at these places, which ascend; `number` is that of `Found`."""


class NumberReader(ItemReader):
    """Numbers, bool and enums.

    `kind`: the scalar type; "enum" for enums as numbers.
    `upcast`: True if unsigned numbers have wider types.
    """

    def __init__(self, kind: str, upcast: bool = False) -> None:
        self.kind = kind
        self._decimal = upcast and kind == "uint64"
        self._wide = upcast and kind == "uint32"
        self.wire = VARINT
        if kind in _FIXED:
            self._stored = np.dtype(_FIXED[kind])
            self.wire = FIXED64 if self._stored.itemsize == 8 else FIXED32
            self.type = pa.from_numpy_dtype(self._stored)
        elif kind == "bool":
            self.type = pa.bool_()
        elif self._decimal:
            self.type = pa.decimal128(20, 0)
        else:
            self.type = pa.int64() if kind in _LONGS or self._wide else pa.int32()

    def values(self, data: Bytes, at: Positions, number: Integers) -> Any:
        """Return the values as NumPy has them; of uint64 as decimals, unsigned."""
        if self.wire == VARINT:
            return self.converted(number)
        if not len(at):
            return np.empty(0, self._stored)
        size = self._stored.itemsize
        # A view with a value at each byte: NumPy reads unaligned values faster than it gathers bytes.
        view = np.ndarray((len(data) - size + 1,), self._stored, np.ascontiguousarray(data), 0, (1,))
        read: Integers = view[at]
        return read

    def converted(self, raw: Integers) -> Any:
        """Return the values of varints."""
        if self.kind == "bool":
            return raw != 0
        if self.kind in ("sint32", "sint64"):
            if self.kind == "sint32" and raw.itemsize > 4:
                raw = raw & np.uint64(0xFFFFFFFF)
            wide = raw.astype(np.int64) if raw.itemsize < 8 else raw
            half = (wide.view(np.uint64) >> np.uint64(1)).view(np.int64)
            return (half ^ -(wide & wide.dtype.type(1)).view(np.int64)).astype(self._number_type)
        if raw.itemsize < 4:
            return raw.astype(self._number_type)
        if self._decimal:
            return raw
        if self._wide:
            return raw.astype(np.uint32).astype(np.int64)
        return raw.view(np.int64) if self.type == pa.int64() else raw.astype(np.uint32).view(np.int32)

    @property
    def _number_type(self) -> npt.DTypeLike:
        if self._decimal:
            return np.uint64
        return np.int64 if self.type == pa.int64() else np.int32

    def zero(self) -> int:
        """Return the value of an absent field."""
        return 0

    def stored(self, default: object) -> object:
        """Return a declared default as the column has it."""
        if isinstance(default, int) and self.kind in ("uint32", "fixed32", "uint64", "fixed64"):
            bits = 32 if self.type == pa.int32() else 64
            if not self._decimal and default >= 2 ** (bits - 1):
                return default - 2**bits
        return default

    def column(self, values: Integers, present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return values as a column; null where `present` is False."""
        validity = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
        if self.kind == "bool":
            bits = pa.py_buffer(np.packbits(values, bitorder="little"))
            return pa.Array.from_buffers(pa.bool_(), len(values), [validity, bits])
        if self._decimal:
            words = np.zeros((len(values), 2), np.uint64)
            words[:, 0] = values
            return pa.Array.from_buffers(self.type, len(values), [validity, pa.py_buffer(words)])
        return pa.Array.from_buffers(self.type, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])

    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the values."""
        return self.column(self.values(data, at, number))


class EnumReader(NumberReader):
    """Enums as text."""

    def __init__(self, enum: EnumType) -> None:
        super().__init__("enum")
        self._enum = enum
        self.type = pa.string()

    @property
    def _number_type(self) -> npt.DTypeLike:
        return np.int32

    def zero(self) -> int:
        """Return the number of the first symbol."""
        return next(iter(self._enum.symbols))

    def column(self, values: Integers, present: npt.NDArray[np.bool_] | None = None) -> pa.Array:
        """Return the names of these numbers."""
        if len(values) and int(values.min()) >= 0 and int(values.max()) <= _MAX_TABLE:
            distinct, numbers = np.arange(int(values.max()) + 1), values
        else:
            distinct, numbers = np.unique(values, return_inverse=True)
        unknown = f"UNKNOWN_ENUM_VALUE_{self._enum.name}_"
        symbols = text_values([self._enum.symbols.get(number, f"{unknown}{number}") for number in distinct.tolist()])
        return take_rows(
            symbols, numbers.astype(np.int64) if present is None else np.where(present, numbers, np.int64(-1))
        )


class BytesReader(ItemReader):
    """Texts and bytes.

    `checked`: True if a text that is not UTF-8 is an error; otherwise its bytes are replaced.
    """

    wire = BYTES

    def __init__(self, is_text: bool, checked: bool) -> None:
        self.type = pa.string() if is_text else pa.binary()
        self._checked = checked

    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the values."""
        return self._text(binary_column(data, at, number))

    def places(self, hits: Found, last: Positions, starts: Positions) -> tuple[Positions, Positions]:
        """Return where the values are and their lengths, -1 for null."""
        rows = np.flatnonzero(last >= 0)
        if len(rows) == len(last):
            return hits.at[last], hits.number[last].astype(np.int64)
        at, length = starts.copy(), np.full(len(last), -1, np.int64)
        at[rows] = hits.at[last[rows]]
        length[rows] = hits.number[last[rows]]
        return at, length

    def sparse(self, data: Bytes, at: Positions, length: Positions) -> pa.Array:
        """Return the column of the values at these places; null for the length -1."""
        return self._text(binary_column(data, at, length))

    def _text(self, column: pa.Array) -> pa.Array:
        if not pa.types.is_string(self.type):
            return column
        if not self._checked:
            return text_column(column)
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            wrong = [row for row, text in enumerate(column.to_pylist()) if text is not None and not _is_text(text)]
            raise InvalidRows(np.array(wrong), "a text that is not UTF-8") from None


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


class NestedReader(ItemReader):
    """Reads messages: as structs, or as the value that some of them stand for."""

    wire = BYTES

    @abstractmethod
    def read_sparse(self, data: Bytes, hits: Found, last: Positions) -> pa.Array:
        """Return one message per row: `last` indexes `hits`, -1 for null. A message that occurs twice is merged."""


class MessageReader(NestedReader):
    """Messages and groups as structs."""

    def __init__(self, fields: Collection[FieldReader], is_group: bool = False, dummy: bool = False) -> None:
        self.wire = GROUP if is_group else BYTES
        self._fields = list(fields)
        oneofs: dict[int, list[int]] = {}
        for field in self._fields:
            if field.field.oneof is not None:
                oneofs.setdefault(field.field.oneof, []).extend(field.tags)
        self._oneofs = [tags for tags in oneofs.values() if len(tags) > 1]
        self._dummy = dummy
        columns = [pa.field(field.field.name, field.type, nullable=field.nullable) for field in self._fields]
        self.type = pa.struct([*columns, pa.field(_DUMMY, pa.string())] if dummy else columns)

    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the messages."""
        return self.read_messages(data, at, at + number.astype(np.int64))

    def read_messages(self, data: Bytes, at: Positions, ends: Positions) -> pa.Array:
        """Return the column of the messages `data[at[i]:ends[i]]`, which ascend."""
        hits = scan(data, at, ends)
        for tags in self._oneofs:
            members = {tag: narrow(hits[tag]) for tag in tags if tag in hits}
            _keep_last(members, tags, len(at))
            hits.update(members)
        columns = []
        for field in self._fields:
            with inside(field.field.name):
                columns.append(field.read(data, hits, at))
        if self._dummy:
            columns.append(pa.nulls(len(at), pa.string()))
        return pa.Array.from_buffers(self.type, len(at), [None], children=columns)

    def read_sparse(self, data: Bytes, hits: Found, last: Positions) -> pa.Array:
        """Return the column of the messages, null where there is none."""
        rows = np.flatnonzero(last >= 0)
        with inside("", rows):
            if len(hits.row) > len(rows):
                column = self.read_messages(*_merged(data, hits, rows))
            else:
                chosen = last[rows]
                column = self.read(data, hits.at[chosen], hits.number[chosen])
        if len(rows) == len(last):
            return column
        index = np.full(len(last), -1, np.int64)
        index[rows] = np.arange(len(rows))
        return take_rows(column, index)


def _keep_last(hits: dict[int, Found], tags: list[int], rows: int) -> None:
    """Drop what was found of a oneof's members before the last one."""
    present = [tag for tag in tags if tag in hits]
    if len(present) < 2:
        return
    latest = np.full(rows, -1, np.int64)
    for tag in present:
        np.maximum.at(latest, hits[tag].row, hits[tag].order)
    for tag in present:
        final = np.zeros(rows, np.bool_)
        own = hits[tag]
        final[own.row[own.order == latest[own.row]]] = True
        # Drop occurrences before another member of the oneof; merge those after it.
        full = np.full(rows, -1, np.int64)
        for rival in present:
            if rival != tag:
                np.maximum.at(full, hits[rival].row, hits[rival].order)
        final_hits = final[own.row] & (own.order > full[own.row])
        if not final_hits.all():
            hits[tag] = own.where(final_hits)


def _spans(at: Positions, size: Positions) -> Any:
    """Return the positions of all bytes of these spans."""
    behind = np.cumsum(size)
    total = int(behind[-1]) if len(behind) else 0
    return np.arange(total) + np.repeat(at - (behind - size), size)


def _merged(data: Bytes, hits: Found, rows: Positions) -> tuple[Bytes, Positions, Positions]:
    """Return the bytes of these messages, those of one row one after another."""
    events = np.lexsort((hits.order, hits.row))
    size = hits.number[events].astype(np.int64)
    joined = data[_spans(hits.at[events], size)]
    ends = np.cumsum(np.add.reduceat(size, np.searchsorted(hits.row[events], rows)))
    return (joined if len(joined) else data), np.concatenate([np.zeros(1, np.int64), ends[:-1]]), ends


class TimeReader(NestedReader):
    """`Timestamp` and `Duration`: seconds and nanoseconds, as microseconds.

    `parts`: reads both fields, zero for absent ones.
    """

    def __init__(self, parts: MessageReader, type: pa.DataType) -> None:
        self._parts = parts
        self.type = type

    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the times."""
        return self._micros(self._parts.read(data, at, number))

    def read_sparse(self, data: Bytes, hits: Found, last: Positions) -> pa.Array:
        """Return the column of the times, null where there is none."""
        return self._micros(self._parts.read_sparse(data, hits, last))

    def _micros(self, parts: pa.Array) -> pa.Array:
        rows = len(parts)
        seconds = np.frombuffer(parts.field(0).buffers()[1] or b"", np.int64)[:rows]
        nanos = np.frombuffer(parts.field(1).buffers()[1] or b"", np.int32)[:rows]
        limit = 2**63 // _MICROS - 3
        refuse((seconds > limit) | (seconds < -limit), "a time that microseconds cannot have")
        micros = seconds * _MICROS
        if nanos.any():
            # Towards zero, as Java.
            micros = micros + np.sign(nanos) * (np.abs(nanos.astype(np.int64)) // 1000)
        validity = parts.buffers()[0]
        return pa.Array.from_buffers(self.type, rows, [validity, pa.py_buffer(micros)])


class WrappedReader(NestedReader):
    """A wrapper such as `Int64Value`, as its only field."""

    def __init__(self, message: MessageReader) -> None:
        self._message = message
        self.type = message.type.field(0).type

    def read(self, data: Bytes, at: Positions, number: Integers) -> pa.Array:
        """Return the column of the values."""
        return self._message.read(data, at, number).field(0)

    def read_sparse(self, data: Bytes, hits: Found, last: Positions) -> pa.Array:
        """Return the column of the values, null where there is none."""
        return self._message.read_sparse(data, hits, last).field(0)


# -- fields -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rules:
    """How a field is read, beside its type.

    `dense`: an absent value is its default, as in entries of maps.
    `emit_defaults`: an absent value without presence is its default.
    """

    dense: bool = False
    emit_defaults: bool = False


def _last_hits(hits: Found, rows: int) -> tuple[Found, Positions, Positions]:
    """Return the hits in the order of rows, the last one of each row (-1: none), and the rows without one."""
    if rows and len(hits.row) == rows and (hits.row == np.arange(rows)).all():
        return hits, np.arange(rows), np.empty(0, np.int64)
    if len(hits.row) > 1 and not (np.diff(hits.row) > 0).all():
        hits = hits.where(np.lexsort((hits.order, hits.row)))
    last = np.full(rows, -1, np.int64)
    last[hits.row] = np.arange(len(hits.row))
    return hits, last, np.flatnonzero(last < 0)


def _with_empty_messages(hits: Found, last: Positions, starts: Positions) -> tuple[Found, Positions]:
    """Return the hits, with a message without fields in rows that have none, and the last hit of each row."""
    missing = np.flatnonzero(last < 0)
    empty = Found(missing, starts[missing], np.zeros(len(missing), np.uint8), 0)
    return _last_hits(join_found([hits, empty]), len(last))[:2]


class FieldReader:
    """Reads one field of a message."""

    def __init__(self, field: FieldType, item: ItemReader, rules: _Rules) -> None:
        self.field = field
        self.nullable = not (field.required or rules.dense)
        self._item = item
        self._rules = rules
        self._tag = field.number << 3 | item.wire
        self._packed_tag = field.number << 3 | BYTES
        self.tags = [self._tag]
        self.type = item.type
        self._numbers = item if isinstance(item, NumberReader) else None
        # Other fields are read from their occurrences alone.
        self._reads_columns = not field.repeated and not (field.enum is not None and field.enum.closed)
        is_scalar = self._numbers is not None or (isinstance(item, BytesReader) and not field.default)
        self._reads_sparse_columns = self._reads_columns and is_scalar
        if field.repeated:
            if self._numbers is not None:
                self.tags.append(self._packed_tag)
            if field.message is not None and field.message.is_map_entry:
                value = pa.field("value", item.type.field(1).type, nullable=False)
                self.type = pa.map_(item.type.field(0).type, value)
                self.nullable = True
            else:
                self.type = pa.list_(pa.field("element", item.type, nullable=False))
                self.nullable = True

    def read(self, data: Bytes, hits: dict[int, Found | Column], starts: Positions) -> pa.Array:
        """Return the column of the messages that begin at `starts`."""
        field_hits = hits.get(self._tag, NOTHING)
        if isinstance(field_hits, Column) and (
            self._reads_columns if field_hits.there is None else self._reads_sparse_columns
        ):
            return self._read_column(data, field_hits)
        own = narrow(field_hits)
        if self.field.repeated:
            packed = narrow(hits.get(self._packed_tag, NOTHING)) if self._numbers is not None else NOTHING
            return self._repeated(data, own, packed, len(starts))
        if self.field.enum is not None and self.field.enum.closed and len(own.row):
            own = self._known(own, NumberReader("enum").converted(own.number))
        own, last, missing = _last_hits(own, len(starts))
        if self.field.required and len(missing):
            raise InvalidRows(missing, _MISSING)
        if self._numbers is not None:
            return self._single_numbers(data, own, last, missing)
        if isinstance(self._item, BytesReader):
            return self._single_bytes(data, own, last, missing, starts)
        assert isinstance(self._item, NestedReader)
        if self._rules.dense and len(missing):
            own, last = _with_empty_messages(own, last, starts)
        return self._item.read_sparse(data, own, last)

    def _read_column(self, data: Bytes, column: Column) -> pa.Array:
        """Return the column of a field that no message has more than once."""
        present = column.there
        if self.field.required and present is not None:
            raise InvalidRows(np.flatnonzero(~present), _MISSING)
        item = self._item
        if isinstance(item, BytesReader):
            length = column.number.astype(np.int64)
            if present is not None:
                length[~present] = -1 if self._default() is None else 0
            if self._default() is None and not self.field.presence:
                length[length == 0] = -1
            return item.sparse(data, column.at, length)
        if self._numbers is None:
            return item.read(data, column.at, column.number)
        return self._number_column(self._numbers, data, column)

    def _number_column(self, item: NumberReader, data: Bytes, column: Column) -> pa.Array:
        at, present, default = column.at, column.there, self._default()
        if item.wire != VARINT and present is not None:
            at = np.minimum(at, len(data) - (8 if item.wire == FIXED64 else 4))
        values = item.values(data, at, column.number)
        if present is not None and default is None and isinstance(item, EnumReader):
            values = np.where(present, values, np.int32(0))
        if present is not None and default is not None:
            values = np.where(present, values, np.array(default, values.dtype))
            present = None
        if default is None and not self.field.presence:
            nonzero = _nonzero(values)
            if present is not None:
                nonzero &= present
            present = None if nonzero.all() else nonzero
        return item.column(values, present)

    def _known(self, hits: Found, numbers: Integers) -> Found:
        assert self.field.enum is not None
        is_known = np.isin(numbers, np.array(list(self.field.enum.symbols)))
        return hits if is_known.all() else hits.where(is_known)

    def _default(self) -> object:
        """Return the value of an absent field; None: null."""
        if self.field.default is not None:
            return self.field.default if self._numbers is None else self._numbers.stored(self.field.default)
        if self._rules.dense or (self._rules.emit_defaults and not self.field.presence):
            return self._numbers.zero() if self._numbers is not None else b""
        return None

    def _single_numbers(self, data: Bytes, hits: Found, last: Positions, missing: Positions) -> pa.Array:
        item = self._numbers
        assert item is not None
        default = self._default()
        if not len(missing):
            values = item.values(data, hits.at[last], hits.number[last])
            present = None
        else:
            present = last >= 0
            chosen = last[present]
            read = item.values(data, hits.at[chosen], hits.number[chosen])
            values = np.zeros(len(last), read.dtype)
            values[present] = read
            if default is not None:
                values[~present] = default
                present = None
        if default is None and not self.field.presence:
            nonzero = _nonzero(values)
            present = None if nonzero.all() else nonzero
        return item.column(values, present)

    def _single_bytes(
        self, data: Bytes, hits: Found, last: Positions, missing: Positions, starts: Positions
    ) -> pa.Array:
        item = self._item
        assert isinstance(item, BytesReader)
        at, length = item.places(hits, last, starts)
        default = self._default()
        if default is None:
            if not self.field.presence:
                length[length == 0] = -1
        elif len(missing):
            if default == b"":
                length[missing] = 0
            else:
                assert isinstance(default, bytes)
                column = item.sparse(data, at, length)
                single = item.read(np.frombuffer(default, np.uint8), np.zeros(1, np.int64), np.array([len(default)]))
                places = np.arange(len(last))
                places[missing] = len(last)
                return pa.concat_arrays([column, single]).take(to_arrow(places))
        return item.sparse(data, at, length)

    # -- repeated fields ----------------------------------------------------------------------

    def _repeated(self, data: Bytes, singles: Found, packed: Found, rows: int) -> pa.Array:
        if self._numbers is not None:
            items, owner = self._repeated_numbers(data, singles, packed)
        else:
            if len(singles.row) > 1:
                singles = singles.where(np.lexsort((singles.order, singles.row)))
            owner = singles.row
            with inside("[]", owner):
                items = self._item.read(data, singles.at, singles.number)
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
        if pa.types.is_map(self.type):
            entries = pa.struct([self.type.key_field, self.type.item_field])
            items = pa.Array.from_buffers(entries, len(items), [None], children=[items.field(0), items.field(1)])
        return pa.Array.from_buffers(self.type, rows, [None, pa.py_buffer(offsets)], children=[items])

    def _repeated_numbers(self, data: Bytes, singles: Found, packed: Found) -> tuple[pa.Array, Positions]:
        item = self._numbers
        assert item is not None
        values = item.values(data, singles.at, singles.number)
        owner, order = singles.row, singles.order
        if len(packed.row):
            many, event = self._packed(data, packed)
            values = np.concatenate([values, many]) if len(values) else many
            owner = np.concatenate([owner, packed.row[event]])
            order = np.concatenate([order, packed.order[event]])
        if self.field.enum is not None and self.field.enum.closed:
            is_known = np.isin(values, np.array(list(self.field.enum.symbols)))
            values, owner, order = values[is_known], owner[is_known], order[is_known]
        is_mixed = len(singles.row) and len(packed.row)
        if is_mixed or (np.diff(owner) < 0).any():
            ordered = np.lexsort((order, owner))
            values, owner = values[ordered], owner[ordered]
        return item.column(values), owner

    def _packed(self, data: Bytes, hits: Found) -> tuple[Integers, Positions]:
        """Return the values of packed fields, and the occurrence of each."""
        item = self._numbers
        assert item is not None
        size = hits.number.astype(np.int64)
        raw = data[_spans(hits.at, size)]
        if item.wire != VARINT:
            width = 8 if item.wire == FIXED64 else 4
            uneven = size % width != 0
            if uneven.any():
                raise InvalidRows(np.unique(hits.row[uneven]), END, "[]")
            return np.ascontiguousarray(raw).view(_FIXED[item.kind]), np.repeat(np.arange(len(size)), size // width)
        owner = np.repeat(np.arange(len(size)), size)
        last = raw < 0x80
        behind = np.cumsum(size)
        if len(raw):
            open_end = (size > 0) & ~last[np.maximum(behind - 1, 0)]
            if open_end.any():
                raise InvalidRows(np.unique(hits.row[open_end]), END, "[]")
        stops = np.flatnonzero(last)
        starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1]) if len(stops) else stops
        try:
            numbers, _ = read_unsigned(raw, starts, stops + 1)
        except InvalidRows as error:
            raise error.inside("[]", hits.row[owner[starts]]) from None
        return item.converted(numbers), owner[stops]


def _nonzero(values: Integers) -> Any:
    # By the bits, so that -0.0 is a value.
    return (values if values.dtype == np.bool_ else np.ascontiguousarray(values).view(f"u{values.itemsize}")) != 0


# -- the tree of readers ----------------------------------------------------------------------


def message_reader(
    message: MessageType, settings: ProtobufSettings = DEFAULT_SETTINGS, fields: Collection[str] = ()
) -> MessageReader:
    """Return what reads a message.

    `fields`: the fields of the message to read; empty: all.
    Raises `ConfigurationError`: the message contains itself, and `settings` do not allow that; or it has no such field,
    or too many fields.
    """
    check_fields([field.name for field in message.fields], fields)
    builder = _Builder(settings)
    chosen = [field for field in message.fields if not fields or field.name in fields]
    made = builder.fields(message, chosen, {message.name: 1}, "")
    return MessageReader(made, dummy=not made and settings.retain_empty_messages)


class _Builder:
    """Builds readers, with the rules of Spark's `from_protobuf` for fields that are dropped."""

    def __init__(self, settings: ProtobufSettings) -> None:
        self._settings = settings
        self._count = 0

    def fields(
        self, message: MessageType, chosen: Collection[FieldType], depths: dict[str, int], path: str
    ) -> list[FieldReader]:
        if path.count(".") >= MAX_NESTING:
            raise ConfigurationError(f"the Protobuf schema is nested deeper than {MAX_NESTING} messages")
        rules = _Rules(message.is_map_entry, self._settings.emit_default_values)
        readers = []
        for field in chosen:
            below = f"{path}.{field.name}" if path else field.name
            self._count += 1
            if self._count > _MAX_FIELDS:
                raise ConfigurationError(
                    f"the field {below} is one of more than {_MAX_FIELDS}; lower recursive.fields.max.depth"
                )
            item = self._item(field, depths, below, dense=message.is_map_entry or field.repeated)
            if item is not None:
                readers.append(FieldReader(field, item, rules))
        return readers

    def _item(self, field: FieldType, depths: dict[str, int], path: str, dense: bool = False) -> ItemReader | None:
        settings = self._settings
        if field.enum is not None:
            return NumberReader("enum") if settings.enums_as_ints else EnumReader(field.enum)
        if field.message is None:
            if field.kind in ("string", "bytes"):
                return BytesReader(field.kind == "string", field.checked)
            return NumberReader(field.kind, settings.upcast_unsigned_ints)
        message = field.message
        time = time_type(message)
        if time is not None and field.kind == "message":
            parts = [FieldReader(field, NumberReader(field.kind), _Rules(dense=True)) for field in message.fields]
            return TimeReader(MessageReader(parts), time)
        if settings.unwrap_wrappers and message.name in WRAPPERS:
            # Items of arrays and maps are not null.
            rules = _Rules(dense, settings.emit_default_values)
            only = message.fields[0]
            item = self._item(only, depths, path)
            assert item is not None
            return WrappedReader(MessageReader([FieldReader(only, item, rules)]))
        return self._message(field, message, depths, path)

    def _message(
        self, field: FieldType, message: MessageType, depths: dict[str, int], path: str
    ) -> MessageReader | None:
        settings = self._settings
        if message.is_map_entry:
            entry = self.fields(message, message.fields, depths, path)
            return MessageReader(entry) if len(entry) == len(message.fields) else None
        depth = depths.get(message.name, 0)
        if depth:
            if not 1 <= settings.recursive_fields_max_depth <= _MAX_DEPTH:
                raise ConfigurationError(
                    f"the field {path} is recursive: {message.name} contains itself. Set recursive.fields.max.depth "
                    f"to a number from 1 to {_MAX_DEPTH}: fields below this depth are left out"
                )
            if depth >= settings.recursive_fields_max_depth:
                return None
        made = self.fields(message, message.fields, {**depths, message.name: depth + 1}, path)
        if not made and not settings.retain_empty_messages:
            return None
        return MessageReader(made, field.kind == "group", dummy=not made)


def time_type(message: MessageType) -> pa.DataType | None:
    """Return the type of `Timestamp` or `Duration`, which Spark knows by their names and fields."""
    fields = [(field.name, field.kind, field.repeated) for field in message.fields]
    if fields != [("seconds", "int64", False), ("nanos", "int32", False)]:
        return None
    name = message.name.rpartition(".")[2]
    return {"Timestamp": pa.timestamp("us", "UTC"), "Duration": pa.duration("us")}.get(name)
