"""Decode the zigzag varints at a whole column of positions at once.

Nearly all varints in records have one or two bytes, so decoding them takes only a few NumPy calls. Longer ones are
completed for the few rows that have them. Arrays have the smallest sufficient type: the size of the type, not the
number of calls, determines the cost for a column of some thousand rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Integers = npt.NDArray[Any]

_ONE = np.uint8(1)
_LOW7 = np.uint8(0x7F)


def read_varints(data: Bytes, at: Positions, bits: int = 32) -> tuple[Integers, Positions]:
    """Decode the varints that start at `at`.

    `data`: bytes of one or more batches.
    `at`: start of each varint. Positions past the end of `data` read its last byte: the caller must check the end
    positions, which are always correct.
    `bits`: maximum size of a number: 32 or 64.
    Returns the signed numbers, of the smallest integer type that holds them (int8, int16 or int64), and the end of each
    varint.
    Raises `Corrupt`: a varint has more than `bits` bits.
    """
    first = data.take(at, mode="clip")
    after = at + 1
    if not len(first) or first.max() < 0x80:
        return (first >> _ONE).view(np.int8) ^ -(first & _ONE).view(np.int8), after
    second = data.take(after, mode="clip")
    raw = second.astype(np.uint16)
    raw <<= 7
    raw -= 0x80  # first's continuation bit, which is added next
    longer = second >= 0x80
    if first.min() >= 0x80:
        after += 1
    else:
        long = first >= 0x80
        raw *= long
        after += long
        longer &= long
    raw += first
    values = (raw >> 1).view(np.int16)
    raw &= 1
    values ^= -raw.view(np.int16)
    if longer.any():
        rows = np.flatnonzero(longer)
        low = (first[rows] & _LOW7).astype(np.uint64) | (second[rows] & _LOW7).astype(np.uint64) << np.uint64(7)
        values = values.astype(np.int64)
        values[rows], after[rows] = _finish_long(data, low, after[rows], bits)
    return values, after


def _finish_long(data: Bytes, raw: npt.NDArray[np.uint64], at: Positions, bits: int) -> tuple[Integers, Positions]:
    """Complete varints whose first 14 bits are in `raw`, from `at`: one NumPy round per byte of the longest."""
    pending = np.arange(len(at))
    for shift in range(14, bits, 7):
        byte = data.take(at[pending], mode="clip")
        payload = (byte & _LOW7).astype(np.uint64)
        if shift + 7 > bits and (payload >> np.uint64(bits - shift)).any():
            break
        payload <<= np.uint64(shift)
        raw[pending] |= payload
        at[pending] += 1
        pending = pending[byte >= 0x80]
        if not len(pending):
            return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), at
    raise Corrupt(f"a varint has more than {bits} bits")
