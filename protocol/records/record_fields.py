"""Find the bounds of every field from the bounds of records, and build the headers column. Vectorised over records.

Implements the layout of a record (magic 2) and checks that its fields fill it exactly. Used by `decode`.

The headers column is list<struct<key: string, value: binary>>, null for a record without headers. Headers form a chain
within each record: they are read in vectorised rounds over the records (the first header of each, then the second and
so on), and one by one for a rare record with very many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import Corrupt
from protocol.records.arrow_numpy import binary_column, text_column
from protocol.records.varints import Bytes, Integers, Positions, read_varints
from protocol.wire.primitives import Reader

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

_ATTRIBUTES_BYTES = 1
# Records with more headers than this are read one by one: each round reads one header of all remaining records.
_MAX_ROUNDS = 100
# Larger inputs are split in halves, to limit the memory of the arrays of positions.
_MAX_HEADERS_AT_ONCE = 1 << 18
_MAX_HEADERS_PER_RECORD = 1 << 20
_MIN_HEADER_BYTES = 2


@dataclass
class RecordFields:
    """One row per record; positions refer to the bytes that were read. A null has length -1."""

    offset_delta: Integers
    timestamp_delta: Integers
    key_at: Positions
    key_length: Integers
    value_at: Positions
    value_length: Integers
    headers_at: Positions
    header_count: Integers
    ends: Positions

    def select(self, rows: Any) -> RecordFields:
        """Return the given rows: a slice or an array of row numbers."""
        return RecordFields(**{name: column[rows] for name, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.ends)


def read_fields(data: Bytes, starts: Positions, ends: Positions) -> RecordFields:
    """Read the fields of the records `data[starts[i]:ends[i]]`.

    Raises `Corrupt`: the fields of a record do not fill it exactly.
    """
    _, at = read_varints(data, starts)
    at += _ATTRIBUTES_BYTES
    timestamp_delta, at = read_varints(data, at, bits=64)
    offset_delta, at = read_varints(data, at)
    key_length, key_at = read_varints(data, at)
    value_length, value_at = read_varints(data, _end(key_at, key_length, ends, "key"))
    header_count, headers_at = read_varints(data, _end(value_at, value_length, ends, "value"))
    without_headers = header_count == 0
    wrong = (headers_at > ends) | (header_count < 0) | (without_headers & (headers_at != ends))
    if wrong.any():
        raise Corrupt(f"the fields of the record at byte {starts[int(wrong.argmax())]} do not fill it exactly")
    return RecordFields(
        offset_delta, timestamp_delta, key_at, key_length, value_at, value_length, headers_at, header_count, ends
    )


def _end(at: Positions, length: Integers, ends: Positions, subject: str) -> Positions:
    """Return the end of a nullable field."""
    smallest = length.min() if len(length) else 0
    if smallest < -1:
        raise Corrupt(f"a {subject} of length {smallest}")
    end: npt.NDArray[np.int64] = at + (np.maximum(length, 0) if smallest < 0 else length)
    if (end > ends).any():
        raise Corrupt(f"a {subject} is longer than its record")
    return end


class _Bounds:
    """Positions and lengths of all keys and values, flattened; a null value has length -1."""

    def __init__(self, total: int) -> None:
        self.key_at, self.key_length, self.value_at, self.value_length = (np.empty(total, np.int64) for _ in range(4))


def record_headers(data: Bytes, at: Positions, count: Integers, ends: Positions) -> pa.Array:
    """Build the headers of each record: `count[i]` of them are in `data[at[i]:ends[i]]`.

    Raises `Corrupt` or `Truncated`: the headers of a record do not fill it exactly.
    """
    rows = len(at)
    counts = count.astype(np.int64)
    if not counts.any():
        return pa.nulls(rows, HEADERS_TYPE)
    left_bytes = ends - at
    impossible = counts > left_bytes // _MIN_HEADER_BYTES
    if impossible.any():
        row = int(impossible.argmax())
        raise Corrupt(f"a record announces {counts[row]} headers, but only {left_bytes[row]} bytes are left for them")
    if (largest := int(counts.max())) > _MAX_HEADERS_PER_RECORD:
        raise Corrupt(
            f"a record has {largest} headers; the maximum is {_MAX_HEADERS_PER_RECORD} "
            "(leave out the headers column to read the record without them)"
        )
    total = int(counts.sum())
    if total > _MAX_HEADERS_AT_ONCE and rows > 1:
        half = rows // 2
        return pa.concat_arrays(
            [record_headers(data, at[s], count[s], ends[s]) for s in (slice(half), slice(half, None))]
        )
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    bounds = _Bounds(total)
    many = counts > _MAX_ROUNDS
    _read_in_rounds(data, np.flatnonzero((counts > 0) & ~many), first, at, counts, ends, bounds)
    for row in np.flatnonzero(many).tolist():
        _read_one_by_one(data, int(at[row]), int(ends[row]), range(int(first[row]), int(first[row + 1])), bounds)
    pairs = pa.StructArray.from_arrays(
        [
            text_column(binary_column(data, bounds.key_at, bounds.key_length)),
            binary_column(data, bounds.value_at, bounds.value_length),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    validity = pa.py_buffer(np.packbits(counts > 0, bitorder="little"))
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [validity, pa.py_buffer(first.astype(np.int32))], children=[pairs])


def _read_in_rounds(
    data: Bytes,
    rows: npt.NDArray[np.int64],
    first: Positions,
    at: Positions,
    counts: npt.NDArray[np.int64],
    ends: Positions,
    bounds: _Bounds,
) -> None:
    cursor, done = at[rows], 0
    while len(rows):
        target = first[rows] + done
        length, start = read_varints(data, cursor)
        if length.min() < 0:
            raise Corrupt("a header without a key")
        bounds.key_at[target], bounds.key_length[target] = start, length
        length, start = read_varints(data, start + length)
        if length.min() < -1:
            raise Corrupt(f"a header value of length {length.min()}")
        bounds.value_at[target], bounds.value_length[target] = start, length
        cursor = start + np.maximum(length, 0)
        done += 1
        more = counts[rows] > done
        if (cursor > ends[rows]).any() or (cursor[~more] != ends[rows[~more]]).any():
            raise Corrupt("the headers of a record do not fill it exactly")
        rows, cursor = rows[more], cursor[more]


def _read_one_by_one(data: Bytes, at: int, end: int, targets: range, bounds: _Bounds) -> None:
    reader = Reader(data[:end].data)
    reader.position = at
    for target in targets:
        for part, where, lengths in (
            ("key", bounds.key_at, bounds.key_length),
            ("value", bounds.value_at, bounds.value_length),
        ):
            length = reader.varint()
            if length < (0 if part == "key" else -1):
                raise Corrupt(f"a header {part} of length {length}")
            where[target], lengths[target] = reader.advance(max(0, length)), length
    if reader.left:
        raise Corrupt("the headers of a record do not fill it exactly")
