"""Fetched replies of one open partition, on their way from the broker to the reader. Sans-IO.

`partition_fetcher` adds replies and failures, `partition_consumer` takes them, and `fetch_schedule` reads the state to
decide the next fetch. All hold the lock of `PartitionFetcher`. Only its own methods set a buffer's fields.

Methods wake no thread. The caller calls `PartitionFetcher.on_change` after `pause`, `resume`, `seek`, `close`,
`revive`, `begin_wait`, `expire` and `drop_ahead`, and after a `next_error` that has removed the error; `on_read` before
`begin_next` and `stop_at_undecodable`, since `on_read` must see the buffer still full; `PartitionConsumer.wake` after
`put` and `stop`. Only `FetchSchedule.put`, which counts the memory, calls `put`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa

from protocol.base.clock import Clock, PausableClock
from protocol.errors import DeadlineExceeded, KafkaError, TopicRecreated
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.position import Position, RecordPositions

_REPLIES_AHEAD = 2

Decode = Callable[[CompletedFetch, str], Iterator[pa.RecordBatch]]


class ReplyBatches:
    """The record batches of a reply, cut to the rows that each read takes."""

    def __init__(self, decoded: Iterator[pa.RecordBatch]) -> None:
        self._decoded = decoded
        self._cut_batch: pa.RecordBatch | None = None

    def next(self, max_rows: int | None = None) -> pa.RecordBatch | None:
        """Return the next record batch, with at most `max_rows`; None at the end. The next call continues after it."""
        batch, self._cut_batch = self._cut_batch, None
        if batch is None:
            batch = next(self._decoded, None)
        if batch is not None and max_rows is not None and batch.num_rows > max_rows:
            batch, self._cut_batch = batch.slice(0, max_rows), batch.slice(max_rows)
        return batch


class FetchBuffer:
    """A queue of two undecoded replies, the reply being read, and the state of the reader and of the fetches.

    `failure_timeout_s`: raise an error to the reader after brokers have failed for this time.
    `decode`: returns the record batches of a reply; the second argument is the partition's name for messages.
    `source`: a seek replaces it, so that late replies for the old position are dropped.
    `position`: the next record to deliver.
    `records`: positions in the reply being read, or read last.
    `ahead`: replies behind the one being read.
    `reply_batches`: the remaining record batches of the reply being read.
    `unread_since_s`: time of the last read, or of the first reply since the reader had read everything.
    `reader_waits`: True if a read has returned nothing since the last reply.
    `expired`: True if the reader has not read for `max.processing.time.ms`; the partition is not fetched until the next
    read.
    `error`: raised to the reader behind the replies; until then, or until a seek, the partition is not fetched.
    """

    def __init__(self, source: FetchPosition, clock: Clock, *, failure_timeout_s: float, decode: Decode) -> None:
        self.source = source
        self.position = source.position
        self.records = RecordPositions(source.position)
        self.ahead: deque[CompletedFetch] = deque()
        self.reply_batches: ReplyBatches | None = None
        self.unread_since_s = 0.0
        self.reader_waits = False
        self.paused = False
        self.closed = False
        self.expired = False
        self.error: KafkaError | None = None
        self._clock = clock
        # Paused while the partition is paused or expired, since it is not fetched then.
        self._user_clock = PausableClock(clock)
        self._failing_since_s = 0.0
        self._failure_timeout_s = failure_timeout_s
        self._decode = decode
        # The reply of `reply_batches`; both or neither is None.
        self._reply: CompletedFetch | None = None
        # True to raise the error once, then fetch the partition again after a back-off.
        self._raise_once = False
        self._was_raised = False

    @property
    def name(self) -> str:
        """Topic and partition for messages."""
        return self.source.name

    @property
    def readable(self) -> bool:
        """True if a read would return or raise at once."""
        return not (self.paused or self.closed) and (self.has_replies or self.error is not None)

    @property
    def has_replies(self) -> bool:
        """True if a reply is queued or being read."""
        return self.reply_batches is not None or bool(self.ahead)

    @property
    def full(self) -> bool:
        """True if the next reply is fetched only after a read."""
        return len(self.ahead) >= _REPLIES_AHEAD

    @property
    def overdue(self) -> bool:
        """True if brokers have failed for too long and nothing is left to read."""
        failing = self.source.failure is not None and not (self.has_replies or self.error or self.paused or self.closed)
        return failing and self._user_clock.now_s() - self._failing_since_s > self._failure_timeout_s

    # -- reading ------------------------------------------------------------------------------

    def begin_wait(self) -> bool:
        """Record that a read has returned nothing. Return False if already recorded, or if paused."""
        if self.reader_waits or self.paused:
            return False
        self.reader_waits = True
        return True

    def begin_next(self) -> ReplyBatches:
        """Start with the next reply of `ahead`."""
        batches = self._begin(self.ahead[0])
        # Last: Ctrl-C may interrupt anywhere, and the reply must always be in one of the two places.
        self.ahead.popleft()
        return batches

    def _begin(self, fetched: CompletedFetch) -> ReplyBatches:
        self.position = fetched.start
        self.unread_since_s = self._clock.now_s()
        self.records = fetched.positions()
        self._reply, self.reply_batches = fetched, ReplyBatches(self._decode(fetched, self.name))
        return self.reply_batches

    def is_reading(self, batches: ReplyBatches) -> bool:
        """Return True if `batches` is still the reply being read, see `advance`."""
        return self.reply_batches is batches and self._reply is not None

    def advance(self, batches: ReplyBatches, batch: pa.RecordBatch | None) -> bool:
        """Move `position` behind a batch, or with None behind the whole reply.

        Returns False if another thread has replaced the reply, so that the caller must drop the batch: by a seek or
        close, or by a pause or expiry, which may copy the reply; the next read then decodes it again from `position`.
        """
        fetched = self._reply
        if self.reply_batches is not batches or fetched is None:
            return False
        self.unread_since_s = self._clock.now_s()
        if batch is None:
            offset = fetched.next_offset
            self._reply = self.reply_batches = None
        else:
            offset = batch.column("offset")[-1].as_py() + 1
        self.position = self.records.at(offset)
        return True

    def restart(self, position: Position) -> None:
        """Decode the reply being read again, from `position`."""
        assert self._reply is not None
        self._begin(replace(self._reply, start=position))

    def stop_at_undecodable(self, error: KafkaError) -> None:
        """Stop at records that cannot be decoded, and drop everything behind them."""
        error.context = {"topic": self.source.topic, "partition": self.source.partition, **error.context}
        self._reply = self.reply_batches = None
        self.ahead.clear()
        self.source = self.source.at(self.position)
        self.stop(error)
        self._was_raised = True  # by the reader, which calls this

    @property
    def raised_error(self) -> KafkaError | None:
        """An error that a read has raised and that lasts until `seek`."""
        return self.error if self._was_raised and self.readable and not self.has_replies else None

    def next_error(self) -> KafkaError | None:
        """Return the error to raise to a reader that has read everything before it.

        An error of `stop(raise_once=True)` is raised once: this removes it, and the partition is fetched again after a
        back-off.
        """
        if (error := self.error) is not None:
            self._was_raised = True
            if self._raise_once:
                self.error = None
                self._failing_since_s = self._user_clock.now_s()
                self.source.postpone(error, self._clock.now_s())
            return error
        if not self.overdue:
            return None
        self._failing_since_s = self._user_clock.now_s()
        late = DeadlineExceeded(
            f"{self.name}: nothing could be read at offset {self.position.offset} for {self._failure_timeout_s:.0f} s "
            f"and {self.source.attempts} attempt(s); the last one: {self.source.failure}",
            topic=self.source.topic,
            partition=self.source.partition,
        )
        late.__cause__ = self.source.failure
        return late

    def pause(self) -> bool:
        """Stop until `resume`; buffered replies are kept. Return False if paused already."""
        if self.paused:
            return False
        self._detach()
        self.paused = True
        return True

    def resume(self) -> bool:
        """Continue after `pause`. Return False if not paused."""
        if not self.paused:
            return False
        self.paused = False
        self.revive()
        return True

    def seek(self, position: Position) -> None:
        """Continue at `position`, and drop the error. After a raised `TopicRecreated`, it is in the new topic."""
        if isinstance(self.error, TopicRecreated) and self._was_raised:
            # The error has the new topic's id; a broker with old metadata may still report the deleted topic's id.
            position = Position(position.offset, topic_id=self.error.context["topic_id"])
        self.source = self.source.at(position)
        self.position = self.source.position
        self._reply = self.reply_batches = self.error = None
        self.ahead.clear()
        self.expired = False
        if not self.paused:
            self._user_clock.resume()

    def close(self) -> None:
        """Drop all replies, also those in flight."""
        self.closed, self.expired = True, False
        self.source = self.source.at(self.position)
        self._reply = self.reply_batches = None
        self.ahead.clear()

    def revive(self) -> None:
        """Fetch again after `expire` or `pause`. The time without requests does not count as a failure of brokers."""
        self.expired = False
        self.unread_since_s = self._clock.now_s()
        self._user_clock.resume()

    # -- fetching -----------------------------------------------------------------------------

    def put(self, fetched: CompletedFetch, now_s: float) -> None:
        """Queue a reply."""
        if not self.has_replies:
            self.unread_since_s = now_s
        self.ahead.append(_detached(fetched) if self.paused or self.expired else fetched)
        self.reader_waits = False

    def postpone(self, error: KafkaError, now_s: float, *, at_once: bool = False) -> None:
        """Back off after a retriable error unless `at_once`, and resolve the broker again."""
        if self.source.failure is None:
            self._failing_since_s = self._user_clock.now_s()
        self.source.postpone(error, now_s, at_once=at_once)

    def stop(self, error: KafkaError, *, raise_once: bool = False) -> None:
        """Stop fetching, and raise `error` to the reader.

        Each read raises it until `seek`. With `raise_once` one read raises it, and fetching continues after a back-off.
        """
        self.error, self._raise_once, self._was_raised = error, raise_once, False

    def expire(self) -> bool:
        """Stop fetching for a slow reader if replies are queued; return True if so.

        A reader that has only the reply being read is not slow: fetching continues.
        """
        self._detach()
        self.expired = bool(self.ahead)
        if not self.expired:
            self._user_clock.resume()
        return self.expired

    def _detach(self) -> None:
        """Copy the bytes of queued replies: a view keeps the whole frame, with other partitions, in memory."""
        self._user_clock.pause()
        self.reader_waits = False
        self.ahead = deque(map(_detached, self.ahead))
        if self._reply is not None:
            detached = _detached(self._reply)
            if detached is not self._reply:
                self._begin(replace(detached, start=self.position))

    def drop_ahead(self) -> bool:
        """Drop queued replies to free their memory, and the error behind them. Later fetches return both again.

        Returns False if no reply is queued.
        """
        if not self.ahead:
            return False
        self.source = self.source.at(self.ahead[0].start)
        self.ahead.clear()
        self.error = None
        return True


def _detached(fetched: CompletedFetch) -> CompletedFetch:
    view = fetched.records.buffer
    if view.nbytes == memoryview(view.obj).nbytes:
        return fetched
    return replace(fetched, records=replace(fetched.records, buffer=memoryview(bytes(view))))
