"""One partition of a `Consumer`, read as Arrow batches or as single messages.

sarama's `PartitionConsumer`, with a queue of two replies (`fetch_buffer`) instead of a channel: the next reply arrives
while one is read. The consumer's threads add replies; the reader's thread decodes them. One thread reads a stream at a
time; any thread may call `pause`, `seek`, `close` and the properties.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Condition, Lock
from protocol.checked_values import checked_offset
from protocol.errors import KafkaError, ProtocolError, TopicRecreated
from protocol.fetch.fetch_buffer import FetchBuffer, ReplyBatches
from protocol.metrics.client_sensors import ClientSensors
from protocol.position import Position, RecordPositions

log = logging.getLogger(__name__)

# An unlimited wait still checks at this interval if brokers have failed for too long.
_MAX_WAIT_S = 1.0


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


class _Undelivered:
    """Rows of record batches that `messages` has not returned yet: the next read continues with them.

    One thread reads; any thread may ask for the position, or drop the rows.

    `dropped`: True if rows were dropped since the last batch was read.
    """

    def __init__(self) -> None:
        self.dropped = False
        # Batches with rows, and the next row in the first one. Each change is a new object.
        self._state: tuple[list[pa.RecordBatch], int] = ([], 0)

    @property
    def position(self) -> int | None:
        """Return the offset of the next row; None if there is none."""
        batches, row = self._state
        return int(batches[0]["offset"][row].as_py()) if batches else None

    def put_first(self, batch: pa.RecordBatch) -> None:
        """Put a batch in front, so that it is read next."""
        batches, row = self._state
        undelivered = [batches[0].slice(row), *batches[1:]] if batches else []
        self._state = ([batch, *undelivered] if batch.num_rows else undelivered, 0)

    def drop(self) -> None:
        """Forget the rows, also in a running iteration of `messages`."""
        self._state = ([], 0)
        self.dropped = True

    def pop(self, max_rows: int | None) -> pa.RecordBatch | None:
        """Return rows of one batch, at most `max_rows`; None if there are none."""
        batches, row = self._state
        if not batches:
            return None
        batch = batches[0].slice(row, max_rows)
        self._state = _after(batches, row + batch.num_rows)
        return batch

    def messages(self, topic: str, partition: int) -> Iterator[ConsumerMessage]:
        """Yield the records of the first batch."""
        batches, first = state = self._state
        if not batches:
            return
        for row, message in enumerate(messages_of(topic, partition, batches[0].slice(first)), first + 1):
            if self._state is not state:  # dropped, or another read has continued
                return
            before, state = state, _after(batches, row)
            try:
                self._state = state
                yield message
            except GeneratorExit:  # the caller has broken off after this record
                raise
            except BaseException:  # Ctrl-C: the caller may not have got it
                self._state = before if self._state is state else self._state
                raise


def _after(batches: list[pa.RecordBatch], row: int) -> tuple[list[pa.RecordBatch], int]:
    return (batches, row) if row < batches[0].num_rows else (batches[1:], 0)


class PartitionConsumer:
    """The records of one partition from an offset on; created by `Consumer.consume_partition`.

    Iteration yields `pyarrow.RecordBatch`es without end, with the consumer's columns (`offset` always).

    Thread rule: one thread reads at a time. Any thread may call `pause`, `resume`, `seek`, `close` and the properties.

    Notes
    -----
    Reads raise `DataLoss`, and `Corrupt` for records that cannot be decoded, each time until `seek` sets the position.
    Any other broker error (a missing ACL) is raised once; the next read fetches again after `retry.backoff.ms`. After
    brokers have failed for `default.api.timeout.ms`, reads raise `DeadlineExceeded`, and fetching continues.
    """

    # `lock` guards `buffer`, which the consumer's threads fill. Under it are called: `on_read`, before a queued reply
    # becomes the one being read or is dropped; `on_change`, after a method of `buffer` that may give a thread work
    # (`fetch_buffer` lists them). Properties read single fields without the lock.
    def __init__(
        self,
        buffer: FetchBuffer,
        lock: Lock,
        clock: Clock,
        *,
        read_committed: bool,
        on_read: Callable[[FetchBuffer], None],
        on_change: Callable[[FetchBuffer], None],
        sensors: ClientSensors | None = None,
    ) -> None:
        self.topic = buffer.source.topic
        self.partition = buffer.source.partition
        self.buffer = buffer
        self._lock = lock
        self._arrival = Condition(lock)
        self._clock = clock
        self._read_committed = read_committed
        self._on_read = on_read
        self._on_change = on_change
        self._undelivered = _Undelivered()
        self._sensors = sensors or ClientSensors()
        self._consumed = self._sensors.consumed[self.topic]
        # For metrics: bytes of replies that are not recorded yet; records delivered from the reply being read.
        self._begun_bytes = self._reply_records = 0

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
        """Yield the records one by one as Python objects: convenient, but slow for many records.

        If the iteration is broken off, the next read continues after its last record.
        """
        while (
            self._has_undelivered or self._next_batch(timeout_ms, None, keep=True) is not None or self._has_undelivered
        ):
            yield from self._undelivered.messages(self.topic, self.partition)

    def messages_of(self, batch: pa.RecordBatch) -> Iterator[ConsumerMessage]:
        """Yield the records of a batch that `poll` has just returned, as `messages` does.

        Yields none if another thread has called `seek` or `close` since.
        """
        with self._lock:
            if self._undelivered.dropped:
                return iter(())
            self._undelivered.put_first(batch)
        return self._undelivered.messages(self.topic, self.partition)

    def poll(self, timeout_ms: float | None = None, max_rows: int | None = None) -> pa.RecordBatch | None:
        """Return the next record batch; None after `timeout_ms` (None: no limit) or if the stream is closed.

        A record batch with more than `max_rows` rows is cut; the next read continues after it.
        """
        return self._undelivered.pop(max_rows) if self._has_undelivered else self._next_batch(timeout_ms, max_rows)

    def _next_batch(
        self, timeout_ms: float | None, max_rows: int | None, *, keep: bool = False
    ) -> pa.RecordBatch | None:
        """Return the next record batch as `poll` does; with `keep` its rows are unread."""
        deadline = Deadline.after_ms(float("inf") if timeout_ms is None else timeout_ms, self._clock)
        while (batches := self._await_reply(deadline)) is not None:
            if (batch := self._next_decoded(batches, max_rows, keep=keep)) is not None:
                return batch
        # After `resume`, unread rows come first.
        return self._undelivered.pop(max_rows) if self._has_undelivered and not keep else None

    def poll_reply(self, max_rows: int | None = None) -> pa.RecordBatch | None:
        """Return the next record batch of the current reply, without waiting; None at its end or without a reply."""
        if self._has_undelivered:
            return self._undelivered.pop(max_rows)
        with self._lock:
            batches = self._begin_reply()
        return None if batches is None else self._next_decoded(batches, max_rows)

    def _await_reply(self, deadline: Deadline) -> ReplyBatches | None:
        """Return the rest of the current reply, or the next one to arrive; None if none arrives in time."""
        buffer = self.buffer
        with self._lock:
            while (batches := self._begin_reply()) is None and not (buffer.closed or self._has_undelivered):
                if buffer.begin_wait():
                    self._on_change(buffer)
                remaining_s = deadline.remaining_s()
                if remaining_s <= 0:
                    return None
                self._arrival.wait(min(remaining_s, _MAX_WAIT_S))
        return batches

    @property
    def _has_undelivered(self) -> bool:
        return self._undelivered.position is not None and not self.buffer.paused

    def _begin_reply(self) -> ReplyBatches | None:
        buffer = self.buffer
        if buffer.paused or buffer.closed or self._undelivered.position is not None:  # unread rows come first
            return None
        if buffer.expired:
            buffer.revive()
            self._on_change(buffer)
        if buffer.reply_batches is not None:
            return buffer.reply_batches
        if buffer.ahead:
            self._on_read(buffer)
            self._begun_bytes += buffer.ahead[0].record_bytes
            self._reply_records = 0
            return buffer.begin_next()
        if (error := buffer.next_error()) is not None:
            if buffer.error is not error:
                self._on_change(buffer)
            raise error.with_traceback(None)  # each raise would add its frames to the traceback
        return None

    def _next_decoded(
        self, batches: ReplyBatches, max_rows: int | None, *, keep: bool = False
    ) -> pa.RecordBatch | None:
        buffer = self.buffer
        before = buffer.position
        try:
            batch = batches.next(max_rows)
            with self._lock:
                if keep and batch is not None:  # before: `position` takes no lock
                    self._undelivered.put_first(batch)
                if not buffer.advance(batches, batch):
                    self._undelivered.drop()
                    return None  # seek, close, or a copy by a pause, which the next read decodes again
                self._undelivered.dropped = False
            self._count(batch, buffer.unread_since_s)
        except BaseException as error:
            with self._lock:
                if not buffer.is_reading(batches):
                    if isinstance(error, ProtocolError):
                        return None
                elif isinstance(error, ProtocolError):
                    self._on_read(buffer)
                    buffer.stop_at_undecodable(error)
                else:
                    # A signal handler has raised, such as Ctrl-C, which ends the decoding generator. The next read
                    # decodes this reply again.
                    self._undelivered.drop()
                    buffer.restart(before)
            raise
        return batch

    def _count(self, batch: pa.RecordBatch | None, now_s: float) -> None:
        """Record the delivery of a batch, or with None the end of a reply."""
        if batch is not None:
            self._consumed.record((now_s, batch.num_rows, self._begun_bytes))
            self._reply_records += batch.num_rows
            self._begun_bytes = 0
            return
        self._sensors.partition_replies.record((now_s, self._reply_records))
        if (lag := self.lag) is not None:
            self._sensors.lag.record((now_s, lag))

    # -- control ------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop reading and fetching until `resume`; fetched records are kept."""
        with self._lock:
            if self.buffer.pause():
                log.debug(
                    "%s: paused at offset %d, fetched from %s", self.name, self.position, self.buffer.source.broker
                )
                self._on_change(self.buffer)

    def resume(self) -> None:
        """Continue after `pause`. No effect if not paused."""
        with self._lock:
            if self.buffer.resume():
                log.debug("%s: resumed at offset %d", self.name, self.position)
                self._arrival.notify_all()
                self._on_change(self.buffer)

    def seek(self, to: int | Position) -> None:
        """Continue at an offset, or at the first record after it. Clears an error.

        Parameters
        ----------
        to : int or Position
            After `TopicRecreated`, an offset of the new topic. `list_offsets` returns the earliest and latest offsets.
            With the leader epoch of a position, the reader notices that the log was truncated below it (KIP-320).

        Raises
        ------
        UsageError
            The offset is not a number that Kafka can store.
        """
        position = to if isinstance(to, Position) else Position(checked_offset(to, f"{self.name}: "))
        with self._lock:
            self._undelivered.drop()
            self.buffer.seek(position)
            self._on_change(self.buffer)

    def close(self) -> None:
        """Stop reading; iterations end, and fetched records are dropped."""
        with self._lock:
            self._undelivered.drop()
            self.buffer.close()
            self._arrival.notify_all()
            self._on_change(self.buffer)

    def wake(self) -> None:
        """Wake the reader: a reply or an error is in the buffer. Called by the consumer's threads under the lock."""
        self._arrival.notify_all()

    # -- state --------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Offset of the next record to deliver; may point at a compacted or control offset before it."""
        undelivered = self._undelivered.position
        return self.buffer.position.offset if undelivered is None else undelivered

    @property
    def committable(self) -> Position:
        """The position to commit: `position` with its leader epoch, and the id of the topic that is read."""
        undelivered = self._undelivered.position  # in the reply read last
        position = self.buffer.position if undelivered is None else self.buffer.records.at(undelivered)
        return position.assumed_in(self.topic_id)

    @property
    def records(self) -> RecordPositions:
        """Positions in the last batch, for the thread that reads."""
        return self.buffer.records

    @property
    def topic_id(self) -> bytes:
        """Id of the topic that is read, 16 bytes; zeros if unknown."""
        return self.buffer.source.topic_id

    @property
    def recreated(self) -> bool:
        """True if the topic is known to be recreated, and `position` still belongs to the deleted one."""
        return isinstance(self.buffer.error, TopicRecreated)

    @property
    def paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self.buffer.paused

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self.buffer.closed

    @property
    def expired(self) -> bool:
        """True if not read for `max.processing.time.ms`; the partition is not fetched until the next read."""
        return self.buffer.expired

    @property
    def high_water_mark(self) -> int:
        """Offset after the last fully replicated record, from the last reply; -1 before the first."""
        return self.buffer.source.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset of the first open transaction, or the high watermark; -1 before the first reply."""
        return self.buffer.source.last_stable_offset

    @property
    def failure(self) -> KafkaError | None:
        """The error that currently prevents fetching, or None."""
        return self.buffer.error or self.buffer.source.failure

    @property
    def lag(self) -> int | None:
        """Number of offsets from `position` to the high watermark; None before the first reply.

        With `read_committed` to the last stable offset.
        """
        end = self.last_stable_offset if self._read_committed else self.high_water_mark
        return None if end < 0 else max(0, end - self.position)
