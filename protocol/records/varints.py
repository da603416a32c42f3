"""Zigzag varints over a whole column of positions at once.

Knows a byte array and positions in it. Nearly all varints in records are one or two bytes long, so those lengths cost
a handful of NumPy calls; longer ones are decoded for the few rows that have them.
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
    if not len(first) or first.max() < 0x80:
        return (first >> _ONE).view(np.int8) ^ -(first & _ONE).view(np.int8), at + 1
    long = first >= 0x80
    second = data.take(at + 1, mode="clip")
    # first's continuation bit is taken off again where it is set
    raw = first + (second.astype(np.uint16) * 128 - 128) * long
    values = (raw >> 1).view(np.int16) ^ -(raw & 1).view(np.int16)
    after = at + long
    after += 1
    longer = long & (second >= 0x80)
    if longer.any():
        rows = np.flatnonzero(longer)
        values = values.astype(np.int64)
        values[rows], after[rows] = _read_long(data, at[rows], bits)
    return values, after


def _read_long(data: Bytes, at: Positions, bits: int) -> tuple[Integers, Positions]:
    """The same for varints of any length, one NumPy round per byte of the longest."""
    raw = np.zeros(len(at), np.uint64)
    after = at.copy()
    pending = np.arange(len(at))
    for index in range((bits + 6) // 7):
        byte = data.take(at[pending] + index, mode="clip")
        payload = (byte & _LOW7).astype(np.uint64)
        shift = 7 * index
        if shift + 7 > bits and (payload >> np.uint64(bits - shift)).any():
            break
        raw[pending] |= payload << np.uint64(shift)
        after[pending] += 1
        pending = pending[byte >= 0x80]
        if not len(pending):
            return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), after
    raise Corrupt(f"a varint has more than {bits} bits")
