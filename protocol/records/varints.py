"""Zigzag varints over a whole column of positions at once.

Knows a byte array and positions in it. Nearly all varints in records are one or two bytes long, so those lengths cost
a handful of NumPy calls; longer ones are finished for the few rows that have them. Arrays are worked on in the
smallest type that holds them: that, and not the number of calls, is what a column of some thousand rows costs.
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
    """The signed numbers whose varints start at `at`, and where each one's bytes end.

    The values have the smallest integer type that holds what was found (int8, int16 or int64). Positions past the
    end of `data` read its last byte: the caller finds out by the end positions, which never lie. Raises `Corrupt`
    for a varint of more than `bits` bits.
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
    """Varints whose first 14 bits are in `raw` and that go on at `at`: one NumPy round per byte of the longest."""
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
