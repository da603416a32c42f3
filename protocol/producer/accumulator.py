"""Collect rows by partition until they fill a record batch. Sans-IO, without encoding.

Input: columns and a partition per row. Output: `ReadyBatches`, with the rows of a partition in order.
Called by `batch_assembler`.

Rows of one call that fill a record batch are output at once. Record batches that become complete in the same call are
output together, because encoding many costs hardly more than encoding one; about 3 MiB, since no array of bytes may
exceed 2 GiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.listing import listed
from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from protocol.producer.results import SentColumns, SentRows
from protocol.records.arrow_numpy import to_arrow
from protocol.records.batch_header import HEADER_BYTES
from protocol.records.encode import DeltaBounds
from protocol.settings.property_kinds import MAX_INT32

T = TypeVar("T")

Sizes = npt.NDArray[np.int64]

# Shorter runs of rows are copied together, which is faster than slicing them.
_MIN_RUN_ROWS = 16
# Size of rows output together: enough for NumPy, and small enough for the processor's cache during encoding.
_OUTPUT_BYTES = 3 << 20
# `_reorder_during_encoding`: minimum mean size of the rows of a call, and maximum size of all of them.
_LONG_ROW_BYTES, _WHOLE_BYTES = 200, 16 << 20


_Groups = tuple[npt.NDArray[np.int64] | None, list[tuple[int, int, int]]]
"""The order of the rows (None: unchanged), and (partition, first row in that order, row count) of each group."""


@dataclass(frozen=True)
class BatchSlice:
    """One record batch of a partition: the next `count` rows of its `ReadyBatches`.

    `size_bytes` is the encoded, uncompressed size; `since_s` the time at which the first row was appended, or infinity
    if that call also outputs it.
    """

    topic: str
    partition: int
    count: int
    size_bytes: int
    sent: tuple[SentRows, ...] = field(default=(), compare=False)
    since_s: float = field(default=math.inf, compare=False)


@dataclass(frozen=True)
class ReadyBatches:
    """Rows of several record batches, one after the other.

    `rows` returns the rows. It copies them when called, so that the rows of a large `append` are never copied all at
    once. `order` has row numbers in `rows`, in the order of the record batches; None: all of `rows` in their order.
    `held_bytes`: their bytes in `Accumulator.waiting_bytes` before; 0 for rows that the same call has appended.
    """

    rows: Callable[[], pa.RecordBatch]
    batch_slices: list[BatchSlice]
    order: npt.NDArray[np.int64] | None = None
    held_bytes: int = 0


@dataclass(eq=False)
class _PartitionRows:
    """Rows of one partition that do not fill a record batch yet.

    `size_bytes` is the sum of their sizes, which include at least `delta_bytes` for the deltas of each. The deltas of
    the rows of several calls may need more: `growth_bytes` in total.
    """

    since_s: float
    deltas: DeltaBounds
    delta_bytes: int
    slices: list[pa.RecordBatch] = field(default_factory=list)
    sent: list[SentRows] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    growth_bytes: int = 0

    def growth_with(self, deltas: DeltaBounds, delta_bytes: int) -> int:
        """Return `growth_bytes` together with further rows, whose sizes include `delta_bytes` each."""
        joined = self.deltas.with_rows(deltas)
        more = joined.size_bytes - min(self.delta_bytes, delta_bytes)
        return joined.rows * (more + 1) if more > 0 else 0  # 1: the record's length may need another byte

    @property
    def encoded_bytes(self) -> int:
        """Encoded, uncompressed size, without the header."""
        return self.size_bytes + self.growth_bytes


class Accumulator:
    """Collects rows until a partition has `batch_size_bytes` or `batch_rows`. Not thread-safe."""

    def __init__(self, batch_size_bytes: int, batch_rows: int = MAX_INT32) -> None:
        self._limit_bytes = max(1, batch_size_bytes - HEADER_BYTES)
        self._limit_rows = batch_rows
        self._waiting: dict[TopicPartition, _PartitionRows] = {}
        self.waiting_bytes = 0
        """Approximate bytes of the rows that wait."""

    def append(
        self,
        topic: str,
        columns: pa.RecordBatch,
        partitions: npt.NDArray[np.int32],
        sizes: Sizes,
        now_s: float,
        call: SentColumns | None = None,
    ) -> list[ReadyBatches]:
        """Add rows; return those that fill record batches.

        `partitions` and `sizes` have one number per row; sizes are encoded bytes. `call` receives the results of these
        rows.
        """
        if not columns.num_rows:
            return []
        order, groups = _group_in_order(partitions, sizes, self._limit_bytes, self._limit_rows) or _group_by_partition(
            partitions
        )
        sizes = sizes if order is None else sizes[order]
        deltas_of_call = DeltaBounds.of(columns)
        delta_bytes = deltas_of_call.size_bytes
        batch_slices: list[tuple[int, BatchSlice]] = []
        completed: list[tuple[TopicPartition, _PartitionRows]] = []
        rows_of_call: dict[int, int] = {}
        for partition, first, count in groups:
            key = (topic, partition)
            group_sizes = sizes[first : first + count]
            size_bytes = int(group_sizes.sum())
            deltas = deltas_of_call._replace(rows=count)
            first_of_call = rows_of_call.get(partition, 0)
            rows_of_call[partition] = first_of_call + count
            waiting = self._waiting.get(key)
            growth_bytes = 0 if waiting is None else waiting.growth_with(deltas, delta_bytes)
            if waiting is not None and not self._fits_into(waiting, columns, size_bytes + growth_bytes, count):
                completed.append((key, self._waiting.pop(key)))
                waiting = None
            if self._is_full(size_bytes, count):
                batch_slices += self._slice_rows(key, first, group_sizes, call, first_of_call)
                continue
            if waiting is None:
                waiting = self._waiting[key] = _PartitionRows(now_s, deltas, delta_bytes)
            else:
                waiting.growth_bytes = growth_bytes
                waiting.delta_bytes = min(waiting.delta_bytes, delta_bytes)
                waiting.deltas = waiting.deltas.with_rows(deltas)
            waiting.slices.append(_take_rows(columns, order, first, first + count))
            if call is not None:
                waiting.sent.append(SentRows(call, first_of_call, count))
            waiting.count += count
            waiting.size_bytes += size_bytes
            self.waiting_bytes += size_bytes
            if self._is_full(waiting.encoded_bytes, waiting.count):
                completed.append((key, self._waiting.pop(key)))
        # First the rows of earlier calls, to keep the order.
        ready = self._output(completed)
        if order is not None and _reorder_during_encoding(batch_slices, sizes):
            row_numbers = np.concatenate([order[first : first + batch.count] for first, batch in batch_slices])
            return [*ready, ReadyBatches(lambda: columns, [batch for _, batch in batch_slices], row_numbers)]
        for run in _joined(batch_slices, _are_adjacent, lambda item: item[1].size_bytes):
            first, last = run[0][0], run[-1][0] + run[-1][1].count
            ready.append(ReadyBatches(partial(_take_rows, columns, order, first, last), [batch for _, batch in run]))
        return ready

    def take_lingered(
        self, before_s: float, stays: Callable[[TopicPartition], bool] = lambda key: False
    ) -> list[ReadyBatches]:
        """Output the record batches whose first row was added at `before_s` or earlier, full or not.

        The rows of partitions for which `stays` is true stay, until they fill a record batch.
        """
        due = [
            (key, waiting) for key, waiting in self._waiting.items() if waiting.since_s <= before_s and not stays(key)
        ]
        for key, _ in due:
            del self._waiting[key]
        return self._output(due)

    def drain(self) -> list[ReadyBatches]:
        """Output everything."""
        return self.take_lingered(math.inf)

    def oldest_s(self, after_s: float = -math.inf) -> float | None:
        """Return the start of the longest wait that began after `after_s`; None if there is none."""
        return min((rows.since_s for rows in self._waiting.values() if rows.since_s > after_s), default=None)

    def _is_full(self, size_bytes: int, count: int) -> bool:
        return size_bytes >= self._limit_bytes or count >= self._limit_rows

    def _fits_into(self, waiting: _PartitionRows, columns: pa.RecordBatch, size_bytes: int, count: int) -> bool:
        """Return True if more rows fit into the waiting batch."""
        fits = waiting.size_bytes + size_bytes <= self._limit_bytes and waiting.count + count <= self._limit_rows
        return fits and waiting.slices[0].schema == columns.schema

    def _slice_rows(
        self, key: TopicPartition, first: int, sizes: Sizes, call: SentColumns | None, first_of_call: int
    ) -> Iterator[tuple[int, BatchSlice]]:
        """Split the rows of one partition into record batches; yield the first row of each with it."""
        ends = np.cumsum(sizes)
        begin, taken_bytes = 0, 0
        while begin < len(sizes):
            # Equal parts instead of full ones and a small rest; at least one row, however large.
            left_bytes = int(ends[-1]) - taken_bytes
            share_bytes = left_bytes // -(-left_bytes // self._limit_bytes)
            share_end = int(np.searchsorted(ends, taken_bytes + share_bytes)) + 1
            limit_end = int(np.searchsorted(ends, taken_bytes + self._limit_bytes, side="right"))
            end = max(min(share_end, limit_end, begin + self._limit_rows), begin + 1)
            size_bytes = int(ends[end - 1]) - taken_bytes
            sent = () if call is None else (SentRows(call, first_of_call + begin, end - begin),)
            yield first + begin, BatchSlice(*key, end - begin, size_bytes + HEADER_BYTES, sent)
            begin, taken_bytes = end, taken_bytes + size_bytes

    def _output(self, completed: list[tuple[TopicPartition, _PartitionRows]]) -> list[ReadyBatches]:
        """Output one record batch per item; adjacent ones with the same schema together."""
        ready = []
        for run in _joined(completed, _have_same_schema, lambda item: item[1].size_bytes):
            batch_slices = [
                BatchSlice(*key, rows.count, rows.encoded_bytes + HEADER_BYTES, tuple(rows.sent), rows.since_s)
                for key, rows in run
            ]
            held_bytes = sum(rows.size_bytes for _, rows in run)
            self.waiting_bytes -= held_bytes
            slices = [rows for _, waiting in run for rows in waiting.slices]
            ready.append(ReadyBatches(partial(_concatenate, slices), batch_slices, held_bytes=held_bytes))
        return ready


def _group_in_order(
    partitions: npt.NDArray[np.int32], sizes: Sizes, limit_bytes: int, limit_rows: int
) -> _Groups | None:
    """Group adjacent rows of the same partition, without reordering, which avoids a copy.

    Suits rows without a key, which the partitioner assigns in long runs. A partition may have several groups. Returns
    None if the runs are so short that a copy is cheaper, or if a run fills a record batch: it would be output at once,
    not joined with the partition's later runs.
    """
    firsts = np.flatnonzero(np.r_[True, partitions[1:] != partitions[:-1]])
    if len(firsts) * _MIN_RUN_ROWS > len(partitions):
        return None
    counts = np.diff(np.r_[firsts, len(partitions)])
    largest = int(np.add.reduceat(sizes, firsts).max())
    if len(firsts) > 1 and (largest >= limit_bytes or int(counts.max()) >= limit_rows):
        return None
    return None, list(zip(partitions[firsts].tolist(), firsts.tolist(), counts.tolist(), strict=True))


def _group_by_partition(partitions: npt.NDArray[np.int32]) -> _Groups:
    """Sort rows by partition, stable within each; return one group per partition."""
    low, high = int(partitions.min()), int(partitions.max())
    if low == high:
        return None, [(low, 0, len(partitions))]
    # NumPy sorts 16-bit integers by radix, an order of magnitude faster than others.
    narrow = partitions.astype(np.int16) if high < 2**15 else partitions
    order = np.argsort(narrow, kind="stable")
    ordered = narrow[order]
    firsts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[firsts, len(ordered)])
    return order, list(zip(ordered[firsts].tolist(), firsts.tolist(), counts.tolist(), strict=True))


def _take_rows(columns: pa.RecordBatch, order: npt.NDArray[np.int64] | None, first: int, end: int) -> pa.RecordBatch:
    return columns.slice(first, end - first) if order is None else columns.take(to_arrow(order[first:end]))


def _concatenate(slices: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return slices[0] if len(slices) == 1 else pa.Table.from_batches(slices).combine_chunks().to_batches()[0]


def _reorder_during_encoding(batch_slices: Sequence[tuple[int, BatchSlice]], sizes: Sizes) -> bool:
    """Return True to reorder the rows during encoding, which avoids a copy.

    Reordering handles all rows of the call at once, so complete batches must be most of them.
    """
    sliced_bytes, all_bytes = sum(batch.size_bytes for _, batch in batch_slices), int(sizes.sum())
    return _LONG_ROW_BYTES * len(sizes) <= all_bytes <= min(2 * sliced_bytes, _WHOLE_BYTES)


def _joined(
    items: Iterable[T], belong_together: Callable[[T, T], bool], size_bytes: Callable[[T], int]
) -> Iterator[list[T]]:
    """Join neighbours that belong together into runs of at most `_OUTPUT_BYTES`, or of one larger item."""
    run: list[T] = []
    run_bytes = 0
    for item in items:
        run_bytes += size_bytes(item)
        if run and (run_bytes > _OUTPUT_BYTES or not belong_together(run[-1], item)):
            yield run
            run, run_bytes = [], size_bytes(item)
        run.append(item)
    if run:
        yield run


def _are_adjacent(left: tuple[int, BatchSlice], right: tuple[int, BatchSlice]) -> bool:
    return left[0] + left[1].count == right[0]


def _have_same_schema(
    left: tuple[TopicPartition, _PartitionRows], right: tuple[TopicPartition, _PartitionRows]
) -> bool:
    return bool(left[1].slices[0].schema == right[1].slices[0].schema)


def too_large_errors(
    topic: str, sizes: npt.NDArray[np.int64], max_request_size_bytes: int, *, with_row_number: bool
) -> dict[int, UsageError]:
    """Return the errors of rows that no request can contain, by row number. `sizes` are encoded bytes.

    `with_row_number` includes the row number in the message. The first one names the other rows, since `flush` raises
    only that.
    """
    rows = np.flatnonzero(sizes > max_request_size_bytes - HEADER_BYTES).tolist()
    texts = {row: f" (row {row} of its batch)" if with_row_number else "" for row in rows}
    if with_row_number and len(rows) > 1:
        texts[rows[0]] = (
            f" (row {rows[0]} of its batch, which has {len(rows) - 1} more: {listed([str(row) for row in rows[1:]])})"
        )
    return {row: _too_large(topic, text, int(sizes[row]), max_request_size_bytes) for row, text in texts.items()}


def _too_large(topic: str, row_text: str, size_bytes: int, max_request_size_bytes: int) -> UsageError:
    size_bytes += HEADER_BYTES
    return UsageError(
        f"a record for topic {topic}{row_text} is {size_bytes} bytes, more than max.request.size "
        f"({max_request_size_bytes}). Raise it, and max.message.bytes of the topic if that is lower, or write smaller "
        "records",
        topic=topic,
        size_bytes=size_bytes,
        settings=("max.request.size",),
    )
