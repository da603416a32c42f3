"""Find the fields of Protobuf messages, of all messages at once.

A cursor per message is at a tag. Each step takes the smallest of these tags and reads it in all messages that have
it there: writers order fields by number, so a step usually reads one field of all messages. Few messages, and groups,
are read one by one.

No step trusts the bytes: it raises `InvalidRows` before it reads behind the end of a message.

Source: the Protobuf documentation, "Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from protocol.records.varints import Bytes, Integers, Positions
from protocol.schemas.decoding import InvalidRows, inside, refuse

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = 0, 1, 2, 3, 4, 5
_FEWEST_ROWS = 24
# Read a tag in all messages at once if at least one in so many has it.
_WIDE_SHARE = 4
# After so many steps messages that are read to their end are left out, if they are most.
_COMPRESS_STEPS = 32
_MAX_VARINT_BYTES = 10
_MAX_TAG = 2**32 - 1
# The tag of a message that is read to its end; no field has it.
_DONE = np.uint32(_MAX_TAG)
_MAX_GROUPS = 100
END = "the value ends in the middle of the field"
_TAG = "a tag that is not valid"
_LENGTH = "a length that exceeds the value"
_OPEN_GROUP = "a group without its end"
_MASK64 = 2**64 - 1
_HIGH_BITS = np.uint64(0x8080808080808080)
# Steps that move groups of seven bits together: pairs of bytes, then pairs of these, and so on.
_GATHER = (
    (np.uint64(0x007F007F007F007F), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(4)),
)


@dataclass(frozen=True)
class Found:
    """Occurrences of one tag; those of one message are in their order.

    `row` (array of int): the number of the message.
    `at` (array of int): start of the value, behind its length.
    `number` (array of unsigned int): a varint's value; the length of bytes and groups.
    `step` (array of int, or int): ascends among all fields of a message; a scalar if it is equal for all occurrences.
    """

    row: Positions
    at: Positions
    number: Integers
    step: Positions | int

    @property
    def order(self) -> Positions:
        """`step` as an array."""
        return np.full(len(self.row), self.step, np.int64) if isinstance(self.step, int) else self.step

    def where(self, mask: npt.NDArray[np.bool_] | Positions) -> Found:
        """Return those that a mask, or numbers, select."""
        step = self.step if isinstance(self.step, int) else self.step[mask]
        return Found(self.row[mask], self.at[mask], self.number[mask], step)


@dataclass(frozen=True)
class Column:
    """Occurrences of one tag, at most one in each message, with an element for every message.

    `at` (array of int): start of the value; a place in the message if there is none.
    `number` (array of unsigned int): as that of `Found`; without meaning if there is no value.
    `there` (array of bool or None): True for messages that have the value; None: all.
    """

    at: Positions
    number: Integers
    there: npt.NDArray[np.bool_] | None
    step: int

    def narrow(self) -> Found:
        """Return the occurrences alone."""
        if self.there is None:
            return Found(np.arange(len(self.at)), self.at, self.number, self.step)
        rows = np.flatnonzero(self.there)
        return Found(rows, self.at[rows], self.number[rows], self.step)


def narrow(hits: Found | Column) -> Found:
    """Return occurrences alone."""
    return hits.narrow() if isinstance(hits, Column) else hits


NOTHING = Found(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8), 0)


def join(pieces: list[Found]) -> Found:
    """Return the occurrences of all pieces, one after another."""
    if len(pieces) == 1:
        return pieces[0]
    return Found(
        np.concatenate([piece.row for piece in pieces]),
        np.concatenate([piece.at for piece in pieces]),
        np.concatenate([piece.number for piece in pieces]),
        np.concatenate([piece.order for piece in pieces]),
    )


def read_unsigned(data: Bytes, at: Positions, ends: Positions | None) -> tuple[Integers, Positions]:
    """Read a varint at each cursor, and check that it ends within its message (`ends` None: the caller checks).

    Bits over 64 are dropped, as other implementations do. The numbers have the smallest type that holds them.
    """
    first = data.take(at, mode="clip")
    after = at + 1
    if not len(at) or first.max() < 0x80:
        if ends is not None:
            refuse(after > ends, END)
        return first, after
    second = data.take(after, mode="clip")
    long = first >= 0x80
    numbers: Integers = first.astype(np.uint16)
    numbers += long * ((second.astype(np.uint16) << np.uint16(7)) - np.uint16(0x80))
    after += long
    longer = long & (second >= 0x80)
    if longer.any():
        rows = np.flatnonzero(longer)
        numbers = numbers.astype(np.uint64)
        with inside("", rows):
            numbers[rows], after[rows] = _read_long(data, at[rows])
    if ends is not None:
        refuse(after > ends, END)
    return numbers, after


def _read_long(data: Bytes, at: Positions) -> tuple[Integers, Positions]:
    """Read varints of three and more bytes, eight bytes at once. Those of nine and ten are read byte by byte."""
    numbers, after = np.zeros(len(at), np.uint64), at.copy()
    unfinished = np.arange(len(at))
    if len(data) >= 8:
        has_word = at <= len(data) - 8
        words = np.ndarray((len(data) - 7,), "<u8", np.ascontiguousarray(data), 0, (1,))[at[has_word]]
        # The highest bit of the byte that ends a varint is zero: the lowest of these bits.
        last = ~words & _HIGH_BITS
        last &= (~last) + np.uint64(1)
        bits = words & ((last << np.uint64(1)) - np.uint64(1)) & ~_HIGH_BITS
        for mask, shift in _GATHER:
            bits = (bits & mask) | ((bits & ~mask) >> shift)
        numbers[has_word] = bits
        # The bit's number is 8 * bytes - 1; without one, log2 of zero is not used.
        short = last != 0
        sizes = (np.log2(last, where=short, out=np.zeros(len(last))).astype(np.int64) + 1) >> 3
        after[has_word] += sizes
        unfinished = np.concatenate([np.flatnonzero(~has_word), np.flatnonzero(has_word)[~short]])
    if len(unfinished):
        with inside("", unfinished):
            numbers[unfinished], after[unfinished] = _read_by_byte(data, at[unfinished])
    return numbers, after


def _read_by_byte(data: Bytes, at: Positions) -> tuple[Integers, Positions]:
    numbers, after = np.zeros(len(at), np.uint64), at.copy()
    rows = np.arange(len(at))
    for step in range(_MAX_VARINT_BYTES):
        byte = data.take(after[rows], mode="clip")
        numbers[rows] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * step)
        after[rows] += 1
        rows = rows[byte >= 0x80]
        if not len(rows):
            return numbers, after
    raise InvalidRows(rows, f"a varint with more than {_MAX_VARINT_BYTES} bytes")


def scan(data: Bytes, at: Positions, ends: Positions) -> dict[int, Found | Column]:
    """Return the fields of the messages `data[at[i]:ends[i]]` by tag."""
    fields: dict[int, list[Found | Column]] = {}
    rows = np.flatnonzero(at < ends)
    cursor, end = at[rows], ends[rows]
    # As long as no message is left out, operations on all of them cost less than selecting some.
    all_rows = len(rows) == len(at)
    tags, start = _tags(data, cursor, end, rows)
    step = 0
    while len(rows):
        tag = int(tags.min())
        if tag == _MAX_TAG:
            break
        mask = tags == tag
        count = int(np.count_nonzero(mask))
        step += 1
        if tag < 8 or tag & 7 > FIXED32:
            raise InvalidRows(rows[mask], _TAG)
        if count < _FEWEST_ROWS or tag & 7 in (GROUP, GROUP_END):
            places = np.flatnonzero(mask)
            _scan_singly(data, rows[places], cursor[places], end[places], fields, step)
            tags[places] = _DONE
            end[places] = cursor[places]
        elif all_rows and count * _WIDE_SHARE >= len(rows):
            present = None if count == len(rows) else mask
            # Where a message has another tag, its first one is read again, which is a varint, too.
            begin = start if present is None else np.where(present, start, at)
            column, cursor = _read_column(data, present, begin, cursor, end, tag, step)
            fields.setdefault(tag, []).append(column)
            tags, start = _all_tags(data, cursor, end, at)
        else:
            places = np.flatnonzero(mask)
            try:
                number, begin, after = _value(data, start[places], end[places], tag & 7)
            except InvalidRows as error:
                raise error.inside("", rows[places]) from None
            fields.setdefault(tag, []).append(Found(rows[places], begin, number, step))
            cursor[places] = after
            tags[places], start[places] = _tags(data, after, end[places], rows[places])
        if step % _COMPRESS_STEPS == 0:
            live = tags != _DONE
            if np.count_nonzero(live) * _WIDE_SHARE < len(rows):
                rows, cursor, end, tags, start = rows[live], cursor[live], end[live], tags[live], start[live]
                all_rows = False
    return {tag: pieces[0] if len(pieces) == 1 else join([*map(narrow, pieces)]) for tag, pieces in fields.items()}


def _read_column(
    data: Bytes,
    present: npt.NDArray[np.bool_] | None,
    begin: Positions,
    cursor: Positions,
    end: Positions,
    tag: int,
    step: int,
) -> tuple[Column, Positions]:
    """Return the values of a tag of all messages, and the next cursors."""
    wire = tag & 7
    number: Integers = np.zeros(len(begin), np.uint8)
    if wire in (VARINT, BYTES):
        number, after = read_unsigned(data, begin, None)
        if wire == BYTES:
            room = end - after
            # An end that the length itself exceeds is an error, too.
            longer = (room < 0) | (number > (room.view(np.uint64) if number.itemsize > 2 else room))
            refuse(longer if present is None else longer & present, _LENGTH)
            begin = after
            after = after + number.astype(np.int64)
    else:
        after = begin + (8 if wire == FIXED64 else 4)
    wrong = after > end
    if wrong.any():
        refuse(wrong if present is None else wrong & present, END)
    return Column(begin, number, present, step), after if present is None else np.where(present, after, cursor)


def _all_tags(
    data: Bytes, cursor: Positions, end: Positions, first: Positions
) -> tuple[npt.NDArray[np.uint32], Positions]:
    """Return the tag at each cursor, `_DONE` at the end, and where the values begin. At `first` are valid tags."""
    live = cursor < end
    every = bool(live.all())
    numbers, start = read_unsigned(data, cursor if every else np.where(live, cursor, first), None)
    wrong = start > end
    if numbers.itemsize > 2:
        refuse(live & (numbers > _MAX_TAG - 1), _TAG)
    if wrong.any():
        refuse(wrong & live, END)
    tags = numbers.astype(np.uint32)
    if not every:
        tags[~live] = _DONE
    return tags, start


def _tags(data: Bytes, cursor: Positions, end: Positions, rows: Positions) -> tuple[npt.NDArray[np.uint32], Positions]:
    """Return the tag at each cursor, `_DONE` at the end, and where the values begin."""
    open_rows = cursor < end
    if open_rows.all():
        with inside("", rows):
            numbers, start = read_unsigned(data, cursor, end)
            if numbers.itemsize > 2:
                refuse(numbers > _MAX_TAG - 1, _TAG)
        return numbers.astype(np.uint32), start
    tags, start = np.full(len(cursor), _DONE, np.uint32), cursor.copy()
    more = np.flatnonzero(open_rows)
    if len(more):
        tags[more], start[more] = _tags(data, cursor[more], end[more], rows[more])
    return tags, start


def _value(data: Bytes, start: Positions, end: Positions, wire: int) -> tuple[Integers, Positions, Positions]:
    """Return the numbers of values, where they begin, and where they end."""
    if wire == VARINT:
        number, after = read_unsigned(data, start, end)
        return number, start, after
    if wire == BYTES:
        number, begin = read_unsigned(data, start, end)
        room = end - begin
        refuse(number > (room.view(np.uint64) if number.itemsize > 2 else room), _LENGTH)
        return number, begin, begin + number.astype(np.int64)
    after = start + (8 if wire == FIXED64 else 4)
    refuse(after > end, END)
    return np.zeros(len(start), np.uint8), start, after


# -- one by one -------------------------------------------------------------------------------


def _scan_singly(
    data: Bytes,
    rows: Positions,
    cursor: Positions,
    ends: Positions,
    fields_by_number: dict[int, list[Found | Column]],
    step: int,
) -> None:
    """Read these messages to their ends."""
    fields: dict[int, list[tuple[int, int, int, int]]] = {}
    for row, first, end in zip(rows.tolist(), cursor.tolist(), ends.tolist(), strict=True):
        raw = data[first:end].tobytes()
        at, order = 0, step
        try:
            while at < len(raw):
                tag, at = _varint(raw, at)
                if not 8 <= tag < _MAX_TAG:
                    raise ValueError(_TAG)
                number, at, after = _field(raw, at, tag)
                order += 1
                fields.setdefault(tag, []).append((row, first + at, number, order))
                at = after
        except ValueError as error:
            raise InvalidRows(np.array([row]), str(error)) from None
    for tag, entries in fields.items():
        row_of, starts, numbers, orders = zip(*entries, strict=True)
        fields_by_number.setdefault(tag, []).append(
            Found(
                np.array(row_of, np.int64),
                np.array(starts, np.int64),
                np.array(numbers, np.uint64),
                np.array(orders, np.int64),
            )
        )


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(len(raw), at + _MAX_VARINT_BYTES)):
        byte = raw[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK64, place + 1
        shift += 7
    raise ValueError(END if shift < 7 * _MAX_VARINT_BYTES else f"a varint with more than {_MAX_VARINT_BYTES} bytes")


def _field(raw: bytes, at: int, tag: int) -> tuple[int, int, int]:
    """Return the number of a value, where it begins, and where the next tag is."""
    wire = tag & 7
    if wire == VARINT:
        number, after = _varint(raw, at)
        return number, at, after
    if wire == BYTES:
        number, at = _varint(raw, at)
        if number > len(raw) - at:
            raise ValueError(_LENGTH)
        return number, at, at + number
    if wire in (FIXED64, FIXED32):
        after = at + (8 if wire == FIXED64 else 4)
        if after > len(raw):
            raise ValueError(END)
        return 0, at, after
    if wire != GROUP:
        raise ValueError(_TAG)
    inner, after = _group(raw, at, tag >> 3)
    return inner - at, at, after


def _group(raw: bytes, at: int, field: int) -> tuple[int, int]:
    """Return where the end tag of a group begins, and where it ends."""
    open_fields = [field]
    while at < len(raw):
        before = at
        tag, at = _varint(raw, at)
        if not 8 <= tag < _MAX_TAG:
            raise ValueError(_TAG)
        if tag & 7 == GROUP:
            open_fields.append(tag >> 3)
            if len(open_fields) > _MAX_GROUPS:
                raise ValueError(f"more than {_MAX_GROUPS} groups inside each other")
        elif tag & 7 == GROUP_END:
            if open_fields.pop() != tag >> 3:
                raise ValueError(_TAG)
            if not open_fields:
                return before, at
        else:
            _, _, at = _field(raw, at, tag)
    raise ValueError(_OPEN_GROUP)
