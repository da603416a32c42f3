"""Results of sent rows: columns for the rows of a call, futures for single messages, and ranges by partition.

`batch_assembler` creates a `SentColumns` per call; the `sender` thread completes it batch by batch. Until a caller
requests a result, only a few numbers per record batch are kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.condition import Condition, Event, Lock
from protocol.errors import DeadlineExceeded, KafkaError, SendFailed
from protocol.producer.partitioner import Partitions
from protocol.records.arrow_numpy import to_arrow

_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64())])


@dataclass(frozen=True)
class RecordMetadata:
    """Location of a written message. `offset` is -1 with acks=0. `timestamp_ms` is the broker's with LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


@dataclass(frozen=True)
class ProducedRange:
    """Acknowledged records of one partition. Offsets are -1 if brokers sent none (acks=0)."""

    first_offset: int = -1
    last_offset: int = -1
    count: int = 0

    def plus(self, base_offset: int, count: int) -> ProducedRange:
        """Add `count` records from `base_offset` on (-1: unknown offset)."""
        if base_offset < 0:
            return ProducedRange(self.first_offset, self.last_offset, self.count + count)
        first = base_offset if self.first_offset < 0 else min(self.first_offset, base_offset)
        return ProducedRange(first, max(self.last_offset, base_offset + count - 1), self.count + count)


class BatchResult(NamedTuple):
    """The result of consecutive rows of one partition: written from `base_offset` on, or failed with `error`.

    `base_offset` is -1 if unknown (acks=0). `log_append_time_ms` is -1 unless the topic has LogAppendTime.
    """

    base_offset: int = -1
    log_append_time_ms: int = -1
    error: KafkaError | None = None


OnResult = Callable[[str, int, int, BatchResult], None]


class MessageFuture(Future[RecordMetadata]):
    """A future that logs every error of a callback, also non-`Exception`s, to keep the producer's thread alive.

    Ctrl-C in `result` leaves its lock free.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        """Add a callback, as `concurrent.futures.Future.add_done_callback`. It runs in the producer's thread."""

        def call(done: Future[RecordMetadata]) -> None:
            try:
                fn(done)
            except Exception:
                raise
            except BaseException as error:  # such as SystemExit
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise  # Ctrl-C
                raise RuntimeError("a callback must not end the thread that it runs in") from error

        super().add_done_callback(call)


class _RowNumbers:
    """Row numbers of a call by partition: the n-th of its rows for a partition is row `in_partition(partition)[n]`."""

    def __init__(self, partitions: Partitions) -> None:
        self.partitions = partitions
        self._rows_of: dict[int, npt.NDArray[np.int64]] = {}

    def in_partition(self, partition: int) -> npt.NDArray[np.int64]:
        if partition not in self._rows_of:
            self._rows_of[partition] = np.flatnonzero(self.partitions == partition)
        return self._rows_of[partition]


class SentColumns:
    """The result of one call of `send_columns`, or of single messages sent together. Thread-safe.

    A failure that no caller requests here is raised by `flush` or by the next call, unless `futures` report it.

    The producer's thread calls `complete`; any thread may call `fail_rest` meanwhile. Each row keeps its first result:
    futures refuse a second one themselves, otherwise `_lock` decides. `on_result` is called without the lock, since it
    calls code of users.

    `partitions` and `timestamps_ms` have one number per row. `on_reported` is called with this object when a caller has
    received its errors: failures are recorded by call. `futures`, one per row, are completed in the sender's thread;
    `result`, `errors` and `columns` do not work then. `on_result` is called with topic, partition, number of rows and
    result, before `done` counts these rows, but after it in `fail_rest`. Not with `futures`.
    """

    def __init__(
        self,
        topic: str,
        partitions: Partitions,
        timestamps_ms: npt.NDArray[np.int64],
        on_reported: Callable[[SentColumns], None] = lambda call: None,
        futures: Sequence[Future[RecordMetadata]] | None = None,
        on_result: OnResult | None = None,
    ) -> None:
        self.topic = topic
        self._on_result = on_result
        self._futures = futures
        self._on_reported = on_reported
        self._rows = _RowNumbers(partitions)
        self._timestamps_ms = timestamps_ms
        self.on_done: Callable[[SentColumns], None] = lambda call: None
        """Called when every row has a result, perhaps twice. Set before the first row can get one."""
        self._lock = Lock()
        self._rest_failed = False
        # Partitions and numbers of failed rows that `on_result` has not been called with.
        self._unreported: list[tuple[int, int]] = []
        self._left = len(partitions)
        self._completed: list[tuple[int, int, int, BatchResult]] = []
        self._done = Event()
        if not self._left:
            self._done.set()

    @property
    def reports_failures(self) -> bool:
        """True if futures report failures to the user, so that `flush` need not raise them."""
        return self._futures is not None

    def complete(self, partition: int, first: int, count: int, result: BatchResult) -> None:
        """Accept the result of `count` rows: of the rows of this call for `partition`, those from index `first` on.

        Without effect after `fail_rest`.
        """
        if self._futures is not None:
            self._complete_futures(self._futures, partition, first, count, result)
            self._count(count)
            return
        with self._lock:
            if self._rest_failed:
                return
            self._completed.append((partition, first, count, result))
        if self._on_result is not None:
            self._on_result(self.topic, partition, count, result)
        with self._lock:
            if not self._done.is_set():
                self._count(count)

    def fail_rest(self, error: KafkaError) -> None:
        """Fail the rows without a result. May be repeated."""
        if self._futures is not None:
            fail_futures(self._futures, error)
            self._end()
            return
        with self._lock:
            if not (self._done.is_set() or self._rest_failed):
                self._rest_failed = True
                missing, result = list(self._missing()), BatchResult(error=error)
                self._completed += [(partition, first, count, result) for partition, first, count in missing]
                self._unreported = [(partition, count) for partition, _, count in missing]
            if not self._done.is_set():
                self._end()
        # Afterwards: code of the user may wait for a lock whose owner waits for these results.
        while self._on_result is not None and self._unreported:
            self._on_result(self.topic, *self._unreported.pop(), BatchResult(error=error))

    def _missing(self) -> Iterator[tuple[int, int, int]]:
        """Yield partition, first index and number of rows without a result."""
        is_missing = np.ones(len(self._timestamps_ms), bool)
        for partition, first, count, _ in self._completed:
            is_missing[self._rows.in_partition(partition)[first : first + count]] = False
        for partition in np.unique(self._rows.partitions[is_missing]).tolist():
            rows = np.flatnonzero(is_missing[self._rows.in_partition(partition)])
            for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
                yield partition, int(run[0]), len(run)

    def _count(self, completed: int) -> None:
        self._left -= completed
        if not self._left:
            self._end()

    def _end(self) -> None:
        self._left = 0
        self._done.set()
        self.on_done(self)

    @property
    def done(self) -> bool:
        """True if every row is written or has failed."""
        return self._done.is_set()

    def result(self, timeout_ms: float | None = None) -> pa.RecordBatch:
        """Wait until all rows are acknowledged.

        Parameters
        ----------
        timeout_ms : float, optional
            By default unlimited: rows fail after `delivery.timeout.ms`.

        Returns
        -------
        pyarrow.RecordBatch
            `partition: int32`, `offset: int64` (-1 with acks=0) and `timestamp_ms: int64` of each row, in their order.

        Raises
        ------
        KafkaError
            The error of the first row that was not written.
        DeadlineExceeded
        """
        for error in self.errors(timeout_ms).values():
            raise error
        return self.columns(timeout_ms)

    def errors(self, timeout_ms: float | None = None) -> dict[int, KafkaError]:
        """Wait, and return the errors of rows that were not written, by row number."""
        self._wait(timeout_ms)
        kafka_errors = {
            int(row): result.error
            for partition, first, count, result in self._completed
            if result.error is not None
            for row in self._rows.in_partition(partition)[first : first + count]
        }
        if kafka_errors:
            self._on_reported(self)
        return dict(sorted(kafka_errors.items()))

    def columns(self, timeout_ms: float | None = None) -> pa.RecordBatch:
        """Wait, and return the columns of `result`, with offset -1 for rows that were not written.

        Rows too large to send have the partition -1.
        """
        self._wait(timeout_ms)
        offsets = np.full(len(self._timestamps_ms), -1)
        timestamps_ms = self._timestamps_ms.copy()
        for partition, first, count, result in self._completed:
            rows = self._rows.in_partition(partition)[first : first + count]
            if result.base_offset >= 0:
                offsets[rows] = result.base_offset + np.arange(count)
            if result.log_append_time_ms >= 0:
                timestamps_ms[rows] = result.log_append_time_ms
        arrays = (self._rows.partitions, offsets, timestamps_ms)
        return pa.RecordBatch.from_arrays([to_arrow(array) for array in arrays], schema=_SCHEMA)

    def _wait(self, timeout_ms: float | None) -> None:
        if not self._done.wait(None if timeout_ms is None else timeout_ms / 1000):
            raise DeadlineExceeded(
                f"{self._left} of {len(self._timestamps_ms)} rows sent to {self.topic} are not acknowledged in time",
                topic=self.topic,
            )

    def _complete_futures(
        self,
        futures: Sequence[Future[RecordMetadata]],
        partition: int,
        first: int,
        count: int,
        result: BatchResult,
    ) -> None:
        rows = self._rows.in_partition(partition)[first : first + count].tolist()
        for nth, row in enumerate(rows):
            try:
                if result.error is not None:
                    futures[row].set_exception(result.error)
                    continue
                offset = result.base_offset + nth if result.base_offset >= 0 else -1
                time_ms = result.log_append_time_ms
                time_ms = time_ms if time_ms >= 0 else int(self._timestamps_ms[row])
                futures[row].set_result(RecordMetadata(self.topic, partition, offset, time_ms))
            except InvalidStateError:  # Ctrl-C has failed it in the caller's thread
                continue


def fail_futures(futures: Iterable[Future[RecordMetadata]], error: KafkaError) -> None:
    """Fail those that have no result."""
    for future in futures:
        with suppress(InvalidStateError):
            future.set_exception(error)


class SentRows(NamedTuple):
    """`rows` consecutive rows of a call, from index `first` among its rows for their partition on."""

    call: SentColumns
    first: int
    rows: int


def complete_rows(
    sent: Sequence[SentRows], partition: int, result: BatchResult, first_row: int = 0, count: int | None = None
) -> None:
    """Pass the result of a record batch to the `SentColumns` of its rows. Runs code of users: hold no lock.

    `sent` has the rows of the whole batch, in order. `result` is that of `count` rows (None: all) of the batch from
    `first_row` on: a batch may be split and sent in parts.
    """
    part_first = 0
    for call, first, rows in rows_within(sent, first_row, count):
        base = result.base_offset
        part = result._replace(base_offset=base + part_first) if base >= 0 else result
        call.complete(partition, first, rows, part)
        part_first += rows


def rows_within(sent: Sequence[SentRows], first_row: int, count: int | None) -> list[SentRows]:
    """Return which of these rows are the `count` rows (None: all) from `first_row` on."""
    results, begin, end = [], 0, None if count is None else first_row + count
    for call, first, rows in sent:
        low, high = max(begin, first_row), begin + rows if end is None else min(begin + rows, end)
        if low < high:
            results.append(SentRows(call, first + low - begin, high - low))
        begin += rows
    return results


def results_of(outcomes: Sequence[Future[RecordMetadata] | KafkaError], deadline: Deadline) -> list[RecordMetadata]:
    """Wait for the futures of `send_many`, and return their results; raise `SendFailed` if some failed."""
    results: dict[int, RecordMetadata] = {}
    errors: dict[int, KafkaError] = {}
    for index, outcome in enumerate(outcomes):
        try:
            if isinstance(outcome, KafkaError):
                raise outcome
            results[index] = outcome.result(deadline.remaining_s())
        except FutureTimeout:
            errors[index] = DeadlineExceeded("the message is not acknowledged in time, and may still be written")
        except KafkaError as error:
            errors[index] = error
    if errors:
        first = min(errors)
        raise SendFailed(
            f"{len(errors)} of {len(outcomes)} messages were not acknowledged; the first is number {first}: "
            f"{errors[first]}",
            errors=errors,
            results=results,
        ) from errors[first]
    return list(results.values())
