"""Record batches between their encoding and their acknowledgement, with the memory and the failures they account for.

An `InFlightBatch` represents the rows of one record batch, also after a split. `InFlightBatches` tracks all unfinished
ones of a producer. `batch_assembler` adds them in the callers' threads; the `sender` thread completes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from protocol.clock import Deadline
from protocol.condition import Condition
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)


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


class ResultSink(Protocol):
    """Receives the results of the rows of one call, in the sender's thread."""

    @property
    def reports_failures(self) -> bool:
        """True if it reports failures to the user, so that `flush` need not raise them."""

    def complete(self, partition: int, first: int, count: int, result: BatchResult) -> None:
        """Take the result of `count` of its rows for `partition`, from index `first` among these on."""


class ResultSinkRows(NamedTuple):
    """`rows` consecutive rows of a result sink, from index `first` among its rows for the partition on."""

    result_sink: ResultSink
    first: int
    rows: int


@dataclass(eq=False)
class InFlightBatch:
    """The rows of one record batch; `result_sinks` are in row order, `last_error` is that of the last try."""

    topic: str
    partition: int
    size_bytes: int
    rows_left: int
    result_sinks: Sequence[ResultSinkRows] = ()
    last_error: KafkaError | None = None

    @property
    def reports_failures(self) -> bool:
        """True if all result sinks report failures."""
        return bool(self.result_sinks) and all(part.result_sink.reports_failures for part in self.result_sinks)

    def complete(self, first_row: int, count: int, result: BatchResult) -> None:
        """Pass the result of `count` rows from `first_row` on to their result sinks."""
        self.rows_left -= count
        begin, end = 0, first_row + count
        for result_sink, first, rows in self.result_sinks:
            low, high = max(begin, first_row), min(begin + rows, end)
            if low < high:
                base = result.base_offset
                told = result._replace(base_offset=base + low - first_row) if base >= 0 else result
                result_sink.complete(self.partition, first + low - begin, high - low, told)
            begin += rows


class CompletedRows(NamedTuple):
    """The result of `rows` rows of a batch, from `first_row` on."""

    in_flight_batch: InFlightBatch
    first_row: int
    rows: int
    result: BatchResult


@dataclass(eq=False)
class InFlightBatches:
    """All unfinished batches of a producer. Thread-safe.

    Attributes
    ----------
    format_error : callable
        Formats an error for log messages.
    acknowledged : dict of TopicPartition to ProducedRange
    failures : list of KafkaError
        Errors not raised or returned yet.
    held_bytes : int
    """

    format_error: Callable[[KafkaError], str] = str
    acknowledged: dict[TopicPartition, ProducedRange] = field(default_factory=dict)
    failures: list[KafkaError] = field(default_factory=list)
    held_bytes: int = 0
    _under_way: dict[InFlightBatch, None] = field(default_factory=dict)
    _changed: Condition = field(default_factory=Condition)

    def begin(self, in_flight_batches: Sequence[InFlightBatch]) -> None:
        """Add batches, and count their memory."""
        with self._changed:
            self._under_way.update(dict.fromkeys(in_flight_batches))
            self.held_bytes += sum(each.size_bytes for each in in_flight_batches)

    def end(self, completed: Sequence[CompletedRows]) -> None:
        """Pass results to the result sinks, then wake the threads that wait."""
        with self._changed:
            for in_flight_batch, _, count, result in completed:
                key, error = (in_flight_batch.topic, in_flight_batch.partition), result.error
                if error is None:
                    before = self.acknowledged.get(key, ProducedRange())
                    self.acknowledged[key] = before.plus(result.base_offset, count)
                elif error not in self.failures and not in_flight_batch.reports_failures:
                    self.failures.append(error)
        for in_flight_batch, first_row, count, result in completed:
            in_flight_batch.complete(first_row, count, result)
        with self._changed:
            for in_flight_batch, *_ in completed:
                if not in_flight_batch.rows_left:
                    self._under_way.pop(in_flight_batch, None)
                    self.held_bytes -= in_flight_batch.size_bytes
            self._changed.notify_all()

    def failed(self, errors: Sequence[KafkaError]) -> None:
        """Record failures of rows that never became a batch."""
        if errors:
            with self._changed:
                self.failures += [error for error in errors if error not in self.failures]
                self._changed.notify_all()

    def mark_reported(self, error: KafkaError) -> None:
        """Remove a failure that was reported to the user."""
        with self._changed:
            if error in self.failures:
                self.failures.remove(error)

    def take_failures(self) -> list[KafkaError]:
        """Return and clear the unreported failures."""
        with self._changed:
            taken, self.failures = self.failures, []
            return taken

    def raise_failures(self) -> None:
        """Raise the first of `failures`, log the others, and clear them."""
        if failures := self.take_failures():
            first, *others = failures
            for other in others:
                log.warning("another write failed: %s", self.format_error(other))
            raise first

    def begin_account(self) -> None:
        """Reset `acknowledged`."""
        with self._changed:
            self.acknowledged = {}

    def acknowledged_now(self) -> dict[TopicPartition, ProducedRange]:
        """Return a copy of `acknowledged`."""
        with self._changed:
            return dict(self.acknowledged)

    def wait(self, deadline: Deadline, *, despite_failures: bool = False) -> list[InFlightBatch]:
        """Wait until all current batches are complete, one fails, or the deadline; return the incomplete ones."""
        with self._changed:
            waiting = list(self._under_way)
            while not self._have_ended(waiting) and (despite_failures or not self.failures) and not deadline.passed:
                self._changed.wait(deadline.remaining_s())
            return [each for each in waiting if each in self._under_way]

    def _have_ended(self, waiting: list[InFlightBatch]) -> bool:
        """Return True if all are complete. Removes complete ones from the end, so that each is checked only once."""
        while waiting and waiting[-1] not in self._under_way:
            waiting.pop()
        return not waiting

    def wake(self) -> None:
        """Make waiting threads check their condition again."""
        with self._changed:
            self._changed.notify_all()

    def wait_for_room(self, fits: Callable[[], bool], timeout_s: float | None, *, despite_failures: bool) -> bool:
        """Wait until `fits()`; return False if no batch was completed for `timeout_s`.

        Raises
        ------
        KafkaError
            As `raise_failures`, unless `despite_failures`.
        """
        with self._changed:
            while not fits():
                if not despite_failures:
                    self.raise_failures()
                if not self._changed.wait(timeout_s):
                    return False
            return True
