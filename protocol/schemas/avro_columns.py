"""Read Avro values as Arrow columns: a cursor per record moves over all records at once, field by field.

Each reader takes the bytes, the cursor and the end of each record, and returns a column and the next cursor. No reader
trusts the bytes: it raises `InvalidRows` before it reads behind the end of a record or reserves memory for more than
a record can hold. `avro_resolution` builds the tree of readers.

Source: the Avro specification 1.12, "Binary Encoding".
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.listing import listed
from protocol.errors import Corrupt, ProtocolError
from protocol.records.arrow_numpy import binary_column, numpy_type, text_column, to_arrow
from protocol.records.varints import Bytes, Integers, Positions, read_varints
from protocol.schemas.decoding import InvalidRows, inside, refuse, text_values
from protocol.wire.primitives import Reader

# An array's blocks, and the items of a block, are read in rounds over all records: so many at most, and items as long
# as enough records have more of them. The others are found one by one.
_MAX_ROUNDS = 64
_FEWEST_ROWS = 16
# Items without bytes, such as nulls, of one value and of all values that are decoded together.
_MAX_EMPTY_ITEMS = 1 << 16
_MAX_EMPTY_ITEMS_IN_ALL = 1 << 24
_TRUNCATED = "the value ends in the middle of the field"
_INT = (-(2**31), 2**31 - 1)
_LONG = (-(2**63), 2**63 - 1)
_DECIMAL_BYTES = 16


class ColumnReader(ABC):
    """Reads one type of an Avro schema.

    `type`: the column's type.
    `smallest_bytes`: the size of the smallest encoded value.
    """

    type: pa.DataType
    smallest_bytes: int = 1

    @abstractmethod
    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read one value at each cursor. `at` ascends, and `data[at[i]:ends[i]]` do not overlap."""

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Return the cursors behind the values."""
        return self.read(data, at, ends)[1]

    @abstractmethod
    def skip_one(self, reader: Reader) -> None:
        """Skip one value, for values that must be found one by one. Raises `ProtocolError` for one that is invalid."""


class _EmptyItems(threading.local):
    """Count of items without bytes that the thread's `read_column` may still read: no length of data limits them."""

    remaining = _MAX_EMPTY_ITEMS_IN_ALL


_empty_items = _EmptyItems()


def read_column(reader: ColumnReader, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
    """Read a value at each cursor with the topmost reader of a schema; see `ColumnReader.read`."""
    _empty_items.remaining = _MAX_EMPTY_ITEMS_IN_ALL
    return reader.read(data, at, ends)


# -- numbers ----------------------------------------------------------------------------------


def read_numbers(data: Bytes, at: Positions, ends: Positions) -> tuple[Integers, Positions]:
    """Read a varint at each cursor, and check that it ends within its record."""
    try:
        numbers, after = read_varints(data, at, bits=64)
    except Corrupt as error:
        raise InvalidRows(_too_long(data, at), str(error)) from None
    if (after > ends).any():
        refuse(after > ends, _TRUNCATED)
    return numbers, after


def _too_long(data: Bytes, at: Positions) -> Positions:
    """Return the rows whose varint is too long, by bisection."""
    try:
        read_varints(data, at, bits=64)
    except Corrupt:
        if len(at) == 1:
            return np.zeros(1, np.int64)
        half = len(at) // 2
        return np.concatenate([_too_long(data, at[:half]), _too_long(data, at[half:]) + half])
    return np.empty(0, np.int64)


def _not_negative(size_bytes: int) -> int:
    if size_bytes < 0:
        raise Corrupt(f"a length of {size_bytes}")
    return size_bytes


class NullReader(ColumnReader):
    """null: no bytes."""

    smallest_bytes = 0

    def __init__(self, type: pa.DataType | None = None) -> None:
        self.type = pa.null() if type is None else type

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Return nulls."""
        return pa.nulls(len(at), self.type), at

    def skip_one(self, reader: Reader) -> None:
        """Do nothing."""


class NumberReader(ColumnReader):
    """int and long, also as float, double or a logical type.

    `kind`: {"int", "long"}.
    `factor`: multiplies the stored number, such as 1000 for milliseconds in a column of microseconds.
    """

    def __init__(self, kind: str, type: pa.DataType, factor: int = 1) -> None:
        self.type = type
        self._factor = factor
        # The product must be a long, too; every int times a thousand is one.
        self._range = _INT if kind == "int" else (-(_LONG[1] // factor), _LONG[1] // factor)
        self._checked = kind == "int" or factor > 1
        self._what = f"a number too large for {'an int' if kind == 'int' else type}"
        self._dtype = np.dtype("i4") if pa.types.is_date32(type) else numpy_type(type)

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read varints."""
        numbers, after = read_numbers(data, at, ends)
        if self._checked and numbers.dtype == np.int64:
            lowest, highest = self._range
            refuse((numbers < lowest) | (numbers > highest), self._what)
        made = numbers.astype(self._dtype)
        if self._factor > 1:
            made *= self._factor
        return pa.Array.from_buffers(self.type, len(at), [None, pa.py_buffer(made)]), after

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Return the cursors behind the varints."""
        return read_numbers(data, at, ends)[1]

    def skip_one(self, reader: Reader) -> None:
        """Skip a varint."""
        reader.varlong()


class FixedWidthReader(ColumnReader):
    """boolean, float, double: values of the same size.

    `stored`: the encoding of the value.
    """

    def __init__(self, stored: npt.DTypeLike, type: pa.DataType) -> None:
        self._stored = np.dtype(stored)
        self.type = type
        self.smallest_bytes = self._stored.itemsize

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read the bytes at each cursor."""
        after = self.skip(data, at, ends)
        if not len(at):
            return pa.nulls(0, self.type), after
        size = self._stored.itemsize
        # A view with a value at each byte: NumPy reads unaligned values faster than it gathers bytes.
        values = np.ndarray((len(data) - size + 1,), self._stored, np.ascontiguousarray(data), 0, (1,))[at]
        if not pa.types.is_boolean(self.type):
            return to_arrow(values.astype(numpy_type(self.type), copy=False)), after
        refuse(values > 1, "a boolean that is neither 0 nor 1")
        bits = pa.py_buffer(np.packbits(values.view(np.bool_), bitorder="little"))
        return pa.Array.from_buffers(self.type, len(at), [None, bits]), after

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Return the cursors behind the values."""
        after = at + self._stored.itemsize
        refuse(after > ends, _TRUNCATED)
        return after

    def skip_one(self, reader: Reader) -> None:
        """Skip the bytes of a value."""
        reader.advance(self._stored.itemsize)


# -- bytes ------------------------------------------------------------------------------------

# Makes the column from the bytes of all values: `make(data, at, length)`; length -1 is null.
_Make = Callable[[Bytes, Positions, Integers], pa.Array]


class BytesReader(ColumnReader):
    """bytes, string and fixed, also as decimals.

    `type`: binary, string or decimal128.
    `size_bytes`: the size of a fixed.
    """

    def __init__(self, type: pa.DataType, size_bytes: int | None = None) -> None:
        self.type = type
        self._size_bytes = size_bytes
        self.smallest_bytes = 1 if size_bytes is None else size_bytes
        self._make: _Make = binary_column
        if pa.types.is_string(type):
            self._make = _text
        elif pa.types.is_decimal(type):
            self._make = self._decimals

    def bounds(self, data: Bytes, at: Positions, ends: Positions) -> tuple[Positions, Integers]:
        """Return where the bytes of each value start, and how many they are."""
        if self._size_bytes is not None:
            lengths: Integers = np.full(len(at), self._size_bytes, np.int64)
            refuse(at + lengths > ends, _TRUNCATED)
            return at, lengths
        lengths, start = read_numbers(data, at, ends)
        # Not `start + lengths > ends`, which a hostile length lets overflow.
        refuse((lengths < 0) | (lengths > ends - start), "a length that exceeds the value")
        return start, lengths

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read the bytes at each cursor."""
        start, lengths = self.bounds(data, at, ends)
        return self._make(data, start, lengths), start + lengths

    def read_some(self, data: Bytes, at: Positions, ends: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        """Read a value in these rows, and null in the others."""
        with inside("", rows):
            start, lengths = self.bounds(data, at[rows], ends[rows])
        all_lengths = np.full(len(at), -1, np.int64)
        all_lengths[rows] = lengths
        all_starts, after = at.copy(), at.copy()
        all_starts[rows] = start
        after[rows] = start + lengths
        return self._make(data, all_starts, all_lengths), after

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Return the cursors behind the values."""
        start, lengths = self.bounds(data, at, ends)
        return start + lengths

    def skip_one(self, reader: Reader) -> None:
        """Skip the bytes of a value."""
        reader.advance(_not_negative(reader.varlong()) if self._size_bytes is None else self._size_bytes)

    def _decimals(self, data: Bytes, at: Positions, lengths: Integers) -> pa.Array:
        """Return decimals from big-endian two's complement numbers of any length."""
        lengths = lengths.astype(np.int64, copy=False)
        present = lengths >= 0
        size = np.maximum(lengths, 0)
        columns = np.arange(_DECIMAL_BYTES)
        # Little-endian: byte `column` of the number is `column` bytes before its end.
        raw = data.take((at + size)[:, None] - 1 - columns, mode="clip")
        first = data.take(at, mode="clip")
        sign = np.where((first >= 0x80) & (size > 0), np.uint8(0xFF), np.uint8(0))
        raw = np.where(columns < size[:, None], raw, sign[:, None])
        negative = raw[:, -1] >= 0x80
        longer = size > _DECIMAL_BYTES
        if longer.any():
            for row in np.flatnonzero(longer).tolist():
                head = data[at[row] : at[row] + size[row] - _DECIMAL_BYTES]
                longer[row] = (head != sign[row]).any() or negative[row] != (sign[row] == 0xFF)
            refuse(longer, f"a number too large for {self.type}")
        validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        made = pa.Array.from_buffers(self.type, len(at), [validity, pa.py_buffer(np.ascontiguousarray(raw))])
        try:
            made.validate(full=True)
        except pa.ArrowInvalid:
            limit = 10**self.type.precision
            numbers = [int.from_bytes(bytes(number), "little", signed=True) for number in raw]
            refuse(
                present & np.array([abs(number) >= limit for number in numbers]), f"a number too large for {self.type}"
            )
        return made


def _text(data: Bytes, at: Positions, lengths: Integers) -> pa.Array:
    return text_column(binary_column(data, at, lengths))


class EnumReader(ColumnReader):
    """enum, as text.

    `symbols`: the reader's symbol for each of the writer's; None: it has no such symbol.
    `names`: the writer's symbols.
    """

    type = pa.string()

    def __init__(self, symbols: Sequence[str | None], names: Sequence[str]) -> None:
        self._names = names
        self._missing = np.array([symbol is None for symbol in symbols])
        self._symbols = text_values([symbol or "" for symbol in symbols])

    def _indices(self, data: Bytes, at: Positions, ends: Positions) -> tuple[Integers, Positions]:
        numbers, after = read_numbers(data, at, ends)
        refuse((numbers < 0) | (numbers >= len(self._names)), f"a symbol that is not in 0 to {len(self._names) - 1}")
        return numbers, after

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read indices of symbols."""
        numbers, after = self._indices(data, at, ends)
        if self._missing.any() and (missing := self._missing[numbers]).any():
            names = sorted({self._names[number] for number in numbers[missing].tolist()})
            refuse(missing, f"the reader's enum has neither the symbol {listed(names)} nor a default")
        return self._symbols.take(to_arrow(numbers)), after

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Return the cursors behind the indices."""
        return self._indices(data, at, ends)[1]

    def skip_one(self, reader: Reader) -> None:
        """Skip an index."""
        reader.varlong()


# -- composite types --------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldStep:
    """A field in the writer's order; `column` is the index of the reader's field, None to skip it."""

    name: str
    reader: ColumnReader
    column: int | None


class RecordReader(ColumnReader):
    """record, as a struct.

    `steps`: the writer's fields.
    `defaults` (mapping of int to pyarrow.Array): for fields that the writer does not have: one value for the column
    number.
    """

    def __init__(self, type: pa.StructType, steps: Sequence[FieldStep], defaults: dict[int, pa.Array]) -> None:
        self.type = type
        self.smallest_bytes = sum(step.reader.smallest_bytes for step in steps)
        self._steps = steps
        self._defaults = defaults

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read the fields one after another."""
        columns: list[pa.Array | None] = [None] * self.type.num_fields
        for step in self._steps:
            with inside(step.name):
                if step.column is None:
                    at = step.reader.skip(data, at, ends)
                else:
                    columns[step.column], at = step.reader.read(data, at, ends)
        rows = len(at)
        if self._defaults:
            same = to_arrow(np.zeros(rows, np.int32))
            for number, value in self._defaults.items():
                columns[number] = value.take(same)
        return pa.Array.from_buffers(self.type, rows, [None], children=columns), at

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Skip the fields one after another."""
        for step in self._steps:
            with inside(step.name):
                at = step.reader.skip(data, at, ends)
        return at

    def skip_one(self, reader: Reader) -> None:
        """Skip the fields one after another."""
        for step in self._steps:
            step.reader.skip_one(reader)


class ArrayReader(ColumnReader):
    """array and map: blocks of items.

    `items`: for a map a `RecordReader` of key and value.
    """

    def __init__(self, type: pa.DataType, items: ColumnReader) -> None:
        self.type = type
        self._items = items

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read the items of all records in rounds: the first of each, then the second, and so on."""
        if not self._items.smallest_bytes:
            return self._read_empty(data, at, ends)
        rows, cursor = len(at), at.copy()
        pieces: list[pa.Array] = []
        owners: list[Positions] = []
        open_rows = np.arange(rows)
        blocks = 0
        while len(open_rows):
            if blocks == _MAX_ROUNDS:
                self._read_rest(data, cursor, ends, open_rows, None, pieces, owners)
                break
            blocks += 1
            count, cursor[open_rows] = self._block(data, cursor, ends, open_rows)
            open_rows, remaining = open_rows[count > 0], count[count > 0]
            live, rounds = open_rows, 0
            while len(live):
                if rounds == _MAX_ROUNDS or len(live) < _FEWEST_ROWS:
                    self._read_rest(data, cursor, ends, live, remaining, pieces, owners)
                    break
                pieces.append(self._read_items(data, cursor, ends, live, live))
                owners.append(live)
                rounds += 1
                remaining = remaining - 1
                live, remaining = live[remaining > 0], remaining[remaining > 0]
        return self._column(rows, pieces, owners), cursor

    def _read_empty(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read arrays whose items have no bytes: add up the sizes of their blocks."""
        rows, cursor = len(at), at.copy()
        sizes = np.zeros(rows, np.int64)
        open_rows = np.arange(rows)
        blocks = 0
        while len(open_rows):
            if blocks == _MAX_ROUNDS:
                self._count_rest(data, cursor, ends, open_rows, sizes)
                break
            blocks += 1
            count, cursor[open_rows] = self._block(data, cursor, ends, open_rows)
            sizes[open_rows] += count
            open_rows = open_rows[(count > 0) & (sizes[open_rows] <= _MAX_EMPTY_ITEMS)]
        wrong = sizes > _MAX_EMPTY_ITEMS
        order = np.argsort(np.where(wrong, 0, sizes), kind="stable")
        together = np.cumsum(np.where(wrong, 0, sizes)[order])
        if rows and together[-1] > _empty_items.remaining:
            # The largest ones are refused. Half of the limit is left for other fields.
            wrong[order] |= together > _empty_items.remaining // 2
        refuse(wrong, "too many items without bytes")
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        _empty_items.remaining -= int(offsets[-1])
        single, _ = self._items.read(data, np.zeros(1, np.int64), np.zeros(1, np.int64))
        items = single.take(to_arrow(np.zeros(int(offsets[-1]), np.int32)))
        return pa.Array.from_buffers(self.type, rows, [None, pa.py_buffer(offsets)], children=[items]), cursor

    def _count_rest(
        self, data: Bytes, cursor: Positions, ends: Positions, open_rows: Positions, sizes: Positions
    ) -> None:
        """Add to `sizes` the items without bytes of all further blocks, one block after another."""
        truncated: list[int] = []
        for row in open_rows.tolist():
            reader = Reader(data.data[: int(ends[row])])
            reader.position = int(cursor[row])
            size = int(sizes[row])
            try:
                while size <= _MAX_EMPTY_ITEMS and (count := self._next_block(reader)):
                    size += count
            except ProtocolError:
                truncated.append(row)
            sizes[row] = min(size, _MAX_EMPTY_ITEMS + 1)
            cursor[row] = reader.position
        if truncated:
            raise InvalidRows(np.array(truncated), _TRUNCATED)

    def _read_items(
        self, data: Bytes, cursor: Positions, ends: Positions, live: Positions, owners: Positions
    ) -> pa.Array:
        with inside("[]", owners):
            items, cursor[live] = self._items.read(data, cursor[live], ends[live])
        return items

    def _block(
        self, data: Bytes, cursor: Positions, ends: Positions, rows: Positions
    ) -> tuple[npt.NDArray[np.int64], Positions]:
        """Return how many items the next block of each row has, and where they begin."""
        with inside("", rows):
            numbers, after = read_numbers(data, cursor[rows], ends[rows])
            count = numbers.astype(np.int64)
            sized = np.flatnonzero(count < 0)
            if len(sized):
                # The size of the block in bytes follows, for readers that skip it.
                refuse(count == _LONG[0], "a block with too many items")
                count[sized] = -count[sized]
                with inside("", sized):
                    _, after[sized] = read_numbers(data, after[sized], ends[rows][sized])
            smallest = self._items.smallest_bytes
            most = (ends[rows] - after) // smallest if smallest else np.int64(_MAX_EMPTY_ITEMS)
            refuse(count > most, "a block with more items than the value has bytes")
        return count, after

    def _read_rest(
        self,
        data: Bytes,
        cursor: Positions,
        ends: Positions,
        live: Positions,
        remaining: Positions | None,
        pieces: list[pa.Array],
        owners: list[Positions],
    ) -> None:
        """Read the remaining items of long blocks: find where each item starts one by one, then read all at once.

        `remaining`: how many there are; None: read all further blocks.
        """
        starts: list[int] = []
        sizes: list[int] = []
        truncated: list[int] = []
        view = data.data
        for number, row in enumerate(live.tolist()):
            reader = Reader(view[: int(ends[row])])
            reader.position = int(cursor[row])
            before = len(starts)
            try:
                count = self._next_block(reader) if remaining is None else int(remaining[number])
                while count:
                    for _ in range(count):
                        starts.append(reader.position)
                        self._items.skip_one(reader)
                    count = self._next_block(reader) if remaining is None else 0
            except ProtocolError:
                truncated.append(row)
            sizes.append(len(starts) - before)
            cursor[row] = reader.position
        if truncated:
            raise InvalidRows(np.array(truncated), _TRUNCATED, "[]")
        owner = np.repeat(live, sizes)
        with inside("[]", owner):
            items, _ = self._items.read(data, np.array(starts, np.int64), ends[owner])
        pieces.append(items)
        owners.append(owner)

    @staticmethod
    def _next_block(reader: Reader) -> int:
        """Return how many items the next block has; 0: there is none. They are limited by their bytes."""
        count = reader.varlong()
        if count < 0:
            reader.varlong()  # the size of the block in bytes
        return abs(count)

    def _column(self, rows: int, pieces: list[pa.Array], owners: list[Positions]) -> pa.Array:
        offsets = np.zeros(rows + 1, np.int32)
        if not pieces:
            empty = pa.nulls(0, self._items.type)
            return pa.Array.from_buffers(self.type, rows, [None, pa.py_buffer(offsets)], children=[empty])
        owner = np.concatenate(owners)
        np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
        items = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        if len(pieces) > 1:
            items = items.take(to_arrow(np.argsort(owner, kind="stable")))
        return pa.Array.from_buffers(self.type, rows, [None, pa.py_buffer(offsets)], children=[items])

    def skip_one(self, reader: Reader) -> None:
        """Skip the blocks."""
        while count := reader.varlong():
            if count < 0:
                reader.advance(_not_negative(reader.varlong()))
                continue
            if not self._items.smallest_bytes:
                continue  # the items have no bytes
            if count > reader.left:
                raise Corrupt(f"a block of {count} items")
            for _ in range(count):
                self._items.skip_one(reader)


class UnionReader(ColumnReader):
    """union: the number of the branch, then its value.

    `branches`: a reader with this type for each of the writer's branches; a text says why the reader has no such
    branch.
    """

    def __init__(self, type: pa.DataType, branches: Sequence[ColumnReader | str]) -> None:
        self.type = type
        self._branches = branches
        readers = [branch for branch in branches if isinstance(branch, ColumnReader)]
        self.smallest_bytes = 1 + min((reader.smallest_bytes for reader in readers), default=0)
        plain = [number for number, branch in enumerate(branches) if isinstance(branch, BytesReader)]
        nulls = [number for number, branch in enumerate(branches) if isinstance(branch, NullReader)]
        # Nullable bytes, the usual case, need no second copy.
        self._bytes_branch = plain[0] if len(branches) == 2 and len(plain) == len(nulls) == 1 else None

    def _numbers(self, data: Bytes, at: Positions, ends: Positions) -> tuple[Integers, Positions]:
        numbers, after = read_numbers(data, at, ends)
        refuse((numbers < 0) | (numbers >= len(self._branches)), "a union branch that the schema does not have")
        return numbers, after

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read each branch in the rows that have it."""
        numbers, at = self._numbers(data, at, ends)
        if self._bytes_branch is not None:
            reader = self._branches[self._bytes_branch]
            assert isinstance(reader, BytesReader)
            rows = np.flatnonzero(numbers == self._bytes_branch)
            return reader.read_some(data, at, ends, rows)
        pieces: list[pa.Array] = []
        owners: list[Positions] = []
        for branch, rows in self._rows_of_branches(numbers):
            with inside("", rows):
                column, at[rows] = branch.read(data, at[rows], ends[rows])
            pieces.append(column)
            owners.append(rows)
        if not pieces:
            return pa.nulls(0, self.type), at
        if len(pieces) == 1:
            return pieces[0], at
        order = np.empty(len(at), np.int64)
        order[np.concatenate(owners)] = np.arange(len(at))
        return pa.concat_arrays(pieces).take(to_arrow(order)), at

    def _rows_of_branches(self, numbers: Integers) -> list[tuple[ColumnReader, Positions]]:
        rows_by_branch = []
        for number, branch in enumerate(self._branches):
            rows = np.flatnonzero(numbers == number)
            if not len(rows):
                continue
            if isinstance(branch, str):
                raise InvalidRows(rows, branch)
            rows_by_branch.append((branch, rows))
        return rows_by_branch

    def skip(self, data: Bytes, at: Positions, ends: Positions) -> Positions:
        """Skip each branch in the rows that have it."""
        numbers, at = self._numbers(data, at, ends)
        for branch, rows in self._rows_of_branches(numbers):
            with inside("", rows):
                at[rows] = branch.skip(data, at[rows], ends[rows])
        return at

    def skip_one(self, reader: Reader) -> None:
        """Skip the branch."""
        number = reader.varlong()
        branch = self._branches[number] if 0 <= number < len(self._branches) else "no such branch"
        if isinstance(branch, str):
            raise Corrupt(branch)
        branch.skip_one(reader)


class MemberReader(ColumnReader):
    """A branch of a union that Spark reads as a struct of members.

    `member`: the field that has the value; the others are null.
    """

    def __init__(self, type: pa.StructType, member: int, reader: ColumnReader) -> None:
        self.type = type
        self.smallest_bytes = reader.smallest_bytes
        self._member = member
        self._reader = reader

    def read(self, data: Bytes, at: Positions, ends: Positions) -> tuple[pa.Array, Positions]:
        """Read the member."""
        column, at = self._reader.read(data, at, ends)
        columns = [pa.nulls(len(at), self.type.field(number).type) for number in range(self.type.num_fields)]
        columns[self._member] = column
        return pa.Array.from_buffers(self.type, len(at), [None], children=columns), at

    def skip_one(self, reader: Reader) -> None:
        """Skip the member."""
        self._reader.skip_one(reader)
