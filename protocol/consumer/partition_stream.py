"""What a user reads from: one partition of a `Consumer`, as Arrow batches or as single messages.

sarama's `PartitionConsumer` as its user sees it, with a queue of two replies in place of a channel: while one is read
the next one comes. The consumer's threads put replies in; they are decoded here, in the user's thread. One thread
reads a stream at a time; everything else (`pause`, `seek`, `close`, the properties) may be called from any.
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
from protocol.consumer.partition_consumer import Fetched, PartitionConsumer
from protocol.errors import DeadlineExceeded, KafkaError, TopicRecreated, UsageError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_REPLICA

# A wait without an end still looks from time to time whether brokers have been failing for too long.
_LONGEST_WAIT_S = 1.0
_REPLIES_AHEAD = 2


class ConsumerMessage(NamedTuple):
    """One record. A column that the consumer was not asked for is None."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def messages_of(topic: str, partition: int, batch: pa.RecordBatch) -> Iterator[ConsumerMessage]:
    """The records of a batch, one by one. Makes Python objects: for convenience, not for many records."""
    nothing = [None] * batch.num_rows
    names = ConsumerMessage._fields[2:]
    columns = [batch[name].to_pylist() if name in batch.schema.names else nothing for name in names]
    for *row, headers in zip(*columns, strict=True):
        pairs = None if headers is None else [(header["key"], header["value"]) for header in headers]
        yield ConsumerMessage._make([topic, partition, *row, pairs])


class PartitionStream:
    """The records of one partition from some offset on; made by `Consumer.consume_partition`.

    Iterating yields `pyarrow.RecordBatch`es (columns of `protocol.records.decode`, `offset` always among them) for
    ever. `DataLoss`, and `Corrupt` for records that cannot be decoded, are raised to the reader every time until `seek`
    says where to continue. Any other error of a broker (a missing ACL) is raised once; the next read makes the stream
    fetch again after `retry.backoff.ms`. Brokers that fail for longer than `default.api.timeout.ms` raise
    `DeadlineExceeded`; the stream keeps fetching meanwhile.

    Attributes
    ----------
    position : offset of the next record that the user gets, or of one before it that is not there.
    last_epoch : leader epoch of the last record before `position`, -1 if unknown.
    expired : the user did not read for `max.processing.time.ms`, so it is left out of the fetches until the next read.
    wanted : the user has asked and got nothing, since the last reply.
    """

    def __init__(
        self,
        partition: PartitionConsumer,
        lock: threading.RLock,
        clock: Clock,
        *,
        patience_s: float,
        read_committed: bool,
        decode: Callable[[Fetched, str], Iterator[pa.RecordBatch]],
        on_read: Callable[[PartitionStream], None],
        on_change: Callable[[PartitionStream], None],
    ) -> None:
        self.topic = partition.topic
        self.partition = partition.partition
        self.position = partition.position
        self.last_epoch = partition.last_epoch
        self.expired = False
        self._lock = lock
        self._arrival = Condition(lock)
        self._clock = clock
        # Stands while nobody is asked, since the user is away.
        self._user_clock = PausableClock(clock)
        self._failing_since_s = 0.0
        self._patience_s = patience_s
        self._read_committed = read_committed
        self._decode = decode
        self._on_read = on_read
        self._on_change = on_change
        self._seeks = 0
        # The reply that is read, and what is left of it; both or neither.
        self._reading: Fetched | None = None
        self._batches: Iterator[pa.RecordBatch] | None = None
        # Between the user's side and the consumer's threads, guarded by the lock. A new PartitionConsumer, after a
        # seek, makes what is on its way for the old one nobody's.
        self.source = partition
        self.ahead: deque[Fetched] = deque()
        self.unread_since_s = 0.0
        self.wanted = False
        self.paused = False
        self.closed = False
        self.error: KafkaError | None = None
        # The error is raised once, and then the partition is fetched again after a back-off.
        self._retry = False
        self._was_raised = False

    def __repr__(self) -> str:
        return f"<PartitionStream {self.name} at offset {self.position}>"

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    # -- reading ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.batches()

    def batches(self, timeout_ms: float | None = None) -> Iterator[pa.RecordBatch]:
        """Yield record batches of some thousand rows, until none comes for `timeout_ms` or the stream is closed.

        Without `timeout_ms`, and on a topic that producers write to all the time, the iteration does not end:
        compare `position` with an end offset, or call `protocol.read`.
        """
        while (batch := self.poll(timeout_ms)) is not None:
            yield batch

    def messages(self, timeout_ms: float | None = None) -> Iterator[ConsumerMessage]:
        """The same, record by record. Makes Python objects: for convenience, not for many records."""
        for batch in self.batches(timeout_ms):
            seeks = self._seeks
            for message in messages_of(self.topic, self.partition, batch):
                if self._seeks != seeks:
                    break
                yield message

    def poll(self, timeout_ms: float | None = None) -> pa.RecordBatch | None:
        """The next record batch; None when none came in time (None: no limit) or the stream is closed."""
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._clock)
        while (batches := self._take(deadline)) is not None:
            if (batch := self._next_decoded(batches)) is not None:
                return batch
        return None

    def poll_reply(self) -> pa.RecordBatch | None:
        """The next record batch of the reply that is read; None at its end, or when there is none yet."""
        with self._lock:
            batches = self._take_what_is_there()
        return None if batches is None else self._next_decoded(batches)

    @property
    def readable(self) -> bool:
        """Whether `poll` would have something to say at once. Under the lock."""
        return not (self.paused or self.closed) and (self.unread or self.error is not None)

    @property
    def unread(self) -> bool:
        """Whether there is something that the user has not read. Under the lock."""
        return self._batches is not None or bool(self.ahead)

    @property
    def full(self) -> bool:
        """Whether the user has to read before more is fetched. Under the lock."""
        return len(self.ahead) >= _REPLIES_AHEAD

    def _take(self, deadline: Deadline) -> Iterator[pa.RecordBatch] | None:
        """The decoding of the reply that is read, or of the next one that comes; None when none came."""
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
            # Last: Ctrl-C may come anywhere, and must not find the reply in neither place.
            self.ahead.popleft()
            return batches
        self._raise_if_failed()
        return None

    def _begin(self, fetched: Fetched) -> Iterator[pa.RecordBatch]:
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
                    return None  # somebody has called seek or close
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
                    # Such as Ctrl-C: the user may read on, but no generator goes on after an exception.
                    self._begin(replace(self._reading, position=before))
            raise
        return batch

    def _refuse(self, error: KafkaError) -> None:
        """What was read cannot be decoded: nothing behind it is given out, neither what is ahead nor on its way."""
        self._on_read(self)
        self._reading = self._batches = None
        self.ahead.clear()
        self.source = self.source.at(self.position)
        self.stop(error)

    @property
    def overdue(self) -> bool:
        """Whether brokers have been failing for too long, and there is nothing to read. Under the lock."""
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

    # -- steering -----------------------------------------------------------------------------

    def pause(self) -> None:
        """Reads nothing and fetches nothing until `resume`; what has come already is kept."""
        with self._lock:
            if not self.paused:
                self._leave()
                self.paused = True
                self._on_change(self)

    def resume(self) -> None:
        with self._lock:
            if self.paused:
                self.paused = False
                self._arrival.notify_all()
                self.revive()

    def seek(self, offset: int) -> None:
        """The next record is the one at `offset`, or the first after it. Clears an error.

        After `TopicRecreated` was raised, `offset` is one of the new topic. For the earliest or latest offset ask
        `list_offsets`. Raises `UsageError` for a negative offset.
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
        """Stops reading; iterations end. What was fetched is dropped."""
        with self._lock:
            self.closed = True
            self.source = self.source.at(self.position)
            self._reading = self._batches = None
            self.ahead.clear()
            self._arrival.notify_all()
            self._on_change(self)

    # -- what is known ------------------------------------------------------------------------

    @property
    def high_water_mark(self) -> int:
        """The offset after the last record that is replicated, as of the last reply; -1 before the first."""
        return self.source.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where the first open transaction begins, else the high-water mark; -1 before the first reply."""
        return self.source.last_stable_offset

    @property
    def failure(self) -> KafkaError | None:
        """What keeps the brokers from answering just now; None when all is well."""
        return self.error or self.source.failure

    @property
    def lag(self) -> int | None:
        """How many offsets `position` is behind what can be read: the high-water mark, with `read_committed` the last
        stable offset; None before the first reply.
        """
        end = self.last_stable_offset if self._read_committed else self.high_water_mark
        return None if end < 0 else max(0, end - self.position)

    # -- the consumer's threads, under the lock -----------------------------------------------

    def put(self, fetched: Fetched, now_s: float) -> None:
        if not self.unread:
            self.unread_since_s = now_s
        self.ahead.append(_on_its_own(fetched) if self.paused or self.expired else fetched)
        self.wanted = False
        self._arrival.notify_all()

    def postpone(self, error: KafkaError, now_s: float) -> None:
        """A failure that may pass: whom to ask is looked up again."""
        if self.source.failure is None:
            self._failing_since_s = self._user_clock.now_s()
        self.source.postpone(error, now_s)

    def expire(self) -> None:
        """The user takes too long. With something ahead, nothing is fetched for it any more."""
        self._leave()
        self.expired = bool(self.ahead)
        if self.expired:
            self._on_change(self)
        else:
            self._user_clock.resume()

    def revive(self) -> None:
        """The user is back. While nobody asked for it, no broker failed it."""
        self.expired = False
        self.unread_since_s = self._clock.now_s()
        self._user_clock.resume()
        self._on_change(self)

    def _leave(self) -> None:
        """What may lie for long gets a copy of its bytes: as a view it keeps what came with it for other partitions."""
        self._user_clock.pause()
        self.wanted = False
        self.ahead = deque(map(_on_its_own, self.ahead))
        if self._reading is not None:
            own = _on_its_own(self._reading)
            if own is not self._reading:
                self._begin(replace(own, position=self.position))

    def leave_broker(self) -> None:
        """Whom to ask is looked up anew."""
        self.source.broker, self.source.preferred_replica = None, NO_REPLICA
        self._on_change(self)

    def drop_ahead(self) -> None:
        """Gives back the memory of what nobody has read; it will be fetched again, and what came behind it, an error,
        will be told again."""
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


def _on_its_own(fetched: Fetched) -> Fetched:
    view = fetched.records.buffer
    if view.nbytes == memoryview(view.obj).nbytes:
        return fetched
    return replace(fetched, records=replace(fetched.records, buffer=memoryview(bytes(view))))
