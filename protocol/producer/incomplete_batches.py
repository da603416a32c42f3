"""Record batches between their encoding and their acknowledgement, the memory of unacknowledged rows, and failures.

Java's `ProducerBatch`, `IncompleteBatches` and `BufferPool`. `batch_assembler` adds batches in the callers' threads;
the `sender` thread completes them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from protocol.base.clock import SYSTEM_CLOCK, Clock, Deadline
from protocol.base.condition import Condition, Lock
from protocol.errors import KafkaError
from protocol.kafka_terms import NO_PARTITION, NO_SEQUENCE, TopicPartition
from protocol.producer.results import BatchResult, ProducedRange, SentColumns, SentRows, complete_rows, rows_within
from protocol.records.encode import EncodedBatch

log = logging.getLogger(__name__)


@dataclass(eq=False)
class ProducerBatch:
    """One record batch; `records` are its bytes, whose header is finalized before sending.

    Attributes
    ----------
    sent : sequence of SentRows
        The calls whose rows these are, in row order.
    whole : ProducerBatch or None
        After a split, the original batch; this one has its rows from `first_row` on.
    rows_left : int
        Rows without a result, those of its parts included.
    result : BatchResult or None
        Result, once known.
    maybe_written : bool
        A try ended without a reply that tells whether the batch was written.
    last_error : KafkaError or None
        Error of the last try.
    compression_ratio : float
        Size of `records` over their uncompressed size.
    """

    topic: str
    partition: int
    records: EncodedBatch
    record_count: int
    created_s: float
    sent: Sequence[SentRows] = ()
    whole: ProducerBatch | None = None
    first_row: int = 0
    result: BatchResult | None = None
    base_sequence: int = NO_SEQUENCE
    attempts: int = 0
    in_flight: bool = False
    maybe_written: bool = False
    last_error: KafkaError | None = None
    compression_ratio: float = 1.0
    rows_left: int = field(init=False)
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows_left = self.record_count
        self.size_bytes = len(self.records)

    def note(self, error: KafkaError) -> None:
        """Record the error of a try, for the messages of callers that wait."""
        self.last_error = error
        if self.whole is not None:
            self.whole.last_error = error


class BufferMemory:
    """Bytes of `buffer.memory` held by messages and rows that are not acknowledged. Thread-safe.

    May count a message twice while it moves to the next stage, but never under-counts.

    Attributes
    ----------
    messages_bytes : int
        Bytes of the messages in `MessageBuffer`, which sets it. Ctrl-C in `send` may make it inexact until the next
        batch.
    """

    def __init__(self) -> None:
        self.messages_bytes = 0
        self._held_bytes = 0
        self._lock = Lock()

    def hold(self, size_bytes: int) -> None:
        """Add bytes. A batch that replaces larger rows adds a negative number."""
        with self._lock:
            self._held_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """Subtract bytes that were held."""
        self.hold(-size_bytes)

    def reset(self) -> None:
        """Free all bytes."""
        with self._lock:
            self.messages_bytes = self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Return all bytes held."""
        return self._held_bytes + self.messages_bytes


class IncompleteBatches:
    """All unfinished batches of a producer. Thread-safe.

    Parameters
    ----------
    memory : BufferMemory, optional
    format_error : callable, optional
        Formats an error for log messages.
    clock : Clock, optional

    Attributes
    ----------
    waiting_for_room : int
        Number of threads in `wait_for_room`.
    """

    def __init__(
        self,
        memory: BufferMemory | None = None,
        format_error: Callable[[KafkaError], str] = str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.memory = memory or BufferMemory()
        self.format_error = format_error
        self.waiting_for_room = 0
        self._acknowledged: dict[TopicPartition, ProducedRange] = {}
        # By the call whose result reports them, too; None: rows without such a call.
        self._failures: dict[SentColumns | None, list[KafkaError]] = {}
        self._batches: dict[ProducerBatch, None] = {}
        self._counts: Counter[TopicPartition] = Counter()
        self._abandoned = False
        self._completed_at_s = float("-inf")
        self._changed = Condition()

    @property
    def empty(self) -> bool:
        """True if every batch is complete."""
        return not self._batches

    def count(self, key: TopicPartition) -> int:
        """Return the number of incomplete batches of a partition."""
        return self._counts[key]

    @property
    def awaited(self) -> bool:
        """True if a thread waits for batches or for memory."""
        return self._changed.waiting

    def begin(self, batches: Sequence[ProducerBatch], freed_bytes: int = 0) -> None:
        """Add batches; their memory replaces `freed_bytes`, held by their rows before. Not after `abandon`."""
        with self._changed:
            if self._abandoned:
                self.memory.free(freed_bytes)
                return
            self._batches.update(dict.fromkeys(batches))
            self._counts.update((batch.topic, batch.partition) for batch in batches)
            self.memory.hold(sum(batch.size_bytes for batch in batches) - freed_bytes)

    def end(self, completed: Sequence[ProducerBatch]) -> None:
        """Pass the results of batches to the calls whose rows they are, then wake the threads that wait."""
        results = [(batch.whole or batch, batch, batch.result) for batch in completed if batch.result is not None]
        with self._changed:
            for parent, batch, result in results:
                key, error = (batch.topic, batch.partition), result.error
                if error is None:
                    before = self._acknowledged.get(key, ProducedRange())
                    self._acknowledged[key] = before.plus(result.base_offset, batch.record_count)
                elif batch.partition == NO_PARTITION:  # never sent: `failed` has recorded it, or a future reports it
                    continue
                else:
                    rows = rows_within(parent.sent, batch.first_row, batch.record_count)
                    self._add_failure(error, [row.call for row in rows] or [None])
        for parent, batch, result in results:
            parent.rows_left -= batch.record_count
            complete_rows(parent.sent, batch.partition, result, batch.first_row, batch.record_count)
        with self._changed:
            for parent, *_ in results:
                if not parent.rows_left and parent in self._batches:
                    del self._batches[parent]
                    self._forget(parent)
                    self.memory.free(parent.size_bytes)
            self._completed_at_s = self._clock.now_s()
            self._changed.notify_all()

    def abandon(self) -> None:
        """Forget all batches, and accept no others: the sender has ended, and their rows have a result."""
        with self._changed:
            self._abandoned = True
            for batch in self._batches:
                self.memory.free(batch.size_bytes)
            self._batches.clear()
            self._counts.clear()
            self._changed.notify_all()

    def _forget(self, batch: ProducerBatch) -> None:
        """Count one batch less; partitions without batches keep no entry."""
        key = batch.topic, batch.partition
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def failed(self, error: KafkaError, calls: Iterable[SentColumns | None] = (None,)) -> None:
        """Record a failure of rows of these calls that never became a batch."""
        with self._changed:
            self._add_failure(error, calls)
            self._changed.notify_all()

    def _add_failure(self, error: KafkaError, calls: Iterable[SentColumns | None]) -> None:
        for call in calls:
            if call is None or not call.reports_failures:
                errors = self._failures.setdefault(call, [])
                if error not in errors:
                    errors.append(error)

    def mark_reported(self, call: SentColumns) -> None:
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
        if failures := self.take_failures():
            first, *kafka_errors = failures
            self._log(kafka_errors)
            raise first

    def log_failures(self) -> None:
        """Log the unreported failures, and clear them, because another error is raised."""
        self._log(self.take_failures())

    def _log(self, failures: Sequence[KafkaError]) -> None:
        for failure in failures:
            log.warning("another write failed: %s", self.format_error(failure))

    def begin_account(self) -> None:
        """Forget the acknowledged ranges."""
        with self._changed:
            self._acknowledged = {}

    def acknowledged_now(self) -> dict[TopicPartition, ProducedRange]:
        """Return the acknowledged ranges by (topic, partition)."""
        with self._changed:
            return dict(self._acknowledged)

    def wait(self, deadline: Deadline, *, despite_failures: bool = False) -> list[ProducerBatch]:
        """Wait until all current batches are complete, one fails, or the deadline; return the incomplete ones."""
        with self._changed:
            waiting = list(self._batches)
            while not self._have_ended(waiting) and (despite_failures or not self._failures) and not deadline.passed:
                self._changed.wait(deadline.remaining_s())
            return [batch for batch in waiting if batch in self._batches]

    def _have_ended(self, waiting: list[ProducerBatch]) -> bool:
        """Return True if all are complete. Removes complete ones from the end, so that each is checked only once."""
        while waiting and waiting[-1] not in self._batches:
            waiting.pop()
        return not waiting

    def wake(self) -> None:
        """Make waiting threads check their condition again."""
        with self._changed:
            self._changed.notify_all()

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

        `on_wait` is called when `waiting_for_room` counts this thread.

        Raises
        ------
        KafkaError
            As `raise_failures`, unless `despite_failures`.
        """
        began_s = self._clock.now_s()
        with self._changed:
            self.waiting_for_room += 1
            try:
                on_wait()
                while not fits():
                    if not despite_failures:
                        self.raise_failures()
                    # Calls of other threads notify as well.
                    patience = Deadline(max(began_s, self._completed_at_s) + timeout_s, self._clock)
                    earliest = (
                        patience if deadline is None else min(patience, deadline, key=lambda waiting: waiting.at_s)
                    )
                    if earliest.passed:
                        return False
                    self._changed.wait(earliest.remaining_s())
                return True
            finally:
                self.waiting_for_room -= 1
