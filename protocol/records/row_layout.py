"""Write columns as rows of bytes, a column at a time: varints as words, payloads as Arrow columns. Used by `encode`.

A varint is a 64-bit word (its bytes, lowest first) and a size. Adjacent short varints share a word, so that mostly one
scattered store writes the fixed part of a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.records.arrow_numpy import binaries, to_arrow

Words = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.uint8]
Integers = npt.NDArray[Any]

_WORD_BYTES = 8


@dataclass
class WordColumn:
    """Up to 8 bytes per row: the lowest `sizes` bytes of `words`. `most` is the largest size."""

    words: Words
    sizes: Sizes
    most: int

    def then(self, following: WordColumn) -> WordColumn:
        """Return both columns concatenated row by row; together they must fit a word."""
        words = following.words << (self.sizes << np.uint8(3))
        words |= self.words
        return WordColumn(words, self.sizes + following.sizes, self.most + following.most)


def zero_bytes(rows: int, except_at: Integers | None = None) -> WordColumn:
    """Return a column of one zero byte per row, and no byte in the rows `except_at`."""
    sizes = np.ones(rows, np.uint8)
    if except_at is not None:
        sizes[except_at] = 0
    return WordColumn(np.zeros(rows, np.uint64), sizes, 1)


def _zigzag(values: Integers) -> Words:
    """Map signed to unsigned numbers (zigzag): small magnitudes of either sign stay small."""
    signed = values.astype(np.int64, copy=False)
    raw = signed >> 63
    raw ^= signed << 1
    return raw.view(np.uint64)


def varint_sizes(values: Integers) -> npt.NDArray[np.int64]:
    """Return the size of each number as a zigzag varint, in bytes."""
    raw = _zigzag(values)
    sizes = np.ones(len(raw), np.int64)
    largest = int(raw.max()) if len(raw) else 0
    for shift in range(7, largest.bit_length(), 7):
        sizes += raw >= np.uint64(1 << shift)
    return sizes


def varint_words(values: Integers) -> list[WordColumn]:
    """Return each row's zigzag varint: one column of words, or two if some have 9 or 10 bytes."""
    zigzag = _zigzag(values)
    largest = int(zigzag.max()) if len(zigzag) else 0
    columns = [WordColumn(zigzag & np.uint64(0x7F), np.ones(len(zigzag), np.uint8), 1)]
    # Reused for all bits to set: touching new memory takes longer than the operations.
    bits = np.empty_like(zigzag)
    for _ in range(7, largest.bit_length(), 7):
        zigzag >>= np.uint64(7)
        last = columns[-1]
        # The previous byte is the last of its word if this byte opens a new word.
        np.minimum(zigzag, np.uint64(1), out=bits)
        bits <<= np.uint64(8 * last.most - 1)
        last.words |= bits
        if last.most == _WORD_BYTES:
            last = WordColumn(np.zeros(len(zigzag), np.uint64), np.zeros(len(zigzag), np.uint8), 0)
            columns.append(last)
        np.bitwise_and(zigzag, np.uint64(0x7F), out=bits)
        bits <<= np.uint64(8 * last.most)
        last.words |= bits
        last.sizes += zigzag != 0
        last.most += 1
    return columns


class RowLayout:
    """Columns of words and payloads, in the byte order of a row.

    `rows`: number of rows.
    `order`: element of the payload columns for each row; None for all as they are. Columns of words have one element
    per row in any case.
    """

    def __init__(self, rows: int, order: Integers | None = None) -> None:
        self._rows = rows
        self._as_they_are = np.arange(rows, dtype=np.int32)
        self._payload_order = self._as_they_are if order is None else order
        self._columns: list[pa.Array] = []
        self._orders: list[Integers] = []
        self._pending: list[WordColumn] = []

    def words(self, columns: list[WordColumn]) -> None:
        """Append columns of words to each row."""
        for column in columns:
            if self._pending and self._pending[-1].most + column.most <= _WORD_BYTES:
                self._pending[-1] = self._pending[-1].then(column)
            else:
                self._pending.append(column)

    def payload(self, column: pa.Array | None, largest: int) -> None:
        """Append a binary column, whose nulls take no bytes; `largest` is the length of its longest value."""
        if largest > 0:
            self._flush()
            self._columns.append(column)
            self._orders.append(self._payload_order)

    def _flush(self) -> None:
        if self._pending:
            self._columns.append(_joined_words(self._pending, self._rows))
            self._orders.append(self._as_they_are)
            self._pending = []

    def column(self, counts: Integers | None = None) -> pa.Array:
        """Return a binary column of each row's bytes; with `counts`, of the bytes of `counts[i]` rows at a time."""
        laid, ends = self._take(self._order(), b"")
        bounds = np.append(np.int32(0), ends[len(self._columns) - 1 :: len(self._columns)])
        if counts is not None:
            bounds = bounds[np.append(0, np.cumsum(counts))]
        return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), laid])

    def batches(self, firsts: Integers, room_bytes: int, end: bytes) -> tuple[npt.NDArray[np.uint8], list[int]]:
        """Return the rows in batches that begin at the rows `firsts`.

        `firsts`: first row of each batch, the first of them 0.
        `room_bytes`: size of the writable room before the rows of each batch.
        `end`: bytes after the rows of each batch.
        Returns the bytes of all batches; the start of each batch and, last, the end of the last one.
        """
        room = bytes(room_bytes)
        order = self._order()
        kinds = len(self._columns)
        # Three elements follow those of the columns: room of the first batch, end and room between two, end.
        elements = sum(map(len, self._columns))
        first, parting, last = range(elements, elements + 3)
        rooms = np.full(len(firsts) + 1, parting, np.int32)
        rooms[0], rooms[-1] = first, last
        order = np.insert(order, np.append(firsts * kinds, len(order)), rooms)
        laid, ends = self._take(order, room, end + room, end)
        starts = ends[firsts * kinds + np.arange(len(firsts))] - room_bytes
        return np.frombuffer(laid, np.uint8), [*starts.tolist(), int(ends[-1])]

    def _order(self) -> npt.NDArray[np.int32]:
        """Return the element numbers of the concatenated columns, row by row."""
        self._flush()
        by_row = np.empty((self._rows, len(self._columns)), np.int32)
        before = 0
        for nth, (column, order) in enumerate(zip(self._columns, self._orders, strict=True)):
            np.add(order, before, out=by_row[:, nth], casting="unsafe")
            before += len(column)
        return by_row.ravel()

    def _take(self, order: npt.NDArray[np.int32], *more: bytes) -> tuple[pa.Buffer, npt.NDArray[np.int32]]:
        """Take the elements of the columns and `more` in this order; return their bytes and the end of each."""
        everything = pa.concat_arrays([*self._columns, binaries(more)])
        laid = everything.take(to_arrow(order))
        return laid.buffers()[2], np.frombuffer(laid.buffers()[1], np.int32, len(order) + 1)[1:]


def _joined_words(columns: list[WordColumn], rows: int) -> pa.Array:
    """Concatenate the words of each row into a binary column."""
    kinds = len(columns)
    words, sizes = columns[0].words, columns[0].sizes
    if kinds > 1:
        words = np.stack([column.words for column in columns], axis=1).ravel()
        sizes = np.stack([column.sizes for column in columns], axis=1).ravel()
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=bounds[1:])
    data = np.empty(int(bounds[-1]) + _WORD_BYTES, np.uint8)
    # Words overlap the bytes that follow and are stored in order: each word overwrites the excess of the one before.
    np.ndarray((len(data) - _WORD_BYTES + 1,), "<u8", data, strides=(1,))[bounds[:-1]] = words
    offsets = bounds[::kinds].astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
