"""Rows of many small column batches, gathered by partition until they are worth a record batch.

Pure: columns and a partition per row in, `Gathered` rows of one partition out, in the order they came. Called by
`async_producer`. Knows nothing of brokers and does not encode.

What waits is slices of the sorted columns, not copies; one copy is made when a record batch is cut. A slice keeps
all of its columns alive, so memory is counted by those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.producer.idempotence import TopicPartition
from protocol.records.encode import record_sizes

Sizes = npt.NDArray[np.int64]

# What a record batch has besides its records; part of what batch.size limits.
BATCH_HEADER_BYTES = 61


@dataclass(frozen=True)
class Gathered:
    """Rows for one record batch of one partition. `size_bytes` as encoded, before compression."""

    topic: str
    partition: int
    rows: pa.RecordBatch
    size_bytes: int


@dataclass(eq=False)
class _Columns:
    """Sorted columns that slices point into."""

    size_bytes: int
    slices_left: int


@dataclass(eq=False)
class _Waiting:
    """What one partition has gathered so far."""

    since_s: float
    slices: list[tuple[pa.RecordBatch, Sizes, _Columns]] = field(default_factory=list)
    size_bytes: int = 0


class Accumulator:
    """Gathers rows until a partition has `batch_size_bytes` of them. `measure` gives the bytes of each row, encoded."""

    def __init__(self, batch_size_bytes: int, measure: Callable[[pa.RecordBatch], Sizes] = record_sizes) -> None:
        self._measure = measure
        self._limit_bytes = max(1, batch_size_bytes - BATCH_HEADER_BYTES)
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self.held_bytes = 0
        """Bytes of columns that are kept alive, about."""

    def append(
        self, topic: str, columns: pa.RecordBatch, partitions: npt.NDArray[np.int32], sizes: Sizes, now_s: float
    ) -> list[Gathered]:
        """Takes the rows in; gives those that fill record batches.

        `partitions` and `sizes` (bytes of the record, encoded) have one number per row.
        """
        full: list[Gathered] = []
        columns, sizes, groups = _by_partition(columns, partitions, sizes)
        total_bytes = int(sizes.sum())
        shared = _Columns(total_bytes, len(groups))
        self.held_bytes += total_bytes
        for partition, first, count in groups:
            key = (topic, partition)
            part = sizes[first : first + count]
            size_bytes = int(part.sum())
            waiting = self._waiting.get(key)
            if waiting is not None and not self._goes_with(waiting, columns, size_bytes):
                full += self._cut(key, waiting, now_s, everything=True)
                waiting = None
            if waiting is None:
                waiting = self._waiting[key] = _Waiting(now_s)
            waiting.slices.append((columns.slice(first, count), part, shared))
            waiting.size_bytes += size_bytes
            if waiting.size_bytes >= self._limit_bytes:
                full += self._cut(key, waiting, now_s)
        return full

    def waited_since(self, before_s: float) -> list[Gathered]:
        """What has waited since `before_s` or longer, in record batches that may be smaller than the limit."""
        due = [(key, waiting) for key, waiting in self._waiting.items() if waiting.since_s <= before_s]
        return [rows for key, waiting in due for rows in self._cut(key, waiting, before_s, everything=True)]

    def drain(self) -> list[Gathered]:
        """Everything that waits."""
        return self.waited_since(float("inf"))

    def clear(self) -> None:
        """Forgets everything that waits."""
        self._waiting.clear()
        self.held_bytes = 0

    @property
    def oldest_s(self) -> float | None:
        """Since when the longest waiting row waits."""
        return min((waiting.since_s for waiting in self._waiting.values()), default=None)

    def _goes_with(self, waiting: _Waiting, columns: pa.RecordBatch, size_bytes: int) -> bool:
        """Whether more rows are put together with those that wait.

        Not when that is more than one record batch: two of them then hold more than the limit anyway, and large
        slices are spared the copy into one.
        """
        return waiting.size_bytes + size_bytes <= self._limit_bytes and waiting.slices[0][0].schema == columns.schema

    def _cut(
        self, key: TopicPartition, waiting: _Waiting, now_s: float, *, everything: bool = False
    ) -> Iterator[Gathered]:
        rows, sizes = self._joined(waiting)
        for _, _, shared in waiting.slices:
            shared.slices_left -= 1
            if not shared.slices_left:
                self.held_bytes -= shared.size_bytes
        del self._waiting[key]
        ends = np.cumsum(sizes)
        limit_bytes = self._limit_bytes
        if everything:
            # Two of like size, not a full one and a few rows.
            limit_bytes = min(limit_bytes, _even_share(int(ends[-1]), limit_bytes))
        first, taken_bytes = 0, 0
        while first < len(sizes):
            # At least one row, however large.
            end = max(int(np.searchsorted(ends, taken_bytes + limit_bytes, side="right")), first + 1)
            if end == len(sizes) and not everything and ends[-1] - taken_bytes < self._limit_bytes:
                self._keep(key, rows.slice(first), sizes[first:], now_s)
                return
            size_bytes = int(ends[end - 1]) - taken_bytes
            yield Gathered(key[0], key[1], rows.slice(first, end - first), size_bytes + BATCH_HEADER_BYTES)
            first, taken_bytes = end, taken_bytes + size_bytes

    def _joined(self, waiting: _Waiting) -> tuple[pa.RecordBatch, Sizes]:
        if len(waiting.slices) == 1:
            rows, sizes, _ = waiting.slices[0]
            return rows, sizes
        table = pa.Table.from_batches([rows for rows, _, _ in waiting.slices]).combine_chunks()
        rows = table.to_batches()[0]
        # Together they are a little larger: offsets and timestamps count from the first record of the batch.
        return rows, self._measure(rows)

    def _keep(self, key: TopicPartition, rows: pa.RecordBatch, sizes: Sizes, now_s: float) -> None:
        """The rest after full record batches were cut waits on."""
        size_bytes = int(sizes.sum())
        self._waiting[key] = _Waiting(now_s, [(rows, sizes, _Columns(size_bytes, 1))], size_bytes)
        self.held_bytes += size_bytes


def _by_partition(
    columns: pa.RecordBatch, partitions: npt.NDArray[np.int32], sizes: Sizes
) -> tuple[pa.RecordBatch, Sizes, list[tuple[int, int, int]]]:
    """The rows sorted by partition, in their order within each, and (partition, first row, rows) of each group."""
    if not len(partitions):
        return columns, sizes, []
    low, high = int(partitions.min()), int(partitions.max())
    if low == high:
        return columns, sizes, [(low, 0, len(partitions))]
    # NumPy sorts 16-bit integers by radix, an order of magnitude faster than others.
    narrow = partitions.astype(np.int16) if high < 2**15 else partitions
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[firsts, len(ordered)])
    groups = list(zip(ordered[firsts].tolist(), firsts.tolist(), counts.tolist(), strict=True))
    return columns.take(pa.array(order)), sizes[order], groups


def _even_share(total_bytes: int, limit_bytes: int) -> int:
    """The size of each of as few parts as keep to the limit, with a little room for rows that do not divide evenly."""
    parts = -(-total_bytes // limit_bytes)
    return limit_bytes if parts == 1 else total_bytes // parts + limit_bytes // 50
