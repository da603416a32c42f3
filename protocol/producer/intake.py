"""Rows and messages in, record batches out: what a producer does with them before they wait for a broker.

Called by `producer` in its callers' threads, and by `sender` in its own for what has waited for `linger.ms`.
Chooses partitions, gathers, encodes, and hands over. One thread at a time, so that the rows of each partition stay in
the order in which they came. The sender never waits for that: when a caller is at it, that one hands over what is due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.clock import Clock
from protocol.config import ProducerConfig
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.kafka_terms import NO_PARTITION
from protocol.producer.accumulator import Accumulator, Gathered
from protocol.producer.delivery import Deliveries, Delivery, Outcome
from protocol.producer.messages import MessageBuffer, Messages
from protocol.producer.partition_choice import GivenPartitions, PartitionChoice
from protocol.producer.partition_producer import Encode, ProducerBatch
from protocol.producer.results import SentColumns, SentMessages
from protocol.producer.too_large import too_large
from protocol.records.arrow_numpy import to_arrow, to_numpy
from protocol.records.encode import record_sizes
from protocol.records.record_columns import record_columns

HandOver = Callable[[list[ProducerBatch]], None]


class Intake:
    """`hand_over` gives record batches to the sender; its thread is the one that calls `hand_over_due`.

    `on_failure` is called with what goes wrong with rows and messages before they are handed over.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        choice: PartitionChoice,
        encode: Encode,
        deliveries: Deliveries,
        hand_over: HandOver,
        on_failure: Callable[[KafkaError], None] = lambda error: None,
    ) -> None:
        # Half of the memory, or callers would wait for what nobody sends.
        self.messages = MessageBuffer(
            min(config.batch_size_bytes, config.buffer_memory_bytes // 2), config.batch_num_messages
        )
        self._config = config
        self._clock = clock
        self._choice = choice
        self._deliveries = deliveries
        self._hand_over_batches = hand_over
        self._on_failure = on_failure
        self._accumulator = Accumulator(config.batch_size_bytes, config.batch_num_messages)
        self._encode = encode
        self._looked_up: set[tuple[str, int | None]] = set()
        # Reentrant, so that a call within a call of the same thread is refused and does not deadlock.
        self._one_at_a_time = threading.RLock()
        self._taken = False
        self._end: KafkaError | None = None

    @property
    def held_bytes(self) -> int:
        """Of all that is not acknowledged yet, about.

        Rows are counted by the next before they no longer are by the one before, and read in that order: what moves
        meanwhile may be counted twice, but never not at all. So who has moved some wakes who waits for room.
        """
        return self.messages.held_bytes + self._accumulator.held_bytes + self._deliveries.held_bytes

    # -- in -----------------------------------------------------------------------------------

    def take_columns(self, topic: str, columns: pa.RecordBatch, given: GivenPartitions | None) -> SentColumns:
        """As `Producer.send_columns`."""
        rows = record_columns(columns, self._clock.wall_ms())
        if not rows.num_rows:
            return SentColumns(topic, np.empty(0, np.int32), np.empty(0, np.int64))
        known, named = self._choice.look_up(topic, rows.num_rows, given)
        sizes, timestamps_ms = record_sizes(rows), to_numpy(rows.column("timestamp_ms"))
        refused = too_large(topic, sizes, self._config.max_request_size_bytes, say_row=True)
        kept = np.delete(np.arange(rows.num_rows), list(refused))
        partitions = np.full(rows.num_rows, NO_PARTITION, np.int32)
        if refused:
            rows, sizes, named = _rows_of(kept, rows, sizes, named)
        self.wait_for_room(int(sizes.sum()), columns=True)
        with self._alone():
            self._raise_if_ended()
            self._take_messages()
            if rows.num_rows:
                partitions[kept] = self._choice.choose(known, rows, sizes, named)
            sent = SentColumns(topic, partitions, timestamps_ms, self._deliveries.was_told)
            for nth, error in enumerate(refused.values()):
                self._on_failure(error)
                sent.settle(NO_PARTITION, nth, 1, Outcome(error=error))
            self._hand_over(self._accumulator.append(topic, rows, partitions[kept], sizes, self._clock.now_s(), sent))
            self._hand_over(self._due(self._clock.now_s()), wait=False)
        self._deliveries.wake()
        self._deliveries.failed(list(refused.values())[:1])
        return sent

    def look_up(self, topic: str, partition: int | None, *, wait: bool) -> None:
        """Once for each topic and partition: whether it is there. Raises as `PartitionChoice.look_up`, or `look_at`."""
        if (topic, partition) not in self._looked_up:
            if wait:
                self._choice.look_up(topic, 1, None if partition is None else np.array([partition], np.int32))
            else:
                self._choice.look_at(topic, partition)
            self._looked_up.add((topic, partition))

    def wait_for_room(self, size_bytes: int, *, columns: bool = False) -> None:
        """Wait while `buffer.memory` is full.

        Columns larger than the memory go on when no delivery holds any of it: these columns may be all there is.

        Raises
        ------
        DeadlineExceeded
            No delivery has ended for `max.block.ms`.
        KafkaError
            Earlier columns could not be written. Only for columns: the futures of messages tell their own failures.
        """
        most = self._config.buffer_memory_bytes

        def fits() -> bool:
            return self.held_bytes + min(size_bytes, most) <= most or (columns and not self._deliveries.held_bytes)

        block_s = self._config.max_block_ms / 1000
        if fits() or self._deliveries.wait_for_room(fits, block_s, despite_failures=not columns):
            return
        raise DeadlineExceeded(
            f"{self.held_bytes} bytes are not acknowledged, buffer.memory is {most}, and nothing was acknowledged for "
            f"{self._config.max_block_ms / 1000:.1f} s (max.block.ms). Nothing of this call was sent",
            settings=("buffer.memory", "max.block.ms"),
        )

    def drain(self) -> None:
        """Hands everything over."""
        with self._alone():
            self._take_messages()
            self._hand_over(self._accumulator.drain(), wait=False)
        self._deliveries.wake()

    def hand_over_due(self) -> float | None:
        """What has waited for `linger.ms`, and all messages that have; when there will be more, None: nobody knows."""
        with self._alone(wait=False) as free:
            if not free:
                return None
            now_s = self._clock.now_s()
            if self._messages_are_due(now_s):
                self._take_messages()
            with suppress(MemoryError):  # its rows have failed, and those of others can still be sent
                self._hand_over(self._due(now_s), wait=False)
            waiting_s = [at_s for at_s in (self._accumulator.oldest_s, self.messages.oldest_s) if at_s is not None]
            return min(waiting_s) + self._linger_s if waiting_s else None

    def close(self, error: KafkaError) -> None:
        """Fails everything that waits, which `flush` tells if nobody else does; takes nothing more, for that reason."""
        self._end = error
        self.messages.close(error)
        if self.discard(error):
            self._deliveries.failed([error])

    def discard(self, error: KafkaError) -> bool:
        """Fails everything that waits. Whether there are rows that do not tell it."""
        with self._alone():
            for messages in self.messages.take():
                _fail(messages, error)
            return _fail_rows(self._accumulator.drain(), error)

    # -- inside, one thread at a time ---------------------------------------------------------

    @contextmanager
    def _alone(self, *, wait: bool = True) -> Iterator[bool]:
        """Exclude other threads; False if one is inside and `wait` is False.

        Raises
        ------
        UsageError
            This thread is inside already: a signal handler, a partitioner or a callback has interrupted it.
        """
        if not self._one_at_a_time.acquire(blocking=wait):
            yield False
            return
        try:
            if self._taken:
                raise UsageError(
                    "this producer takes rows in this thread just now: a signal handler, a partitioner or a callback "
                    "that runs meanwhile must not write, flush or close; set a flag, and do so afterwards"
                )
            self._taken = True
            try:
                yield True
            finally:
                self._taken = False
        finally:
            self._one_at_a_time.release()

    @property
    def _linger_s(self) -> float:
        linger_ms = self._config.linger_ms
        return float("inf") if linger_ms is None else linger_ms / 1000

    def _due(self, now_s: float) -> Iterable[Gathered]:
        """What has waited for long enough; everything when it takes too much of the memory."""
        if self._accumulator.held_bytes > self._config.buffer_memory_bytes // 2:
            return self._accumulator.drain()
        return self._accumulator.waited_since(now_s - self._linger_s)

    def _messages_are_due(self, now_s: float) -> bool:
        oldest_s = self.messages.oldest_s
        return oldest_s is not None and (self.messages.full or now_s >= oldest_s + self._linger_s)

    def _take_messages(self) -> None:
        for messages in self.messages.take():
            try:
                self._gather(messages)
            except Exception as error:
                cause = error if isinstance(error, KafkaError) else UsageError(f"{messages.topic}: {error!r}")
                self._on_failure(cause)
                _fail(messages, cause)

    def _gather(self, messages: Messages) -> None:
        rows = record_columns(messages.columns(), self._clock.wall_ms())
        sizes = record_sizes(rows)
        # It was looked up when it was sent to. Here a topic that is gone must hold up no other.
        known, futures = self._choice.last_seen(messages.topic), messages.futures
        chosen, refused = self._choice.choose_each(known, rows, sizes, messages.partitions())
        refused |= too_large(messages.topic, sizes, self._config.max_request_size_bytes, say_row=False)
        for row, error in refused.items():
            self._on_failure(error)
            futures[row].set_exception(error)
        if refused:
            kept = np.delete(np.arange(rows.num_rows), list(refused))
            futures = [futures[row] for row in kept.tolist()]
            rows, sizes, _ = _rows_of(kept, rows, sizes, None)
            chosen = chosen[kept]
        if not futures:
            return
        messages.futures = futures
        sent = SentMessages(messages.topic, chosen, to_numpy(rows.column("timestamp_ms")), futures)
        self._hand_over(
            self._accumulator.append(messages.topic, rows, chosen, sizes, messages.since_s, sent), wait=False
        )

    def _hand_over(self, gathered: Iterable[Gathered], *, wait: bool = True) -> None:
        """Encodes what is worth a record batch, and gives it to the sender; may `wait` for room in between."""
        most_bytes, left = self._config.buffer_memory_bytes, iter(gathered)
        for together in left:
            try:
                records = self._encode(together.rows, [cut.count for cut in together.cuts], together.order)
                now_s = self._clock.now_s()
                deliveries = [
                    Delivery(cut.topic, cut.partition, len(encoded), cut.count, cut.receipts)
                    for cut, encoded in zip(together.cuts, records, strict=True)
                ]
                if wait:
                    free_bytes = most_bytes + together.held_bytes - sum(each.size_bytes for each in deliveries)
                    self._deliveries.wait_for_room(
                        partial(self._holds_at_most, free_bytes), None, despite_failures=True
                    )
            except BaseException as error:  # such as MemoryError, or Ctrl-C: rows of earlier calls are among them
                topic = together.cuts[0].topic
                cause = UsageError(f"rows of {topic} were not sent, since this came between: {error!r}")
                untold = _fail_rows([together, *left], cause)
                self._on_failure(cause)
                self._deliveries.failed([cause] if untold else [])
                raise
            self._deliveries.begin(deliveries)
            self._hand_over_batches(
                [
                    ProducerBatch(encoded, each.rows_left, now_s, each)
                    for encoded, each in zip(records, deliveries, strict=True)
                ]
            )

    def _holds_at_most(self, size_bytes: int) -> bool:
        return self.held_bytes <= size_bytes or not self._deliveries.held_bytes

    def _raise_if_ended(self) -> None:
        if self._end is not None:
            raise UsageError(str(self._end)) from self._end  # a new one: who raises it adds a traceback


def _rows_of(
    numbers: npt.NDArray[np.int64], rows: pa.RecordBatch, sizes: npt.NDArray[np.int64], named: pa.Int32Array | None
) -> tuple[pa.RecordBatch, npt.NDArray[np.int64], pa.Int32Array | None]:
    """Only these rows."""
    wanted = to_arrow(numbers)
    return rows.take(wanted), sizes[numbers], None if named is None else named.take(wanted)


def _fail_rows(gathered: Iterable[Gathered], error: KafkaError) -> bool:
    """Whether there are rows that do not tell it, so that `flush` must."""
    cuts = [cut for together in gathered for cut in together.cuts]
    failed = [Delivery(cut.topic, cut.partition, 0, cut.count, cut.receipts) for cut in cuts]
    for each in failed:
        each.settle(0, each.rows_left, Outcome(error=error))
    return not all(each.tells_failures for each in failed)


def _fail(messages: Messages, error: KafkaError) -> None:
    for future in messages.futures:
        if not future.done():
            future.set_exception(error)
