"""The writing side of varints, a column at a time, and how columns of pieces become one run of bytes.

A varint is held as a 64-bit word (its bytes, lowest first) and a size; several short ones next to each other share a
word, so that the fixed part of a record is mostly written by one scattered store. Used by `encode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[Any]

_WORD_BYTES = 8
_CONTINUED = np.uint64(0x8080_8080_8080_8080)


@dataclass
class Piece:
    """Up to 8 bytes per row: the lowest `sizes` bytes of `words`. `most` is the largest size."""

    words: Words
    sizes: Integers
    most: int

    def then(self, other: Piece) -> Piece:
        """Both after one another; together they must fit a word."""
        words = self.words | (other.words << (self.sizes.astype(np.uint64) * np.uint64(8)))
        return Piece(words, self.sizes + other.sizes, self.most + other.most)


def zero_bytes(rows: int) -> Piece:
    """One zero byte per row."""
    return Piece(np.zeros(rows, np.uint64), np.ones(rows, np.int64), 1)


def zigzag(values: Integers) -> Words:
    """Signed to unsigned, small for small magnitudes of either sign."""
    signed = values.astype(np.int64, copy=False)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def varint_sizes(values: Integers) -> npt.NDArray[np.int64]:
    """How many bytes each number has as a zigzag varint."""
    return _sizes(zigzag(values))


def _sizes(raw: Words) -> npt.NDArray[np.int64]:
    sizes = np.ones(len(raw), np.int64)
    largest = int(raw.max()) if len(raw) else 0
    for shift in range(7, 64, 7):
        if not largest >> shift:
            break
        sizes += (raw >> np.uint64(shift)) != 0
    return sizes


def varints(values: Integers) -> list[Piece]:
    """Each row's zigzag varint: one piece, or two where some have 9 or 10 bytes."""
    raw = zigzag(values)
    sizes = _sizes(raw)
    most = int(sizes.max()) if len(sizes) else 1
    pieces = []
    for first in range(0, most, _WORD_BYTES):
        words = np.zeros(len(raw), np.uint64)
        here = min(_WORD_BYTES, most - first)
        for index in range(here):
            words |= ((raw >> np.uint64(7 * (first + index))) & np.uint64(0x7F)) << np.uint64(8 * index)
        if most > 1:
            continued = np.clip(sizes - 1 - first, 0, here).astype(np.uint64)
            words |= _CONTINUED & _low_bytes(continued)
        pieces.append(Piece(words, np.clip(sizes - first, 0, here), here))
    return pieces


def _low_bytes(count: Words) -> Words:
    """All bits of the lowest `count` bytes; NumPy shifts out to zero at 64."""
    bits: Words = (np.uint64(1) << (count * np.uint64(8))) - np.uint64(1)
    return bits


class Layout:
    """Columns of pieces and payloads, in the order in which each row's bytes stand."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._columns: list[pa.Array] = []
        self._pending: list[Piece] = []

    def pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._pending and self._pending[-1].most + piece.most <= _WORD_BYTES:
                self._pending[-1] = self._pending[-1].then(piece)
            else:
                self._pending.append(piece)

    def payload(self, column: pa.Array, largest: int) -> None:
        """A binary column, whose nulls take no bytes; `largest` is its longest value."""
        if largest > 0:
            self._flush()
            self._columns.append(column)

    def _flush(self) -> None:
        if self._pending:
            self._columns.append(_column(self._pending, self._rows))
            self._pending = []

    def data(self, end: bytes) -> pa.Buffer:
        """All rows' bytes, and at last `end`."""
        self._flush()
        kinds = len(self._columns)
        everything = pa.concat_arrays([*self._columns, pa.array([end], pa.binary())])
        order = np.empty(kinds * self._rows + 1, np.int32)
        order[:-1].reshape(self._rows, kinds)[:] = np.arange(kinds * self._rows).reshape(kinds, self._rows).T
        order[-1] = len(order) - 1
        laid = everything.take(pa.array(order))
        return laid.buffers()[2].slice(0, int(np.frombuffer(laid.buffers()[1], np.int32, len(order) + 1)[-1]))


def _column(pieces: list[Piece], rows: int) -> pa.Array:
    """The pieces of each row after one another, as a binary column."""
    words = np.stack([piece.words for piece in pieces], axis=1).ravel()
    sizes = np.stack([piece.sizes for piece in pieces], axis=1).ravel()
    ends = np.cumsum(sizes)
    data = np.empty(int(ends[-1]) + _WORD_BYTES, np.uint8)
    # Words overlap what follows them, and are stored in this order: each next one overwrites the excess of the last.
    np.ndarray(len(data) - _WORD_BYTES + 1, "<u8", data, strides=(1,))[ends - sizes] = words
    offsets = np.zeros(rows + 1, np.int32)
    offsets[1:] = ends[len(pieces) - 1 :: len(pieces)]
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
