"""One partition of a `Consumer`, read as Arrow batches or as single messages.

sarama's `PartitionConsumer`, with a queue of two replies instead of a channel: the next reply
arrives while one is read. The consumer's threads add replies; the reader's thread decodes them. One thread reads a
stream at a time; any thread may call `pause`, `seek`, `close` and the properties.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from protocol.clock import Clock, Deadline, PausableClock
from protocol.condition import Condition
from protocol.consumer.fetch_position import CompletedFetch, FetchPosition
from protocol.errors import DeadlineExceeded, KafkaError, TopicRecreated, UsageError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_REPLICA

# An unlimited wait still checks at this interval if brokers have failed for too long.
_LONGEST_WAIT_S = 1.0
_REPLIES_AHEAD = 2


class ConsumerMessage(NamedTuple):
    """One record. Columns that were not requested are None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def messages_of(topic: str, partition: int, batch: pa.RecordBatch) -> Iterator[ConsumerMessage]:
    """Yield the records of a batch as Python objects: convenient, but slow for many records."""
    nothing = [None] * batch.num_rows
    names = ConsumerMessage._fields[2:]
    columns = [batch[name].to_pylist() if name in batch.schema.names else nothing for name in names]
    for *row, headers in zip(*columns, strict=True):
        pairs = None if headers is None else [(header["key"], header["value"]) for header in headers]
        yield ConsumerMessage._make([topic, partition, *row, pairs])


class PartitionConsumer:
    """The records of one partition from an offset on; created by `Consumer.consume_partition`.

    Iteration yields `pyarrow.RecordBatch`es without end, with the consumer's columns (`offset` always).

    Thread rule: one thread reads at a time. Any thread may call `pause`, `resume`, `seek`, `close` and the properties.

    Attributes
    ----------
    position : int
        Offset of the next record to deliver; may point at a compacted or control offset before it.
    last_epoch : int
        Leader epoch of the last record before `position`, -1 if unknown.
    expired : bool
        True if the stream was not read for `max.processing.time.ms`; it is not fetched until the next read.
    wanted : bool
        True if a read has returned nothing since the last reply.

    Notes
    -----
    Reads raise `DataLoss`, and `Corrupt` for records that cannot be decoded, each time until `seek` sets the position.
    Any other broker error (a missing ACL) is raised once; the next read fetches again after `retry.backoff.ms`. After
    brokers have failed for `default.api.timeout.ms`, reads raise `DeadlineExceeded`, and fetching continues.
    """

    def __init__(
        self,
        partition: FetchPosition,
        lock: threading.RLock,
        clock: Clock,
        *,
        patience_s: float,
        read_committed: bool,
        decode: Callable[[CompletedFetch, str], Iterator[pa.RecordBatch]],
        on_read: Callable[[PartitionConsumer], None],
        on_change: Callable[[PartitionConsumer], None],
    ) -> None:
        self.topic = partition.topic
        self.partition = partition.partition
        self.position = partition.position
        self.last_epoch = partition.last_epoch
        self.expired = False
        self._lock = lock
        self._arrival = Condition(lock)
        self._clock = clock
        # Paused while the reader is away, since the partition is not fetched then.
        self._user_clock = PausableClock(clock)
        self._failing_since_s = 0.0
        self._patience_s = patience_s
        self._read_committed = read_committed
        self._decode = decode
        self._on_read = on_read
        self._on_change = on_change
        self._seeks = 0
        # The reply being read, and the iterator over the rest of it; both or neither is None.
        self._reading: CompletedFetch | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        # Shared between the reader and the consumer's threads, guarded by the lock. A seek replaces `source`, so that
        # late replies for the old position are dropped.
        self.source = partition
        self.ahead: deque[CompletedFetch] = deque()
        self.unread_since_s = 0.0
        self.wanted = False
        self.paused = False
        self.closed = False
        self.error: KafkaError | None = None
        # True to raise the error once, then fetch the partition again after a back-off.
        self._retry = False
        self._was_raised = False

    def __repr__(self) -> str:
        return f"<PartitionConsumer {self.name} at offset {self.position}>"

    @property
    def name(self) -> str:
        """Topic and partition for messages."""
        return f"{self.topic}-{self.partition}"

    # -- reading ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, timeout_ms: float | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some thousand rows, until none arrives for `timeout_ms` or the stream is closed.

        Without `timeout_ms`, iteration over a topic with steady writes does not end: compare `position` with an end
        offset, or call `protocol.read`.
        """
        while (batch := self.poll(timeout_ms)) is not None:
            yield batch

    def messages(self, timeout_ms: float | None = None) -> Iterator[ConsumerMessage]:
        """Yield the records one by one as Python objects: convenient, but slow for many records."""
        for batch in self.batches(timeout_ms):
            seeks = self._seeks
            for message in messages_of(self.topic, self.partition, batch):
                if self._seeks != seeks:
                    break
                yield message

    def poll(self, timeout_ms: float | None = None) -> pa.RecordBatch | None:
        """Return the next record batch; None after `timeout_ms` (None: no limit) or if the stream is closed."""
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._clock)
        while (batches := self._take(deadline)) is not None:
            if (batch := self._next_decoded(batches)) is not None:
                return batch
        return None

    def poll_reply(self) -> pa.RecordBatch | None:
        """Return the next record batch of the current reply, without waiting; None at its end or without a reply."""
        with self._lock:
            batches = self._take_what_is_there()
        return None if batches is None else self._next_decoded(batches)

    @property
    def readable(self) -> bool:
        """True if `poll` would return or raise at once. Call it under the lock."""
        return not (self.paused or self.closed) and (self.unread or self.error is not None)

    @property
    def unread(self) -> bool:
        """True if unread records are queued. Call it under the lock."""
        return self._batches is not None or bool(self.ahead)

    @property
    def full(self) -> bool:
        """True if the next reply is fetched only after a read. Call it under the lock."""
        return len(self.ahead) >= _REPLIES_AHEAD

    def _take(self, deadline: Deadline) -> Iterator[pa.RecordBatch] | None:
        """Return the iterator over the current reply, or over the next one to arrive; None if none arrives in time."""
        with self._lock:
            while (batches := self._take_what_is_there()) is None and not self.closed:
                if not (self.wanted or self.paused):
                    self.wanted = True
                    self._on_change(self)
                remaining_s = deadline.remaining_s()
                if remaining_s <= 0:
                    return None
                self._arrival.wait(min(remaining_s, _LONGEST_WAIT_S))
        return batches

    def _take_what_is_there(self) -> Iterator[pa.RecordBatch] | None:
        if self.paused or self.closed:
            return None
        if self.expired:
            self.revive()
        if self._batches is not None:
            return self._batches
        if self.ahead:
            self._on_read(self)
            batches = self._begin(self.ahead[0])
            # Last: Ctrl-C may interrupt anywhere, and the reply must always be in one of the two places.
            self.ahead.popleft()
            return batches
        self._raise_if_failed()
        return None

    def _begin(self, fetched: CompletedFetch) -> Iterator[pa.RecordBatch]:
        self.position = fetched.position
        self.unread_since_s = self._clock.now_s()
        self._reading, self._batches = fetched, self._decode(fetched, self.name)
        return self._batches

    def _next_decoded(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        before = self.position
        try:
            batch = next(batches, None)
            with self._lock:
                if self._batches is not batches or self._reading is None:
                    return None  # another thread has called seek or close
                self.unread_since_s = self._clock.now_s()
                fetched = self._reading
                if batch is None:
                    self.position = fetched.next_offset
                    self._reading = self._batches = None
                else:
                    self.position = batch.column("offset")[-1].as_py() + 1
                self.last_epoch = fetched.epoch_at(self.position)
        except BaseException as error:
            with self._lock:
                if self._batches is not batches or self._reading is None:
                    if isinstance(error, KafkaError):
                        return None
                elif isinstance(error, KafkaError):
                    self._refuse(error)
                else:
                    # For example Ctrl-C: the reader may continue, but a generator cannot after an exception.
                    self._begin(replace(self._reading, position=before))
            raise
        return batch

    def _refuse(self, error: KafkaError) -> None:
        """Stop at records that cannot be decoded, and drop everything behind them."""
        self._on_read(self)
        self._reading = self._batches = None
        self.ahead.clear()
        self.source = self.source.at(self.position)
        self.stop(error)

    @property
    def overdue(self) -> bool:
        """True if brokers have failed for too long and nothing is left to read. Call it under the lock."""
        failing = self.source.failure is not None and not (self.unread or self.error or self.paused or self.closed)
        return failing and self._user_clock.now_s() - self._failing_since_s > self._patience_s

    def _raise_if_failed(self) -> None:
        if (error := self.error) is not None:
            self._was_raised = True
            if self._retry:
                self.error = None
                self._failing_since_s = self._user_clock.now_s()
                self.source.postpone(error, self._clock.now_s())
                self._on_change(self)
            raise error
        if self.overdue:
            self._failing_since_s = self._user_clock.now_s()
            raise DeadlineExceeded(
                f"{self.name}: nothing could be read at offset {self.position} for {self._patience_s:.0f} s and "
                f"{self.source.attempts} attempt(s); the last one: {self.source.failure}",
                topic=self.topic,
                partition=self.partition,
            ) from self.source.failure

    # -- control ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading and fetching until `resume`; fetched records are kept."""
        with self._lock:
            if not self.paused:
                self._leave()
                self.paused = True
                self._on_change(self)

    def resume(self) -> None:
        """Continue after `pause`. No effect if not paused."""
        with self._lock:
            if self.paused:
                self.paused = False
                self._arrival.notify_all()
                self.revive()

    def seek(self, offset: int) -> None:
        """Continue at `offset`, or at the first record after it. Clears an error.

        Parameters
        ----------
        offset : int
            After `TopicRecreated`, an offset of the new topic. `list_offsets` returns the earliest and latest offsets.

        Raises
        ------
        UsageError
            The offset is negative.
        """
        if offset < 0:
            raise UsageError(f"{self.name}: cannot seek to offset {offset}")
        with self._lock:
            self._seeks += 1
            self.source = self.source.at(offset)
            if isinstance(self.error, TopicRecreated) and self._was_raised:
                self.source.forget_topic()
            self.position, self.last_epoch = offset, NO_LEADER_EPOCH
            self._reading = self._batches = self.error = None
            self.ahead.clear()
            self.expired = False
            if not self.paused:
                self._user_clock.resume()
            self._on_change(self)

    def close(self) -> None:
        """Stop reading; iterations end, and fetched records are dropped."""
        with self._lock:
            self.closed = True
            self.source = self.source.at(self.position)
            self._reading = self._batches = None
            self.ahead.clear()
            self._arrival.notify_all()
            self._on_change(self)

    # -- state --------------------------------------------------------------------------------

    @property
    def high_water_mark(self) -> int:
        """Offset after the last fully replicated record, from the last reply; -1 before the first."""
        return self.source.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset of the first open transaction, or the high watermark; -1 before the first reply."""
        return self.source.last_stable_offset

    @property
    def failure(self) -> KafkaError | None:
        """The error that currently prevents fetching, or None."""
        return self.error or self.source.failure

    @property
    def lag(self) -> int | None:
        """Number of offsets from `position` to the high watermark, or to the last stable offset with `read_committed`;
        None before the first reply.
        """
        end = self.last_stable_offset if self._read_committed else self.high_water_mark
        return None if end < 0 else max(0, end - self.position)

    # -- called by the consumer's threads, under the lock -------------------------------------

    def put(self, fetched: CompletedFetch, now_s: float) -> None:
        """Queue a reply."""
        if not self.unread:
            self.unread_since_s = now_s
        self.ahead.append(_on_its_own(fetched) if self.paused or self.expired else fetched)
        self.wanted = False
        self._arrival.notify_all()

    def postpone(self, error: KafkaError, now_s: float) -> None:
        """Back off after a retriable error, and resolve the broker again."""
        if self.source.failure is None:
            self._failing_since_s = self._user_clock.now_s()
        self.source.postpone(error, now_s)

    def expire(self) -> None:
        """Handle a slow reader: if replies are queued, fetch no more for it."""
        self._leave()
        self.expired = bool(self.ahead)
        if self.expired:
            self._on_change(self)
        else:
            self._user_clock.resume()

    def revive(self) -> None:
        """Handle a read after `expire`. The time without requests does not count as a failure of brokers."""
        self.expired = False
        self.unread_since_s = self._clock.now_s()
        self._user_clock.resume()
        self._on_change(self)

    def _leave(self) -> None:
        """Copy the bytes of queued replies: a view would keep the whole reply, with other partitions, in memory."""
        self._user_clock.pause()
        self.wanted = False
        self.ahead = deque(map(_on_its_own, self.ahead))
        if self._reading is not None:
            own = _on_its_own(self._reading)
            if own is not self._reading:
                self._begin(replace(own, position=self.position))

    def leave_broker(self) -> None:
        """Resolve the broker again."""
        self.source.broker, self.source.preferred_replica = None, NO_REPLICA
        self._on_change(self)

    def drop_ahead(self) -> None:
        """Free the memory of queued replies; they, and an error behind them, will be fetched again."""
        if self.ahead:
            first = self.ahead[0]
            self.source = self.source.at(first.position, first.epoch_before)
            self.ahead.clear()
            self.error = None
            self._on_change(self)

    def stop(self, error: KafkaError, *, retry: bool = False) -> None:
        """Stop fetching, and raise `error` to the reader: until `seek`, or with `retry` once."""
        self.error, self._retry, self._was_raised = error, retry, False
        self._arrival.notify_all()


def _on_its_own(fetched: CompletedFetch) -> CompletedFetch:
    view = fetched.records.buffer
    if view.nbytes == memoryview(view.obj).nbytes:
        return fetched
    return replace(fetched, records=replace(fetched.records, buffer=memoryview(bytes(view))))
