"""Decompress record batches, and place some thousand records side by side in one byte array.

Small batches are combined, since a NumPy call costs the same for one record as for a hundred. Handles batches, not
records. Used by `decode`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from protocol.errors import Corrupt
from protocol.records.batch_header import COMPRESSION_MASK, HEADER_BYTES, LOG_OVERHEAD_BYTES, SMALLEST_RECORD_BYTES
from protocol.records.compression import Codec, decompress
from protocol.records.memory_records import MemoryRecords
from protocol.records.varints import Bytes, Positions

ROWS_AT_ONCE = 32_000
_BYTES_AT_ONCE = 4 << 20
_MAX_ROWS = ROWS_AT_ONCE * 3 // 2
_SCRATCH_BYTES = 16 << 20
_MAX_IDLE = 4


class ScratchPool:
    """Buffers for decompressed records, reused between replies: touched memory is several times faster than new pages.

    Thread-safe: `pop` and `append` of a list are atomic.
    """

    def __init__(self) -> None:
        self._idle: list[Bytes] = []

    def take(self) -> Bytes:
        """Return a buffer of 16 MiB, for exclusive use until `give_back`."""
        return self._idle.pop() if self._idle else np.empty(_SCRATCH_BYTES, np.uint8)

    def give_back(self, scratch: Bytes) -> None:
        """Keep a buffer for the next `take`; at most 4 are kept."""
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(scratch)

    def reset(self) -> None:
        """Free the idle buffers."""
        self._idle.clear()


SCRATCH = ScratchPool()


@dataclass(frozen=True)
class DecompressedBatches:
    """Records of `batches` (rows of `MemoryRecords.headers`): `counts[i]` of them are in `data[begins[i]:ends[i]]`."""

    data: Bytes
    batches: Positions
    begins: Positions
    ends: Positions
    counts: Positions

    def only(self, index: int) -> DecompressedBatches:
        """Return the batch at `index` alone."""
        return self._some(slice(index, index + 1))

    def first(self, count: int) -> DecompressedBatches:
        """Return the first `count` batches."""
        return self._some(slice(count))

    def _some(self, some: slice) -> DecompressedBatches:
        return DecompressedBatches(self.data, self.batches[some], self.begins[some], self.ends[some], self.counts[some])


def decompressed_batches(
    records: MemoryRecords, batches: Positions, max_decompressed_bytes: int, where: str
) -> Iterator[DecompressedBatches]:
    """Yield the given batches in order, some at a time; the bytes are valid until the next step of the iterator.

    Batches before an invalid one are yielded first.

    Raises `Corrupt`: the codec or record count of a batch is wrong. `DecompressedTooLarge`: a batch decompresses to
    more than `max_decompressed_bytes`.
    """
    compressed = (records.headers["attributes"][batches] & COMPRESSION_MASK) != Codec.NONE
    edges = [0, *(np.flatnonzero(np.diff(compressed)) + 1).tolist(), len(batches)]
    for first, until in pairwise(edges):
        if first < until and compressed[first]:
            yield from _decompressed(records, batches[first:until], max_decompressed_bytes, where)
        elif first < until:
            yield from _uncompressed(records, batches[first:until], where)


def _uncompressed(records: MemoryRecords, batches: Positions, where: str) -> Iterator[DecompressedBatches]:
    """Yield uncompressed batches, whose bytes stay in the Fetch response."""
    data = np.frombuffer(records.buffer, np.uint8)
    headers = records.headers[batches]
    begins = headers["position"] + HEADER_BYTES
    ends = headers["position"] + LOG_OVERHEAD_BYTES + headers["length"]
    counts = headers["count"].astype(np.int64)
    rows = np.cumsum(counts)
    first = 0
    while first < len(batches):
        # Includes the batch that reaches the limit, unless it exceeds the limit by far.
        rows_before = rows[first] - counts[first]
        full = min(
            np.searchsorted(rows, rows_before + ROWS_AT_ONCE), np.searchsorted(ends, begins[first] + _BYTES_AT_ONCE)
        )
        fits = np.searchsorted(rows, rows_before + _MAX_ROWS, side="right")
        until = max(int(min(full + 1, fits)), first + 1)
        some = slice(first, until)
        stored = DecompressedBatches(data, batches[some], begins[some], ends[some], counts[some])
        too_many = stored.counts * SMALLEST_RECORD_BYTES > stored.ends - stored.begins
        if too_many.any():
            index = int(too_many.argmax())
            if index:
                yield stored.first(index)
            size_bytes = int(stored.ends[index] - stored.begins[index])
            error = _too_many_records(int(stored.counts[index]), size_bytes)
            raise records.with_batch_offset(error, int(stored.batches[index]), where)
        yield stored
        first = until


def _decompressed(
    records: MemoryRecords, batches: Positions, max_decompressed_bytes: int, where: str
) -> Iterator[DecompressedBatches]:
    """Yield compressed batches, side by side in scratch memory; a batch that does not fit gets its own memory."""
    scratch = SCRATCH.take()
    headers = records.headers[batches]
    names = ("attributes", "position", "length", "count")
    fields = zip(*(headers[name].tolist() for name in names), strict=True)
    counts = headers["count"].astype(np.int64)
    stops = np.zeros(len(batches), np.int64)
    first = rows = used = 0

    def pending_batches(until: int) -> DecompressedBatches:
        some = slice(first, until)
        begins = np.concatenate([[0], stops[first : until - 1]])
        return DecompressedBatches(scratch, batches[some], begins, stops[some], counts[some])

    try:
        for index, (attributes, start, length, count) in enumerate(fields):
            if rows and (rows >= ROWS_AT_ONCE or used >= _BYTES_AT_ONCE or rows + count > _MAX_ROWS):
                yield pending_batches(index)
                first, rows, used = index, 0, 0
            end = start + LOG_OVERHEAD_BYTES + length
            packed = records.buffer[start + HEADER_BYTES : end]
            try:
                unpacked = decompress(attributes & COMPRESSION_MASK, packed, scratch[used:], max_decompressed_bytes)
                if count * SMALLEST_RECORD_BYTES > len(unpacked):
                    raise _too_many_records(count, len(unpacked))
            except Corrupt as error:
                if first < index:
                    yield pending_batches(index)
                raise records.with_batch_offset(error, int(batches[index]), where) from error
            if np.may_share_memory(unpacked, scratch):
                rows, used = rows + count, used + len(unpacked)
                stops[index] = used
                continue
            if first < index:
                yield pending_batches(index)
            single = slice(index, index + 1)
            yield DecompressedBatches(
                unpacked, batches[single], np.array([0]), np.array([len(unpacked)]), counts[single]
            )
            first, rows, used = index + 1, 0, 0
        if first < len(batches):
            yield pending_batches(len(batches))
    finally:
        SCRATCH.give_back(scratch)


def _too_many_records(count: int, size_bytes: int) -> Corrupt:
    return Corrupt(f"{count} records do not fit in {size_bytes} bytes")
