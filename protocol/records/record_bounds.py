"""Find the start and end of each record: every record begins with its length, so records form a chain.

The only step of decoding that cannot process all records at once. It has three exact methods: runs of records of equal
size (compared at a stride), `record_bounds_lockstep`, and a Python loop over single records for all other input. Used
by `decode`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat

import numpy as np

from protocol.errors import Corrupt
from protocol.records.batch_header import SMALLEST_RECORD_BYTES
from protocol.records.record_bounds_lockstep import (
    MIN_LANES,
    SIZES,
    bounds_in_lockstep,
    likely_record_starts,
    lockstep_pays,
    prefixes,
)
from protocol.records.varints import Bytes, Positions
from protocol.wire.primitives import Reader

Bounds = tuple[Positions, Positions]
"""Start and end of each record."""

_STEPS: list[list[int]] = SIZES.reshape(256, 256).T.tolist()
"""SIZES as lists: `_STEPS[first byte][second byte]`."""
_MIN_IN_RUN = 64


def record_bounds(data: Bytes, begins: Positions, ends: Positions, counts: Positions) -> Bounds:
    """Return start and end of every record of some batches, whose records are in `data[begins[i]:ends[i]]`.

    Raises
    ------
    Corrupt, Truncated
        `counts[i]` records do not fill batch i exactly.
    """
    rows, size_bytes = int(counts.sum()), int((ends - begins).sum())
    batches = list(zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True))
    of_one_size = len(batches) < MIN_LANES and _bounds_at_stride(data, *batches[0])
    if not of_one_size and lockstep_pays(rows, size_bytes, int(counts.max()) / rows, len(batches)):
        found = bounds_in_lockstep(data, begins, ends, size_bytes // rows)
        if found is not None and (found[2] == counts).all():
            return found[:2]
    return _joined(
        [part for begin, end, count in batches for part in record_bounds_in_parts(data, begin, end, count, count)]
    )


def record_bounds_in_parts(data: Bytes, begin: int, end: int, count: int, rows_at_once: int) -> Iterator[Bounds]:
    """Yield start and end of every record of one batch in `data[begin:end]`, about `rows_at_once` at a time.

    Raises
    ------
    Corrupt, Truncated
        `count` records do not fill the batch exactly.
    """
    while count > 0:
        pieces = max(1, round(count / rows_at_once))
        wanted = -(-count // pieces)
        parts = []
        while wanted > 0:
            last = wanted == count
            part = (
                _bounds_at_stride(data, begin, end, wanted)
                or _bounds_in_lockstep(data, begin, end, wanted, count)
                or _bounds_one_by_one(data, begin, end, wanted, last)
            )
            parts.append(part)
            begin = int(part[1][-1])
            wanted -= len(part[0])
            count -= len(part[0])
        if count < 0 or (count == 0 and begin != end):
            raise Corrupt("its number of records differs from its header's")
        yield _joined(parts)


def _joined(parts: list[Bounds]) -> Bounds:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([starts for starts, _ in parts]), np.concatenate([ends for _, ends in parts])


def _bounds_at_stride(data: Bytes, begin: int, end: int, most: int) -> Bounds | None:
    """Return the next records, up to `most`, while they have the size of the first; None for a short run."""
    if most < _MIN_IN_RUN or end - begin < most * SMALLEST_RECORD_BYTES:
        return None
    prefix_at = prefixes(data)
    prefix = prefix_at[begin]
    size = int(SIZES[prefix])
    fits = min(most, (end - begin) // size) if size else 0
    if fits < _MIN_IN_RUN:
        return None
    rows, more = 0, _MIN_IN_RUN
    while rows < fits:
        same = prefix_at[begin + rows * size : begin + min(rows + more, fits) * size : size] == prefix
        if not same.all():
            rows += int(same.argmin())
            break
        rows, more = rows + len(same), more * 8
    if rows < _MIN_IN_RUN:
        return None
    bounds = np.arange(begin, begin + rows * size + 1, size)
    return bounds[:-1], bounds[1:]


def _bounds_in_lockstep(data: Bytes, begin: int, end: int, rows: int, count: int) -> Bounds | None:
    """Return about `rows` of the next `count` records (all if equal); None if lockstep finds no result."""
    average = (end - begin) // count
    if not lockstep_pays(rows, rows * average, 1.0, 1):
        return None
    until = np.array([end])
    if rows < count:
        until = likely_record_starts(data, np.array([begin + rows * average]), until, average)
    found = bounds_in_lockstep(data, np.array([begin]), until, average) if len(until) else None
    return found and found[:2]


def _bounds_one_by_one(data: Bytes, begin: int, end: int, count: int, whole: bool) -> Bounds:
    """Return `count` consecutive records from `begin` that end before `end`, or (`whole`) exactly there."""
    view, steps, position = data.data, _STEPS, begin
    try:
        ends = [position := position + steps[view[position]][view[position + 1]] for _ in repeat(None, count)]
    except IndexError:
        ends = []
    # A step of 0 does not move, so all later positions are equal.
    if not ends or ends[-1] == (ends[-2] if count > 1 else begin):
        ends = _careful_ends(view, begin, end, count)
    if ends[-1] > end or (whole and ends[-1] != end):
        raise Corrupt(f"its records end at byte {ends[-1]} of {end}")
    stops = np.frombuffer(struct.pack(f"{count}q", *ends), np.int64)
    starts = np.empty_like(stops)
    starts[0] = begin
    starts[1:] = stops[:-1]
    return starts, stops


def _careful_ends(view: memoryview, begin: int, end: int, count: int) -> list[int]:
    """Return the ends for lengths of any size, checking each one."""
    reader = Reader(view[:end])
    reader.position = begin
    ends = []
    for _ in repeat(None, count):
        length = reader.varint()
        if length < 0:
            raise Corrupt(f"a record of length {length}")
        reader.advance(length)
        ends.append(reader.position)
    return ends
