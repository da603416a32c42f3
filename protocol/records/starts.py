"""Where each record of a batch ends: every record begins with its length, so they form a chain.

The only step of decoding that cannot look at all records at once. Knows lengths and nothing else of a record.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt
from protocol.wire.primitives import BytesLike, Reader

Positions = npt.NDArray[np.int64]


def _steps() -> list[list[int | None]]:
    """From a record's first two bytes to its whole size; None where they are not a length of one or two bytes."""

    def step(first: int, second: int) -> int | None:
        raw, size_bytes = (first, 1) if first < 0x80 else (first & 0x7F | second << 7, 2)
        return None if raw & 1 or (second >= 0x80 and size_bytes == 2) else (raw >> 1) + size_bytes

    return [[step(first, second) for second in range(256)] for first in range(256)]


_STEPS = _steps()


def bounds_of_batches(
    data: BytesLike, begins: Sequence[int], ends: Sequence[int], counts: Sequence[int]
) -> tuple[Positions, Positions]:
    """Start and end of every record of several batches, the records of batch i being in data[begins[i]:ends[i]]."""
    parts = [bounds for row in zip(begins, ends, counts, strict=True) for bounds in stretches(data, *row, sum(counts))]
    return np.concatenate([starts for starts, _ in parts]), np.concatenate([ends for _, ends in parts])


def stretches(
    data: BytesLike, begin: int, end: int, count: int, rows_at_once: int
) -> Iterator[tuple[Positions, Positions]]:
    """Start and end of every record of one batch, in data[begin:end], about `rows_at_once` records at a time.

    Raises `Corrupt` or `Truncated` when `count` records do not fill the batch exactly.
    """
    step = math.ceil(count / max(1, round(count / rows_at_once)))
    for first in range(0, count, step):
        last = first + step >= count
        ends = _ends(data, begin, end, min(step, count - first))
        if last and ends[-1] != end:
            raise Corrupt(f"its {count} records end at byte {ends[-1]} of {end}")
        starts = np.empty_like(ends)
        starts[0] = begin
        starts[1:] = ends[:-1]
        yield starts, ends
        begin = int(ends[-1])


def _ends(data: BytesLike, begin: int, end: int, count: int) -> Positions:
    """Where each of `count` records in a row ends, the first of which starts at `begin`; all end before `end`.

    Raises `Corrupt` or `Truncated` where a length is not one.
    """
    try:
        position, steps = begin, _STEPS
        ends = [
            position := position + steps[data[position]][data[position + 1]]  # type: ignore[operator]
            for _ in repeat(None, count)
        ]
    except (TypeError, IndexError):
        ends = _careful_ends(data, begin, end, count)
    if ends[-1] > end:
        raise Corrupt(f"its records end at byte {ends[-1]} of {end}")
    return np.frombuffer(struct.pack(f"{count}q", *ends), np.int64)


def _careful_ends(data: BytesLike, begin: int, end: int, count: int) -> list[int]:
    """The same for lengths of any size, checked one by one."""
    reader = Reader(memoryview(data)[:end])
    reader.position = begin
    ends = []
    for _ in repeat(None, count):
        length = reader.varint()
        if length < 0:
            raise Corrupt(f"a record of length {length} before byte {reader.position}")
        reader.advance(length)
        ends.append(reader.position)
    return ends
