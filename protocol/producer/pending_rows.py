"""The rows and messages of a producer that are accepted and have no result: the one place that counts them.

`batch_assembler` adds calls, bytes and failures in the callers' threads. `sender` adds and completes batches. `flush`,
waits for memory, metrics and the end of the producer ask here. Java's `IncompleteBatches` and `BufferPool`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from protocol.base.clock import SYSTEM_CLOCK, Clock, Deadline
from protocol.base.condition import Condition
from protocol.errors import KafkaError, UsageError
from protocol.kafka_terms import NO_PARTITION, TopicPartition
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import ProducedRange, SentColumns, complete_rows, rows_within

log = logging.getLogger(__name__)


class Call(Protocol):
    """Accepted rows or messages, which get their results together or one by one."""

    def fail_rest(self, error: KafkaError) -> None:
        """Fail all that have no result. May be repeated."""


class PendingRows:
    """All pending rows of a producer: their calls, batches, bytes and failures. Thread-safe.

    A call begins before its rows can get lost, so the end of the producer gives each row a result, wherever it is. That
    end has three steps: `refuse_rows` in any thread; `fail_all` when the producer's thread ends; then `fail_late_calls`
    in each thread that has begun a call: it may have checked for a refusal before the first step.

    `limit_bytes` is `buffer.memory`. `on_failure` is called with the error of rows before the rows get it: a
    transaction fails first. `format_error` formats an error for log messages.

    `waiting_for_room` is the number of threads in `wait_for_room`. `messages_bytes` are the bytes of the messages in
    `MessageBuffer`, which sets it within its own lock; Ctrl-C in `send` may make it inexact until the next batch.
    `refused_because` says why no rows are accepted any more, and never changes again. `fail_all` sets `all_failed`: all
    calls have failed, and nothing is counted.
    """

    def __init__(
        self,
        limit_bytes: int = 1 << 62,
        on_failure: Callable[[KafkaError], None] = lambda error: None,
        format_error: Callable[[KafkaError], str] = str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._on_failure = on_failure
        self._format_error = format_error
        self._clock = clock
        self.waiting_for_room = 0
        self.messages_bytes = 0
        self.refused_because: KafkaError | None = None
        self.all_failed = False
        # A dictionary changes in one step: calls begin and end without the lock.
        self._calls: dict[Call, None] = {}
        self._batches: dict[TopicPartition, dict[ProducerBatch, None]] = {}
        self._held_bytes = 0
        self._acknowledged: dict[TopicPartition, ProducedRange] = {}
        # Those that no caller has seen, by the call whose result reports them, too; None: rows without such a call.
        self._failures: dict[SentColumns | None, list[KafkaError]] = {}
        self._completed_at_s = float("-inf")
        self._changed = Condition()

    # -- calls --------------------------------------------------------------------------------

    def begin_call(self, call: Call) -> None:
        """Add a call, once."""
        self._calls[call] = None

    def end_call(self, call: Call) -> None:
        """Remove a call that has all results."""
        self._calls.pop(call, None)

    def refuse_rows(self, error: KafkaError) -> None:
        """Refuse further rows. The transaction, and `flush`, fail if rows are pending."""
        self._record_failure_of_calls(error)  # first: others look at `refused_because`
        self.refused_because = self.refused_because or error
        self.wake()

    def raise_if_refused(self) -> None:
        """Raise the error of `refuse_rows`."""
        if (error := self.refused_because) is not None:
            raise UsageError(str(error)) from error  # a new one, since raising adds a traceback

    def fail_all(self, error: KafkaError) -> None:
        """Fail all pending rows, and count none any more. May be repeated."""
        self.refused_because = self.refused_because or error
        self.all_failed = True
        self.fail_late_calls()
        with self._changed:
            self._batches.clear()
            self._changed.notify_all()

    def fail_late_calls(self) -> None:
        """Fail all calls after `fail_all`; nothing before. Any thread; may be repeated."""
        if self.all_failed and self.refused_because is not None:
            self._record_failure_of_calls(self.refused_because)
            for call in list(self._calls):
                try:
                    call.fail_rest(self.refused_because)
                    self.end_call(call)
                except Exception:  # the other calls need results, too
                    log.exception("a call has no result after the end of its producer")

    def _record_failure_of_calls(self, error: KafkaError) -> None:
        calls = list(self._calls)
        if calls:
            self.failed(error, [call for call in calls if isinstance(call, SentColumns)])

    # -- bytes --------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of `buffer.memory` in use. May count a message twice while it moves, but never under-counts."""
        return 0 if self.all_failed else self._held_bytes + self.messages_bytes

    def hold(self, size_bytes: int) -> None:
        """Add bytes; subtract them if negative."""
        if size_bytes:
            with self._changed:
                self._held_bytes += size_bytes
                if size_bytes < 0:
                    self._changed.notify_all()

    def has_room(self, size_bytes: int, *, columns: bool = False) -> bool:
        """Return True if these bytes fit. Columns fit always if no batch holds any memory."""
        return self.held_bytes + size_bytes <= self._limit_bytes or (columns and self.empty)

    def wait_for_room(
        self,
        fits: Callable[[], bool],
        timeout_s: float,
        *,
        despite_failures: bool,
        deadline: Deadline | None = None,
        on_wait: Callable[[], None] = lambda: None,
    ) -> bool:
        """Wait until `fits()`; return False if no batch was completed for `timeout_s`, or at the deadline.

        `on_wait` is called when `waiting_for_room` counts this thread. Raises as `raise_failures`, unless
        `despite_failures`.
        """
        began_s, failures = self._clock.now_s(), list[KafkaError]()
        with self._changed:
            self.waiting_for_room += 1
            try:
                on_wait()
                while not fits():
                    if not despite_failures and (failures := self.take_failures()):
                        break
                    # Calls of other threads notify as well.
                    progress_deadline = Deadline(max(began_s, self._completed_at_s) + timeout_s, self._clock)
                    limits = [progress_deadline] if deadline is None else [progress_deadline, deadline]
                    earliest = min(limits, key=lambda limit: limit.at_s)
                    if earliest.passed:
                        return False
                    self._changed.wait(earliest.remaining_s())
            finally:
                self.waiting_for_room -= 1
        self._raise(failures)  # without the lock: it logs, and a log handler may use this producer
        return True

    # -- batches ------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """True if every batch is complete."""
        return not self._batches

    def count(self, key: TopicPartition) -> int:
        """Return the number of incomplete batches of a partition."""
        return len(self._batches.get(key, ()))

    def add(self, batches: Sequence[ProducerBatch], freed_bytes: int = 0) -> None:
        """Add batches, before the sender has them; their memory replaces `freed_bytes`, held by their rows before."""
        self._notify_session(batches)  # those that have failed already
        with self._changed:
            if not self.all_failed:
                for batch in batches:
                    self._batches.setdefault((batch.topic, batch.partition), {})[batch] = None
                self.hold(sum(batch.size_bytes for batch in batches) - freed_bytes)

    def complete(self, completed: Sequence[ProducerBatch]) -> None:
        """Pass the results of batches to the calls whose rows they are, then wake the threads that wait.

        In the producer's thread only. In this order: the transaction fails, ranges and failures are recorded, calls get
        their results (without the lock: that runs code of users), and only then the batches are complete. So `flush`
        sees each failure. Those of rows without a partition are recorded by `failed`.
        """
        self._notify_session(completed)
        results = [(batch.original or batch, batch, batch.result) for batch in completed if batch.result is not None]
        with self._changed:
            for original, batch, result in results:
                key, error = (batch.topic, batch.partition), result.error
                if error is None:
                    before = self._acknowledged.get(key, ProducedRange())
                    self._acknowledged[key] = before.plus(result.base_offset, batch.record_count)
                elif batch.partition != NO_PARTITION:  # else never sent: `failed` has recorded it, or a future tells it
                    rows = rows_within(original.sent, batch.first_row, batch.record_count)
                    self._add_failure(error, [row.call for row in rows] or [None])
        for original, batch, result in results:
            original.rows_left -= batch.record_count
            complete_rows(original.sent, batch.partition, result, batch.first_row, batch.record_count)
        with self._changed:
            for original, *_ in results:
                if not original.rows_left:
                    self._remove(original)
            self._completed_at_s = self._clock.now_s()
            self._changed.notify_all()

    def _remove(self, batch: ProducerBatch) -> None:
        key = batch.topic, batch.partition
        if batch in (of_partition := self._batches.get(key, {})):
            del of_partition[batch]
            self._held_bytes -= batch.size_bytes
            if not of_partition:
                del self._batches[key]

    def _notify_session(self, batches: Sequence[ProducerBatch]) -> None:
        for error in dict.fromkeys(batch.result.error for batch in batches if batch.result is not None):
            if error is not None:
                self._on_failure(error)

    def wait(self, deadline: Deadline, *, despite_failures: bool = False) -> list[ProducerBatch]:
        """Wait until all current batches are complete, one fails, or the deadline; return the incomplete ones."""
        with self._changed:
            waiting = [batch for batches in self._batches.values() for batch in batches]
            while not self._all_complete(waiting) and (despite_failures or not self._failures) and not deadline.passed:
                self._changed.wait(deadline.remaining_s())
            return [batch for batch in waiting if self._has(batch)]

    def _all_complete(self, waiting: list[ProducerBatch]) -> bool:
        """Return True if all are complete. Removes complete ones from the end, so that each is checked only once."""
        while waiting and not self._has(waiting[-1]):
            waiting.pop()
        return not waiting

    def _has(self, batch: ProducerBatch) -> bool:
        return batch in self._batches.get((batch.topic, batch.partition), ())

    def wake(self) -> None:
        """Make waiting threads check their condition again."""
        with self._changed:
            self._changed.notify_all()

    # -- reports to the user ------------------------------------------------------------------

    def failed(self, error: KafkaError, calls: Iterable[SentColumns | None] = (None,)) -> None:
        """Record a failure of rows that never became a batch. `calls`: those whose result also reports it."""
        self._on_failure(error)
        with self._changed:
            self._add_failure(error, calls)
            self._changed.notify_all()

    def _add_failure(self, error: KafkaError, calls: Iterable[SentColumns | None]) -> None:
        for call in calls:
            if call is None or not call.reports_failures:
                errors = self._failures.setdefault(call, [])
                if error not in errors:
                    errors.append(error)

    def forget_failures(self, call: SentColumns) -> None:
        """Forget the failures of a call whose result was requested; other calls may have failed with the same error."""
        with self._changed:
            self._failures.pop(call, None)

    def take_failures(self) -> list[KafkaError]:
        """Return and clear the unreported failures, each once."""
        with self._changed:
            taken, self._failures = self._failures, {}
            return list(dict.fromkeys(error for errors in taken.values() for error in errors))

    def raise_failures(self) -> None:
        """Raise the first unreported failure, log the others, and clear them."""
        self._raise(self.take_failures())

    def _raise(self, failures: Sequence[KafkaError]) -> None:
        if failures:
            first, *further = failures
            self._log(further)
            raise first

    def log_failures(self) -> None:
        """Log the unreported failures, and clear them, because another error is raised."""
        self._log(self.take_failures())

    def _log(self, failures: Sequence[KafkaError]) -> None:
        for failure in failures:
            log.warning("another write failed: %s", self._format_error(failure))

    def forget_acknowledged(self) -> None:
        """Forget the acknowledged ranges."""
        with self._changed:
            self._acknowledged = {}

    def acknowledged_now(self) -> dict[TopicPartition, ProducedRange]:
        """Return the acknowledged ranges by (topic, partition)."""
        with self._changed:
            return dict(self._acknowledged)
