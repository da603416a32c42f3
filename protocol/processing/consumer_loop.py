"""The polling thread of one consumer: it passes records to the worker pool, pauses full partitions, and commits."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.condition import Event
from protocol.base.interrupts import deferred, interruptible
from protocol.base.listing import listed
from protocol.consumer.commits import Offsets
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed, DeadlineExceeded, UsageError, WakeUp
from protocol.group.commits.committed_offsets import CommittedOffset, to_commit
from protocol.kafka_terms import TopicPartition
from protocol.position import RecordPositions
from protocol.processing.lanes import LanePartition, Run, split_by_key
from protocol.processing.offset_tracker import OffsetTracker
from protocol.processing.polled_batch import PolledBatch
from protocol.processing.worker_pool import WorkerPool
from protocol.records.arrow_numpy import to_numpy

log = logging.getLogger(__name__)

Order = Literal["key", "partition", "none"]
_Callback = Callable[[Collection[TopicPartition]], None]

_POLL_MS = 100
# While partitions are paused: how soon they are resumed.
_PAUSED_POLL_MS = 10
_ALL_PAUSED_S = 0.005
# A full partition is paused after this wait: a pause costs a copy of what was fetched ahead.
_BEFORE_PAUSE_S = 0.01
# After Ctrl-C: the wait for handlers before the consumer is handed back.
_INTERRUPTED_MS = 50
# Lanes for records without an order that are handled before their partition is released.
_GAP_LANES = 32


@dataclass(frozen=True)
class LoopConfig:
    """Parameters of `Processor` for its polling threads.

    `order`: {"key", "partition", "none"}.
    `lanes`: number of lanes per partition, for the order by key.
    `batch_size`: records per call of the handler; None: single records.
    `max_in_flight`: records read and not committable, over all partitions of a consumer.
    `max_in_flight_bytes`: the same in bytes.
    `drain_timeout_ms`: the longest wait for running handlers in a rebalance and at the end.
    """

    order: Order
    lanes: int
    batch_size: int | None
    max_in_flight: int
    max_in_flight_bytes: int
    drain_timeout_ms: float
    commit_interval_ms: float


@dataclass
class _Assigned:
    """An assigned partition.

    `staged`: the offset of the last commit that has not failed.
    `paused`: paused by the loop.
    `earlier`: the same partition in earlier assignments, with handlers that had not returned in time.
    `turn`: lane of the next record without a key.
    `polled`: batches with unfinished records, and perhaps others.
    """

    lanes: LanePartition = field(default_factory=LanePartition)
    tracker: OffsetTracker = field(default_factory=OffsetTracker)
    staged: CommittedOffset | None = None
    paused: bool = False
    earlier: list[LanePartition] = field(default_factory=list)
    turn: int = 0
    polled: list[PolledBatch] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """True while a handler of an earlier assignment runs: its records come before those of this one."""
        return any(lanes.running for lanes in self.earlier)


class ConsumerLoop:
    """Polls one consumer; for one thread.

    `closing`: set to end `run`.
    `listener`: the user's, called after the loop has handled a rebalance.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        pool: WorkerPool,
        config: LoopConfig,
        closing: Event,
        listener: ConsumerRebalanceListener | None,
    ) -> None:
        self.consumer = consumer
        self.listener = _Listener(self, listener)
        self._pool = pool
        self._config = config
        self._closing = closing
        self._clock = consumer.client.clock
        self._partitions: dict[TopicPartition, _Assigned] = {}
        self._late: dict[TopicPartition, list[LanePartition]] = defaultdict(list)
        self._commit_at_s = 0.0
        # Set by a wait for handlers during which the end began: one time limit for both.
        self._drain_deadline: Deadline | None = None

    def run(self) -> None:
        """Poll until `closing` is set."""
        for key in self.consumer.assignment:  # of a given consumer
            self._partitions.setdefault(key, _Assigned())
        while not self._closing.is_set():
            interruptible(bool)  # there may be no other wait
            timeout_ms = self._wait_for_room()
            try:
                records = self.consumer.poll(timeout_ms)
            except (WakeUp, DeadlineExceeded) as error:
                if error is self.listener.raised:
                    raise
                if isinstance(error, DeadlineExceeded):
                    log.warning("%s", error)
                if not self._closing.is_set():
                    self._drain_deadline = None
                continue
            self._dispatch_all(records)
            self._update_pauses(may_wait=bool(records))
            if self._clock.now_s() >= self._commit_at_s:
                self._commit_at_s = self._clock.now_s() + self._config.commit_interval_ms / 1000
                self._commit()

    def _wait_for_room(self) -> float:
        """Return the timeout of the next poll; wait a little if all partitions are paused."""
        paused = sum(assigned.paused for assigned in self._partitions.values())
        if not paused:
            return _POLL_MS
        if paused < len(self._partitions):
            return _PAUSED_POLL_MS
        self._closing.wait(_ALL_PAUSED_S)
        self._update_pauses()
        return 0

    # -- records ------------------------------------------------------------------------------

    def _dispatch_all(self, records: ConsumerRecords) -> None:
        """Pass records to the pool; after an error, seek back to them, since some are in no tracker."""
        try:
            for key, batches in records.items():
                for batch, positions in zip(batches, records.positions(key), strict=True):
                    self._dispatch(key, batch, positions)
        except Exception:
            for key in records.keys() & self.consumer.assignment:
                self.consumer.seek(key, _start(records, key))
            raise

    def _dispatch(self, key: TopicPartition, batch: pa.RecordBatch, positions: RecordPositions) -> None:
        if (assigned := self._partitions.get(key)) is None:
            assigned = self._partitions[key] = _Assigned()
        tracked = assigned.tracker.append(to_numpy(batch.column("offset")), batch.nbytes, positions)
        polled = PolledBatch(key, batch, tracked)
        assigned.polled = [batch for batch in assigned.polled if batch.tracked.first_unfinished() is not None]
        assigned.polled.append(polled)
        self._pool.add(list(self._runs(assigned, polled, batch)))

    def _runs(self, assigned: _Assigned, polled: PolledBatch, batch: pa.RecordBatch) -> Iterator[Run[PolledBatch]]:
        order, size = self._config.order, self._config.batch_size or batch.num_rows
        if order == "key":
            if "key" not in batch.schema.names:
                raise UsageError('order="key" needs the column key of the consumer')
            for lane, rows in split_by_key(batch.column("key"), self._config.lanes, assigned.turn):
                for first in range(0, len(rows), size):
                    yield Run(assigned.lanes, polled, rows[first : first + size], lane)
            assigned.turn = (assigned.turn + batch.num_rows) % self._config.lanes
        else:
            for first in range(0, batch.num_rows, size):
                consecutive = range(first, min(first + size, batch.num_rows))
                yield Run(assigned.lanes, polled, consecutive, 0 if order == "partition" else None)

    def _update_pauses(self, *, may_wait: bool = False) -> None:
        """Pause full partitions, and resume those that are half empty."""
        count = max(1, len(self._partitions))
        rows, size_bytes = self._config.max_in_flight // count, self._config.max_in_flight_bytes // count
        full: list[TopicPartition] = []
        empty: list[TopicPartition] = []
        for key, assigned in self._partitions.items():
            tracker = assigned.tracker
            tracker.advance()
            if not assigned.paused and (tracker.uncommitted_rows >= max(1, rows) or tracker.size_bytes > size_bytes):
                full.append(key)
            elif assigned.paused and tracker.uncommitted_rows <= rows // 2 and tracker.size_bytes <= size_bytes // 2:
                if assigned.held:
                    continue
                empty.append(key)
        if full and may_wait:
            self._closing.wait(_BEFORE_PAUSE_S)
            return self._update_pauses()
        for partitions, paused, change in ((full, True, self.consumer.pause), (empty, False, self.consumer.resume)):
            for key in partitions:
                self._partitions[key].paused = paused
            if partitions:
                change(partitions)

    # -- commits ------------------------------------------------------------------------------

    def _committable(self, partitions: Mapping[TopicPartition, _Assigned]) -> dict[TopicPartition, CommittedOffset]:
        """Return new offsets to commit."""
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for key, to in self._unfinished(partitions).items():
            if to != (staged := partitions[key].staged) or not to.is_in(staged.topic_id):
                offsets[key] = partitions[key].staged = to
        return offsets

    def _unfinished(self, partitions: Mapping[TopicPartition, _Assigned]) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets of the first unfinished records, or else the positions.

        Without partitions whose records belong to a deleted topic while a new topic has its name.
        """
        self._update_trackers(partitions)
        positions = self.consumer.positions()
        committable = {key: partitions[key].tracker.committable for key in partitions.keys() & positions.keys()}
        return {key: to for key, to in committable.items() if to is not None}

    def _update_trackers(self, partitions: Mapping[TopicPartition, _Assigned]) -> None:
        """Take account of finished records, and of positions, which truncated logs and recreated topics change."""
        positions = self.consumer.positions()
        for key in partitions.keys() & positions.keys():
            partitions[key].tracker.set_position(positions[key])
            partitions[key].tracker.advance()

    def _commit(self) -> None:
        if offsets := self._committable(self._partitions):
            self.consumer.commit_async(offsets, self._committed)

    def _committed(self, offsets: Offsets, error: CommitFailed | None) -> None:
        if error is not None:
            log.warning("%s", error)
            self._restage(offsets)

    def _restage(self, offsets: Offsets) -> None:
        for key in offsets.keys() & self._partitions.keys():
            self._partitions[key].staged = None

    # -- rebalances ---------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions; one whose handlers of an earlier assignment still run is paused until they return."""
        for key in partitions:
            earlier = [lanes for lanes in self._late.pop(key, []) if lanes.running]
            self._partitions[key] = _Assigned(earlier=earlier, paused=bool(earlier))
            if earlier:
                self._late[key] = list(earlier)
                self.consumer.pause([key])

    def release(self, partitions: Collection[TopicPartition], *, lost: bool = False) -> None:
        """Drop partitions: wait for their running handlers, close gaps, then commit, unless they are lost.

        The consumer, which owns them for now, is left at their first unfinished records: after Ctrl-C its owner may go
        on, and the user's listener may commit. A call that Ctrl-C ends may be repeated.
        """
        dropped = {key: self._partitions[key] for key in partitions if key in self._partitions}
        deadline = self._drain_deadline or Deadline.after_ms(self._config.drain_timeout_ms, self._clock)
        try:
            self._release(dropped, deadline.at_most_ms(0) if lost else deadline, lost=lost)
        except BaseException:
            self._drain_deadline = deadline
            raise
        if self._closing.is_set():
            self._drain_deadline = deadline

    def _release(self, dropped: Mapping[TopicPartition, _Assigned], deadline: Deadline, *, lost: bool) -> None:
        ended = self._end_runs(dropped, deadline)
        if ended and not lost and self._begin_gaps(dropped):
            self._pool.finish([assigned.lanes for assigned in dropped.values()], deadline)
            ended = self._end_runs(dropped, deadline)
        if not ended:
            late = {key: assigned.lanes for key, assigned in dropped.items() if assigned.lanes.running}
            for key, running in late.items():
                self._late[key].append(running)
            names = listed([f"{topic}-{partition}" for topic, partition in sorted(late)])
            log.warning("%s: handlers still run when the partitions are released; their results are dropped", names)
        if not lost:
            self._commit_released(dropped)
        self._seek_to_unfinished(dropped)
        for key in dropped:
            del self._partitions[key]

    def _end_runs(self, partitions: Mapping[TopicPartition, _Assigned], deadline: Deadline) -> bool:
        lanes = [assigned.lanes for assigned in partitions.values()]
        self._pool.drop(lanes)
        return self._pool.wait(lanes, deadline)

    def _begin_gaps(self, partitions: Mapping[TopicPartition, _Assigned]) -> bool:
        """Begin to handle unfinished records that have finished ones behind them, or those would be handled again.

        Not in partitions with a failed record, which may take long; its offset is the one to commit.
        """
        if self._config.order == "partition":
            return False
        self._update_trackers(partitions)
        runs: list[Run[PolledBatch]] = []
        for assigned in partitions.values():
            gaps = assigned.tracker.unfinished_below_finished()
            if assigned.lanes.failed or not gaps:
                continue
            assigned.lanes = LanePartition(retries=False)
            batches = {polled.tracked: polled for polled in assigned.polled}
            for tracked, rows in gaps.items():
                runs += self._gap_runs(assigned, batches[tracked], rows)
        self._pool.add(runs)
        return bool(runs)

    def _gap_runs(
        self, assigned: _Assigned, polled: PolledBatch, rows: npt.NDArray[np.int64]
    ) -> Iterator[Run[PolledBatch]]:
        """Yield runs of some rows, each with a lane."""
        size = self._config.batch_size or len(rows)
        if self._config.order == "key":
            split = split_by_key(polled.keys(rows), self._config.lanes)
        else:
            split = ((number, list(range(number, len(rows), _GAP_LANES))) for number in range(_GAP_LANES))
        for lane, indexes in split:
            for first in range(0, len(indexes), size):
                yield Run(assigned.lanes, polled, rows[indexes[first : first + size]].tolist(), lane)

    def _commit_released(self, dropped: Mapping[TopicPartition, _Assigned]) -> None:
        for assigned in dropped.values():
            assigned.staged = None  # an earlier commit may still fail
        offsets = self._committable(dropped)
        try:
            if offsets:
                self.consumer.commit_sync(offsets, self.consumer.client.config.request_timeout_ms)
        except CommitFailed as error:
            log.warning("%s", error)

    def _seek_to_unfinished(self, partitions: Mapping[TopicPartition, _Assigned]) -> None:
        positions = self.consumer.positions()
        for key, to in self._unfinished(partitions).items():
            if to != positions.get(key):
                self.consumer.seek(key, to)

    def shut_down(self) -> None:
        """Wait for running handlers, and commit. May be repeated, also when the consumer is closed."""
        if self._partitions:
            self.release(list(self._partitions))

    def hand_back(self, listener: ConsumerRebalanceListener | None, *, at_once: bool = False) -> None:
        """Shut down, and leave the consumer as its owner would have: at the first unfinished records, not paused.

        Ctrl-C, before with `at_once` or now, ends the wait for handlers. Without these positions the owner would commit
        unhandled records.
        """
        partitions = dict(self._partitions)
        try:
            if at_once:
                self._end_runs(partitions, Deadline.after_ms(_INTERRUPTED_MS, self._clock))
                self._commit()
            else:
                self.shut_down()
        finally:
            self.consumer.replace_listener(listener or self.listener.user)
            self._seek_to_unfinished(partitions)
            for key in partitions.keys() & self.consumer.assignment:
                if partitions[key].paused:
                    self.consumer.resume([key])


def _start(records: ConsumerRecords, key: TopicPartition) -> CommittedOffset:
    """Return the offset of the first record of a partition."""
    offset = records[key][0].column("offset")[0].as_py()
    return to_commit(records.positions(key)[0].at(offset))


class _Listener(ConsumerRebalanceListener):
    """Passes rebalances to the loop, then to the user's listener. Ctrl-C interrupts waits of both.

    `raised` is the last exception of the user's listener, which `poll` raises.
    """

    def __init__(self, loop: ConsumerLoop, user: ConsumerRebalanceListener | None) -> None:
        self._loop = loop
        self.user = user or ConsumerRebalanceListener()
        self.raised: Exception | None = None

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._handle(self._loop.release, self.user.on_partitions_revoked, partitions)

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._handle(self._loop.assigned, self.user.on_partitions_assigned, partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._handle(partial(self._loop.release, lost=True), self.user.on_partitions_lost, partitions)

    @deferred  # again: the consumer calls a listener as code of the user, which signals interrupt anywhere
    def _handle(self, handle: _Callback, pass_on: _Callback, partitions: Collection[TopicPartition]) -> None:
        handle(partitions)
        try:
            interruptible(pass_on, partitions)
        except Exception as error:
            self.raised = error
            raise
