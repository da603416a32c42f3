"""Find the start and end of each record: every record begins with its length, so records form a chain.

The only step of decoding that cannot process all records at once. It has three exact methods: runs of records of equal
size (compared at a stride), lockstep, and a Python loop over single records for all other input. Used by `decode`.

In lockstep, each NumPy step moves a cursor in each of some hundred lanes by one record. A small batch is a lane. A
large one is split into lanes at likely record starts; every guess is verified: the lane before it must end exactly
there, else there is no result. Uses the lengths of records and assumes that their attributes are zero.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt
from protocol.records.batch_header import SMALLEST_RECORD_BYTES
from protocol.records.varints import Bytes, Positions
from protocol.wire.primitives import Reader

_LANES = 512
MIN_LANES = 24
_HOPS = 2
_CHECK_EVERY = 4
# Nanoseconds that lockstep saves per record, and that it costs to find the lanes: fixed, and per byte of average size.
_GAIN, _SYNC, _SYNC_A_BYTE = 45, 100_000, 120
_LARGEST_MULTIPLE = 8


def _sizes_by_prefix() -> Positions:
    """Map a record's first two bytes, as a little-endian number, to its whole size.

    The size is 0 if unknown: the length has three bytes or more, or is negative.
    """
    prefix = np.arange(1 << 16)
    first, second = prefix & 0xFF, prefix >> 8
    short = first < 0x80
    raw = np.where(short, first, first & 0x7F | second << 7)
    sizes: Positions = np.where(short, 1, 2) + (raw >> 1)
    sizes[(raw & 1 == 1) | (~short & (second >= 0x80))] = 0
    return sizes


SIZES = _sizes_by_prefix()


def prefixes(data: Bytes) -> npt.NDArray[Any]:
    """Return the two bytes at every position as one little-endian number; a view."""
    view: npt.NDArray[Any] = np.ndarray((len(data) - 1,), "<u2", data, strides=(1,))
    return view


def lockstep_pays(rows: int, size_bytes: int, largest_share: float, regions: int) -> bool:
    """Return True if lockstep beats a loop.

    `rows`, `size_bytes`: total number and size of the records.
    `largest_share`: share of the records, from 0 to 1, in the largest region.
    `regions`: number of regions (batches).
    """
    average = size_bytes / rows
    if regions * largest_share < 4 and regions >= MIN_LANES:
        return True
    return rows * _GAIN > _SYNC + _SYNC_A_BYTE * average


def bounds_in_lockstep(
    data: Bytes, begins: Positions, ends: Positions, average: int
) -> tuple[Positions, Positions, Positions] | None:
    """Return start and end of every record in the regions [begins[i], ends[i]), and the record count per region.

    `average` is the expected size of a record in bytes. Returns None if a lane does not end where the next one starts.
    """
    lanes, untils, region = _lanes(data, begins, ends, average)
    prefix_at, last = prefixes(data), len(data) - 2
    expected = int((untils - lanes).mean()) // average
    most = 3 * expected + 32
    path = np.empty((most + 1, len(lanes)), np.int64)
    path[0] = position = lanes
    size = np.empty_like(lanes)
    steps = 0
    for after in path[1:]:
        try:
            prefix = prefix_at[position]
        except IndexError:
            # Lanes past their end continue, and finally exceed the data.
            prefix = prefix_at[np.minimum(position, last)]
        SIZES.take(prefix, out=size, mode="clip")
        position = np.add(position, size, out=after)
        steps += 1
        if steps >= expected and steps % _CHECK_EVERY == 0 and (position >= untils).all():
            break
    path = np.ascontiguousarray(path[: steps + 1].T)
    within = path < untils[:, None]
    counts = within.sum(axis=1)
    if (counts > steps).any() or (path[np.arange(len(lanes)), counts] != untils).any():
        return None
    within = within[:, :-1]
    starts = path[:, :-1][within]
    rows = np.bincount(region, counts, len(begins)).astype(np.int64)
    # A record ends where the next one of its region starts.
    stops = np.empty_like(starts)
    stops[:-1] = starts[1:]
    filled = rows > 0
    stops[rows.cumsum()[filled] - 1] = ends[filled]
    return starts, stops, rows


def _lanes(data: Bytes, begins: Positions, ends: Positions, average: int) -> tuple[Positions, Positions, Positions]:
    """Split long regions into lanes; return start, end and region of each lane.

    The lanes of a region have similar sizes, since the longest lane determines the number of steps.
    """
    lengths = ends - begins
    lane_bytes = max(int(lengths.sum()) // _LANES, 4 * average)
    parts = np.maximum((lengths + lane_bytes // 2) // lane_bytes, 1)
    cuts = parts - 1
    total = int(cuts.sum())
    if not total:
        return begins, ends, np.arange(len(begins))
    region = np.repeat(np.arange(len(begins)), cuts)
    nth = np.arange(total) - np.repeat(np.cumsum(cuts) - cuts, cuts) + 1
    record_starts = likely_record_starts(data, begins[region] + nth * (lengths // parts)[region], ends[region], average)
    lanes = np.concatenate([begins, record_starts])
    lanes.sort()
    region = np.searchsorted(begins, lanes, side="right") - 1
    untils = ends[region]
    untils[:-1] = np.minimum(untils[:-1], lanes[1:])
    return lanes, untils, region


def likely_record_starts(data: Bytes, guesses: Positions, limits: Positions, average: int) -> Positions:
    """Return likely record starts, sorted: at most one per guess, within two average records and before its limit.

    A record starts with its length and attributes of zero, and leads to another record or to the limit. The byte
    before it is mostly a header count of zero: if some candidates have that, only those are used.
    """
    window = 2 * average + 16
    fits = guesses + window < limits
    guesses, limits = guesses[fits], limits[fits]
    if not len(guesses):
        return guesses
    prefix_at, last = prefixes(data), len(data) - 2
    windows = np.ndarray((len(data) - window, window), np.uint8, data, strides=(1, 1))[guesses]
    lane, column = np.divmod(np.flatnonzero(windows == 0), window)
    zero = guesses[lane] + column
    # The length before the attributes' zero byte has one or two bytes.
    start = zero - 1 - (prefix_at[zero - 2] & 0x8080 == 0x0080)
    sizes = SIZES[prefix_at[start]]
    likely = (sizes >= SMALLEST_RECORD_BYTES) & (sizes < _LARGEST_MULTIPLE * average)
    bare = likely & (data[start - 1] == 0)
    rows = np.flatnonzero(bare if bare.any() else likely)
    lane, start, limits = lane[rows], start[rows], limits[lane[rows]]
    at, good = start + sizes[rows], np.ones(len(rows), np.bool_)
    for _ in range(_HOPS):
        at = np.minimum(at, last)
        prefix = prefix_at[at]
        attributes = data[np.minimum(at + 1 + (prefix & 0x80 != 0), last)]
        ended = at == limits
        sizes = SIZES[prefix]
        good &= ended | ((sizes >= SMALLEST_RECORD_BYTES) & (attributes == 0) & (at + sizes <= limits))
        at = np.where(ended, at, at + sizes)
    lane, start = lane[good], start[good]
    first = np.ones(len(lane), np.bool_)
    first[1:] = lane[1:] != lane[:-1]
    return np.unique(start[first])


Bounds = tuple[Positions, Positions]
"""Start and end of each record."""

_STEPS: list[list[int]] = SIZES.reshape(256, 256).T.tolist()
"""SIZES as lists: `_STEPS[first byte][second byte]`."""
_MIN_IN_RUN = 64


def record_bounds(data: Bytes, begins: Positions, ends: Positions, counts: Positions) -> Bounds:
    """Return start and end of every record of some batches, whose records are in `data[begins[i]:ends[i]]`.

    Raises `Corrupt` or `Truncated`: `counts[i]` records do not fill batch i exactly.
    """
    rows, size_bytes = int(counts.sum()), int((ends - begins).sum())
    batches = list(zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True))
    of_one_size = len(batches) < MIN_LANES and _bounds_at_stride(data, *batches[0])
    if not of_one_size and lockstep_pays(rows, size_bytes, int(counts.max()) / rows, len(batches)):
        bounds = bounds_in_lockstep(data, begins, ends, size_bytes // rows)
        if bounds is not None and (bounds[2] == counts).all():
            return bounds[:2]
    return _joined(
        [part for begin, end, count in batches for part in record_bounds_in_parts(data, begin, end, count, count)]
    )


def record_bounds_in_parts(data: Bytes, begin: int, end: int, count: int, rows_at_once: int) -> Iterator[Bounds]:
    """Yield start and end of every record of one batch in `data[begin:end]`, about `rows_at_once` at a time.

    Raises `Corrupt` or `Truncated`: `count` records do not fill the batch exactly.
    """
    while count > 0:
        pieces = max(1, round(count / rows_at_once))
        target = -(-count // pieces)
        parts = []
        while target > 0:
            last = target == count
            part = (
                _bounds_at_stride(data, begin, end, target)
                or _bounds_in_lockstep(data, begin, end, target, count)
                or _bounds_one_by_one(data, begin, end, target, last)
            )
            parts.append(part)
            begin = int(part[1][-1])
            target -= len(part[0])
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
    if average < SMALLEST_RECORD_BYTES or not lockstep_pays(rows, rows * average, 1.0, 1):
        return None
    until = np.array([end])
    if rows < count:
        until = likely_record_starts(data, np.array([begin + rows * average]), until, average)
    bounds = bounds_in_lockstep(data, np.array([begin]), until, average) if len(until) else None
    return bounds and bounds[:2]


def _bounds_one_by_one(data: Bytes, begin: int, end: int, count: int, complete: bool) -> Bounds:
    """Return `count` consecutive records from `begin` that end before `end`, or (`complete`) exactly there."""
    view, steps, position = data.data, _STEPS, begin
    try:
        ends = [position := position + steps[view[position]][view[position + 1]] for _ in repeat(None, count)]
    except IndexError:
        ends = []
    # A step of 0 does not move, so all later positions are equal.
    if not ends or ends[-1] == (ends[-2] if count > 1 else begin):
        ends = _careful_ends(view, begin, end, count)
    if ends[-1] > end or (complete and ends[-1] != end):
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
