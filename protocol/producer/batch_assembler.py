"""Turn rows and messages into encoded record batches: choose partitions, accumulate, encode, pass to the sender.

Runs in the callers' threads, and in `producer_thread` for batches that have waited for `linger.ms`. A lock admits one
thread, to keep the order of rows within a partition. The producer's thread never waits for it: the owner wakes that
thread after the release.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Lock
from protocol.base.interrupts import acquire
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import NO_PARTITION, TopicPartition
from protocol.metrics.client_sensors import ClientSensors
from protocol.producer.accumulator import Accumulator, ReadyBatches, too_large_errors
from protocol.producer.messages import MessageBuffer, TopicMessages, already_sending
from protocol.producer.partition_choice import GivenPartitions, PartitionChoice
from protocol.producer.partition_producer import Encode
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import BatchResult, OnResult, RecordMetadata, SentColumns, SentRows
from protocol.producer.sender import Sender
from protocol.records.arrow_numpy import to_arrow, to_numpy
from protocol.records.encode import Lengths, record_sizes
from protocol.records.record_columns import record_columns

log = logging.getLogger(__name__)

_FOREVER_S = threading.TIMEOUT_MAX

_Prepared = tuple[pa.RecordBatch, npt.NDArray[np.int32], Lengths, float, SentColumns]
"""Rows, partitions, sizes, time since which the rows wait, and their results."""


class BatchAssembler:
    """Accepts rows and messages of one producer. `on_result` is called with the results of rows.

    A call begins in `PendingRows` before its rows enter the accumulator, and rows move in blocks of
    `_stopping_on_errors`: if an error drops some on the way, the producer stops and fails them. Bytes are held for the
    next place before they are freed for the previous one.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        sensors: ClientSensors,
        choice: PartitionChoice,
        encode: Encode,
        pending: PendingRows,
        sender: Sender,
        on_result: OnResult | None = None,
    ) -> None:
        # At most half of the memory, or callers would wait for memory held by unsent messages.
        self.messages = MessageBuffer(
            min(config.batch_size_bytes, config.buffer_memory_bytes // 2), config.batch_num_messages, pending
        )
        self._config = config
        self._clock = clock
        self._sensors = sensors
        self.choice = choice
        self._pending = pending
        self._sender = sender
        self._on_result = on_result
        self._accumulator = self._new_accumulator()
        self.encode = encode
        # Reentrant, so that a nested call in the same thread raises instead of deadlocking.
        self._lock = Lock()
        # True if the lock was taken when batches were due. Only the producer's thread changes it.
        self._missed = False
        # Errors for calls that hand over columns while other threads abort their transaction.
        self._refusals: list[KafkaError] = []

    def _new_accumulator(self) -> Accumulator:
        return Accumulator(self._config.batch_size_bytes, self._config.batch_num_messages)

    # -- input --------------------------------------------------------------------------------

    def append_columns(
        self, topic: str, columns: pa.RecordBatch, requested_partitions: GivenPartitions | None
    ) -> SentColumns:
        """Accept rows, as `Producer.send_columns`."""
        rows = record_columns(columns, self._clock.wall_ms())
        if not rows.num_rows:
            return SentColumns(topic, np.empty(0, np.int32), np.empty(0, np.int64))
        metadata, given_partitions = self.choice.resolve_topic(topic, rows.num_rows, requested_partitions)
        sizes, timestamps_ms = record_sizes(rows), to_numpy(rows.column("timestamp_ms"))
        refused = too_large_errors(topic, sizes, self._config.max_request_size_bytes, with_row_number=True)
        kept_rows: npt.NDArray[np.int64] | slice = slice(None)
        partitions = np.full(rows.num_rows, NO_PARTITION, np.int32)
        if refused:
            kept_rows = np.delete(np.arange(rows.num_rows), list(refused))
            rows, sizes, given_partitions = _select_rows(kept_rows, rows, sizes, given_partitions)
        self.wait_for_room(int(sizes.sum()), len(sizes), columns=True)
        with self._exclusive():
            self._pending.raise_if_refused()
            self._append_waiting_messages()
            if rows.num_rows:
                partitions[kept_rows] = self.choice.choose(metadata, rows, sizes, given_partitions)
            sent = SentColumns(
                topic, partitions, timestamps_ms, self._pending.forget_failures, on_result=self._on_result
            )
            with self._stopping_on_errors():
                self._begin(sent)
                if refused:
                    self._fail_unplaced(sent, list(refused.values()))
            self._record_sizes(sizes)
            now_s = self._clock.now_s()
            append = partial(self._accumulator.append, topic, rows, partitions[kept_rows], sizes, now_s, sent)
            raised = self._hand_over(append, wait=True)
            self._hand_over(partial(self._due, now_s))
        if raised is not None:
            raise raised
        return sent

    def wait_for_room(
        self, size_bytes: int, records: int = 1, *, columns: bool = False, deadline: Deadline | None = None
    ) -> None:
        """Wait while `buffer.memory` has no room for records of `size_bytes` together.

        Columns larger than the memory are accepted when no batch in flight holds any of it. Raises `DeadlineExceeded`
        if no batch was completed for `max.block.ms`, or at the caller's deadline; only for columns `KafkaError` if
        earlier columns could not be written, since futures of messages report their own failures.
        """
        limit_bytes = self._config.buffer_memory_bytes

        def fits() -> bool:
            has_room = self._pending.has_room(min(size_bytes, limit_bytes), columns=columns)
            return has_room or self._pending.refused_because is not None

        block_s = self._config.max_block_ms / 1000
        if fits() or self._wait_for_room(fits, block_s, despite_failures=not columns, deadline=deadline):
            return
        self._sensors.exhausted.record((self._clock.now_s(), records))
        if deadline is not None and deadline.passed:
            why = f"buffer.memory is {limit_bytes}, and the time of this call is over"
        else:
            why = f"buffer.memory is {limit_bytes}, and nothing was acknowledged for {block_s:.1f} s (max.block.ms)"
        raise DeadlineExceeded(
            f"{self._pending.held_bytes} bytes are not acknowledged, {why}. Nothing of this call was sent",
            settings=("buffer.memory", "max.block.ms"),
        )

    def drain(self, deadline: Deadline) -> bool:
        """Hand over all rows and messages; return False if another thread still hands over its own at the deadline."""
        with self._exclusive(deadline.remaining_s()) as free:
            if not free:
                return False
            self._append_waiting_messages()
            raised = self._hand_over(self._accumulator.drain)
        if raised is not None:
            raise raised
        return True

    def hand_over_due(self) -> float | None:
        """Hand over the batches that have waited for `linger.ms`.

        Returns the clock's time in seconds of the next call; None if nothing waits, or another thread holds the lock.
        """
        # Before the lock is tried, since its owner reads it after the release: both could miss the batches otherwise.
        self._missed = True
        with self._exclusive(0) as free:
            if not free:
                return None
            self._missed = False
            now_s = self._clock.now_s()
            if self._messages_are_due(now_s):
                self._append_waiting_messages()
            self._hand_over(partial(self._due, now_s))
            # Lingered rows that are still there are handed over after the next reply.
            oldest_s = self._accumulator.oldest_s(now_s - self._linger_s), self.messages.oldest_s
            waiting_s = [at_s for at_s in oldest_s if at_s is not None]
        return min(waiting_s) + self._linger_s if waiting_s else None

    def close(self, error: KafkaError) -> None:
        """Fail all rows and messages without a result, and refuse further ones. Runs in the producer's thread.

        Without the lock: its owner may wait for memory, and continues with the accumulator that it has.
        """
        try:
            self._pending.refuse_rows(error)
            self._accumulator = self._new_accumulator()
            self.messages.take()  # afterwards, no thread adds one
        finally:
            self._pending.fail_all(error)

    @contextmanager
    def refusing(self, error: KafkaError) -> Iterator[None]:
        """Let calls that are handing over their columns fail with this error during the block."""
        self._refusals.append(error)
        try:
            self._pending.wake()
            yield
        finally:
            self._refusals.remove(error)

    def discard(self, error: KafkaError, deadline: Deadline) -> None:
        """Pass all rows and messages to the sender as failed. No batch is in flight.

        Raises `DeadlineExceeded` if another thread still hands over its columns at the deadline.
        """
        with self._exclusive(deadline.remaining_s()) as free:
            if not free:
                raise DeadlineExceeded("another thread is still sending its columns")
            with self._stopping_on_errors():
                for messages in self.messages.take():
                    self._fail_messages(messages, error)
                self._fail_rows(self._accumulator.drain(), error)

    # -- one thread at a time -----------------------------------------------------------------

    @contextmanager
    def _exclusive(self, timeout_s: float = _FOREVER_S) -> Iterator[bool]:
        """Exclude other threads; yield False if a thread is still inside after the timeout.

        Raises `UsageError` if this thread is already inside: a signal handler, a partitioner or a callback called the
        producer.
        """
        self.refuse_within_send()  # before the wait for a thread that may wait for this one
        if not acquire(self._lock, timeout_s):
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()
            if self._missed:
                self._sender.wake()
            self._pending.fail_late_calls()  # calls that have begun after the end

    @contextmanager
    def _stopping_on_errors(self) -> Iterator[None]:
        """Stop the producer if an error interrupts the block, which moves rows: some may be in no place.

        Its thread then fails all rows.
        """
        try:
            yield
        except Exception as error:
            if self._pending.refused_because is None:
                cause = UsageError(
                    f"this producer cannot continue, make a new one: {error!r} while rows were put into batches"
                )
                log.error("%s", cause, exc_info=error)
                self._pending.refuse_rows(cause)
                self._pending.failed(cause)
                self._sender.stop(cause)
            raise

    def refuse_within_send(self) -> None:
        """Raise `UsageError` in a thread that is sending: a signal handler, a partitioner or a callback runs there.

        Calls that take the lock do so themselves. A call that first stops the producer or a transaction calls this
        before.
        """
        lock: Any = self._lock
        if lock._is_owned():
            raise already_sending()
        self.messages.refuse_within_append()

    @property
    def _linger_s(self) -> float:
        linger_ms = self._config.linger_ms
        return float("inf") if linger_ms is None else linger_ms / 1000

    def _due(self, now_s: float) -> list[ReadyBatches]:
        """Take batches that have waited for `linger.ms`; all if a caller waits for memory, or half of it waits here.

        A batch stays while its partition has more batches than may be in flight: it would not be sent earlier, and
        small batches would queue up without end.
        """
        exceeds_half = self._accumulator.waiting_bytes > self._config.buffer_memory_bytes // 2
        if exceeds_half or self._pending.waiting_for_room:
            return self._accumulator.drain()
        return self._accumulator.take_lingered(now_s - self._linger_s, self._has_queue)

    def _has_queue(self, key: TopicPartition) -> bool:
        return self._pending.count(key) > self._config.max_in_flight_requests_per_connection

    def _messages_are_due(self, now_s: float) -> bool:
        oldest_s, full = self.messages.oldest_s, self.messages.full or self._pending.waiting_for_room > 0
        return oldest_s is not None and (full or now_s >= oldest_s + self._linger_s)

    def _wait_for_room(
        self,
        fits: Callable[[], bool],
        timeout_s: float,
        *,
        despite_failures: bool,
        deadline: Deadline | None = None,
    ) -> bool:
        started_s = self._clock.now_s()
        try:
            return self._pending.wait_for_room(
                fits, timeout_s, despite_failures=despite_failures, deadline=deadline, on_wait=self._sender.wake
            )
        finally:
            now_s = self._clock.now_s()
            self._sensors.memory_waits.record((now_s, (now_s - started_s) * 1e9))

    def _record_sizes(self, sizes: Lengths) -> None:
        if len(sizes):
            self._sensors.record_sizes.record((self._clock.now_s(), int(sizes.max()), int(sizes.sum()), len(sizes)))

    def _append_waiting_messages(self) -> None:
        if self._pending.refused_because is not None:
            return  # `PendingRows.fail_all` fails them
        interrupt: BaseException | None = None
        with self._stopping_on_errors():
            for messages in self.messages.take():
                try:
                    if interrupt is not None:
                        raise interrupt
                    prepared, refused = self._prepare(messages)
                except BaseException as error:  # of a partitioner, which Ctrl-C may interrupt
                    interrupt = None if isinstance(error, Exception) else error
                    cause = error if isinstance(error, KafkaError) else UsageError(f"{messages.topic}: {error!r}")
                    self._fail_messages(messages, cause)
                else:
                    self._append_messages(messages, prepared, refused)
        if interrupt is not None:
            raise interrupt

    def _append_messages(
        self, messages: TopicMessages, prepared: _Prepared | None, refused: Mapping[int, KafkaError]
    ) -> None:
        if refused:
            futures = messages.futures
            refused_messages = self._unplaced(messages.topic, [futures[row] for row in refused])
            self._fail_unplaced(refused_messages, list(refused.values()))
        if prepared is not None:
            self._begin(prepared[-1])
            self._hand_over(partial(self._accumulator.append, messages.topic, *prepared))
        self._end_messages(messages)

    def _end_messages(self, messages: TopicMessages) -> None:
        """Forget messages whose futures belong to `SentColumns` now."""
        self._pending.end_call(messages)
        self._pending.hold(-messages.size_bytes)

    def _begin(self, sent: SentColumns) -> None:
        sent.on_done = self._pending.end_call
        self._pending.begin_call(sent)

    def _prepare(self, messages: TopicMessages) -> tuple[_Prepared | None, dict[int, KafkaError]]:
        """Convert messages to arguments of `Accumulator.append`; return also the errors of those not to be sent."""
        rows = record_columns(messages.columns(), self._clock.wall_ms())
        sizes = record_sizes(rows)
        # `send` has looked the topic up. A deleted topic must not delay messages of other topics here.
        metadata, futures = self.choice.cached_topic(messages.topic), messages.futures
        chosen, refused = self.choice.choose_each(metadata, rows, sizes, messages.partitions())
        refused |= too_large_errors(messages.topic, sizes, self._config.max_request_size_bytes, with_row_number=False)
        if refused:
            sent_rows = np.delete(np.arange(rows.num_rows), list(refused))
            futures = [futures[row] for row in sent_rows.tolist()]
            rows, sizes, _ = _select_rows(sent_rows, rows, sizes, None)
            chosen = chosen[sent_rows]
        if not futures:
            return None, refused
        sent = SentColumns(messages.topic, chosen, to_numpy(rows.column("timestamp_ms")), futures=futures)
        self._record_sizes(sizes)
        return (rows, chosen, sizes, messages.oldest_s, sent), refused

    def _hand_over(self, take: Callable[[], Sequence[ReadyBatches]], *, wait: bool = False) -> BaseException | None:
        """Encode the record batches that `take` removes from the accumulator, and pass them to the sender.

        `wait`: wait for memory between them. The error may then be Ctrl-C, and must be raised.

        Returns the error of the encoding or of the wait, such as Ctrl-C: all rows that were not handed over have failed
        with it, those of earlier calls, too. None if all were handed over, or have failed because the producer is
        closed or its transaction aborted. Other callers may ignore it: the results of these rows tell it.
        """
        if self._pending.refused_because is not None:
            return None  # `PendingRows.fail_all` fails all rows; the accumulator may be inconsistent
        with self._stopping_on_errors():
            before_bytes, raised = self._accumulator.waiting_bytes, None
            ready = deque(take())
            taken_bytes = sum(rows_of_batches.held_bytes for rows_of_batches in ready)
            self._pending.hold(self._accumulator.waiting_bytes + taken_bytes - before_bytes)
            while ready and raised is None:
                if (refusal := self._refusal(wait)) is not None:
                    self._fail_rows(ready, refusal)
                    break
                try:
                    batches = self._encoded(ready[0])
                    more_bytes = sum(batch.size_bytes for batch in batches) - ready[0].held_bytes
                    if wait and not self._fits(more_bytes):
                        self._wait_for_room(partial(self._fits, more_bytes), _FOREVER_S, despite_failures=True)
                except BaseException as error:
                    raised = error
                else:
                    self._sender.put(batches, ready.popleft().held_bytes)
            if raised is not None:
                topic = ready[0].batch_slices[0].topic
                cause = UsageError(f"rows of {topic} were not sent because of another error: {raised!r}")
                self._fail_rows(ready, cause)
        return raised

    def _encoded(self, ready: ReadyBatches) -> list[ProducerBatch]:
        records = self.encode(ready.rows(), [batch.count for batch in ready.batch_slices], ready.order)
        now_s = self._clock.now_s()
        return [
            ProducerBatch(
                batch.topic,
                batch.partition,
                encoded,
                batch.count,
                min(now_s, batch.since_s + self._linger_s),
                batch.sent,
                compression_ratio=len(encoded) / batch.size_bytes,
            )
            for batch, encoded in zip(ready.batch_slices, records, strict=True)
        ]

    # -- failures ---------------------------------------------------------------------------

    def _fail_rows(self, ready: Collection[ReadyBatches], error: KafkaError) -> None:
        """Fail rows in one `put`: the sender then reports them together, and `flush` raises their error once."""
        slices = [batch_slice for rows_of_batches in ready for batch_slice in rows_of_batches.batch_slices]
        self._sender.put(
            [self._failed(part.topic, part.partition, part.count, part.sent, error) for part in slices],
            sum(rows_of_batches.held_bytes for rows_of_batches in ready),
        )

    def _fail_messages(self, messages: TopicMessages, error: KafkaError) -> None:
        sent = self._unplaced(messages.topic, messages.futures)
        self._fail_unplaced(sent, [error], len(messages.pairs))
        self._end_messages(messages)

    def _fail_unplaced(self, sent: SentColumns, errors: Sequence[KafkaError], rows: int = 1) -> None:
        """Fail the rows without a partition; each error fails `rows` of them, and `flush` raises the first."""
        self._sender.put(
            [
                self._failed(sent.topic, NO_PARTITION, rows, (SentRows(sent, nth * rows, rows),), error)
                for nth, error in enumerate(errors)
            ]
        )
        self._pending.failed(errors[0], [sent])

    def _unplaced(self, topic: str, futures: Sequence[Future[RecordMetadata]]) -> SentColumns:
        count = len(futures)
        sent = SentColumns(topic, np.full(count, NO_PARTITION, np.int32), np.zeros(count, np.int64), futures=futures)
        self._begin(sent)
        return sent

    def _failed(
        self, topic: str, partition: int, rows: int, sent: Sequence[SentRows], error: KafkaError
    ) -> ProducerBatch:
        """Return a batch with which the sender fails rows: callbacks of users must not run within the lock."""
        result = BatchResult(error=error)
        return ProducerBatch(topic, partition, bytearray(), rows, self._clock.now_s(), sent, result=result)

    def _fits(self, size_bytes: int) -> bool:
        """Return True if a call may go on: its bytes fit, or it is refused."""
        return self._pending.has_room(size_bytes, columns=True) or self._refusal(True) is not None

    def _refusal(self, wait: bool) -> KafkaError | None:
        refusals = list(self._refusals) if wait else []
        return self._pending.refused_because or (refusals[-1] if refusals else None)


def _select_rows(
    row_numbers: npt.NDArray[np.int64],
    rows: pa.RecordBatch,
    sizes: npt.NDArray[np.int64],
    partitions: pa.Int32Array | None,
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], pa.Int32Array | None]:
    """Select rows by number."""
    indexes = to_arrow(row_numbers)
    return rows.take(indexes), sizes[row_numbers], None if partitions is None else partitions.take(indexes)
