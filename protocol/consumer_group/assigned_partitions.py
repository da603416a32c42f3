"""The partitions that one consumer reads, and their start offsets.

Start offsets are the group's offsets, else those of `auto.offset.reset`, which also applies to positions that the log
has lost. A partition whose offset is not known yet starts later and does not delay others. Partitions are added,
started and dropped in one thread; each partition is read by one thread at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from protocol.clock import Backoff, Deadline
from protocol.cluster.client import Client
from protocol.consumer.consumer import Consumer
from protocol.consumer.log_offsets import LeaderEpochs
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer_group.group_consumer_config import GroupConsumerConfig
from protocol.consumer_group.start_offsets import (
    CommittedLookup,
    ListingLookup,
    StartLookup,
    StartOffset,
    reset_times,
)
from protocol.errors import DataLoss, DeadlineExceeded, KafkaError, LogTruncated, TopicRecreated, UsageError
from protocol.group.committed_offsets import CommittedOffset
from protocol.interrupts import DeferredInterrupts
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition

log = logging.getLogger(__name__)

# Time limit of the first lookup at leaders; it doubles with each retry.
_FIRST_TRY_MS = 1_000.0
_NO_LEADER = -1


@dataclass(eq=False, slots=True)
class _Start:
    """The search for an offset of a partition that has none: it has not started, or its log has lost the position.

    Attributes
    ----------
    backoff : Backoff
        Wait before the next lookup.
    loss : DataLoss, optional
        Why the position was lost.
    sought : CommittedOffset, optional
        The position set by `seek`.
    without_commit : bool
        The group has no offset of this partition.
    lookup : StartLookup, optional
        The lookup that is running; results of others are ignored.
    retry_at_s : float
        When the next lookup may start.
    failing_since_s : float, optional
        When the first of the lookups that have failed since the last error was started.
    """

    backoff: Backoff
    loss: DataLoss | None = None
    sought: CommittedOffset | None = None
    without_commit: bool = False
    lookup: StartLookup | None = None
    retry_at_s: float = 0.0
    failing_since_s: float | None = None


class AssignedPartitions:
    """The partitions that one consumer reads; not thread-safe.

    Parameters
    ----------
    client : Client
        The client of the cluster.
    config : GroupConsumerConfig
        The configuration of the consumer.
    columns : collection of str
        Names of columns to decode, see `KafkaConsumer`.
    """

    def __init__(self, client: Client, config: GroupConsumerConfig, columns: Collection[str]) -> None:
        self._client = client
        self._config = config
        self.reader = Consumer(client, config.consumer, columns=columns)
        client.sensors.add_gauge("assigned-partitions", self, lambda this: [((), len(this))])
        self._consumers: dict[TopicPartition, PartitionConsumer] = {}
        # Partitions that have not started, and those whose position is not in the log; a partition is in one at most.
        self._not_started: dict[TopicPartition, _Start] = {}
        self._lost: dict[TopicPartition, _Start] = {}
        self._lookups: list[StartLookup] = []
        # When the next lookup may start: until then, many partitions without a leader cost nothing.
        self._look_up_at_s = 0.0
        self._paused_not_started: set[TopicPartition] = set()
        # Committed offsets: fetched at the start, or committed by this consumer since.
        self._committed: dict[TopicPartition, int] = {}
        # Partitions of which `poll` has raised an error; the one raised last is at the end.
        self._failed: dict[TopicPartition, None] = {}
        # How often reading has moved from a deleted topic to a new one of its name.
        self._recreations: dict[TopicPartition, int] = {}
        # Partitions moved to a new topic of which `poll` has returned no records.
        self._unseen_topics: set[TopicPartition] = set()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Return all added partitions."""
        return frozenset(self._consumers.keys() | self._not_started.keys())

    def __len__(self) -> int:
        return len(self._consumers) + len(self._not_started)

    def _new_start(self, loss: DataLoss | None = None) -> _Start:
        settings = self._client.config
        return _Start(Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms), loss)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add partitions; the next calls of `start_added` start them."""
        for key in partitions:
            self._not_started[key] = self._new_start()
        self._look_up_at_s = 0.0

    def start_added(self, wait_ms: float) -> None:
        """Start to read added partitions whose start offsets are known, and look up those of the others.

        Lookups run in threads. Those that fail are repeated after a back-off.

        Parameters
        ----------
        wait_ms : float
            Maximum wait, in milliseconds, for new lookups: the usual ones end within it. A lookup that has run for
            50 ms is not waited for.

        Raises
        ------
        NoOffset, BrokerError
            A partition cannot start. Others start nevertheless; `NoOffset` is raised by each call until `seek`.
        DeadlineExceeded
            The start offset of a partition is unknown for `default.api.timeout.ms`; raised again after each such
            period.
        """
        if not (self._not_started or self._lost):
            return
        deadline = Deadline.after_ms(wait_ms, self._client.clock)
        while True:
            with DeferredInterrupts():
                self._apply_lookups()
                self._look_up()
            new = [each for each in self._lookups if each.is_new]
            if not new or deadline.passed:
                return
            new[0].wait(deadline.remaining_s())

    def await_position(self, key: TopicPartition, deadline: Deadline) -> None:
        """Call `start_added` until this partition has started; raise its errors, and `DeadlineExceeded`."""
        while key in self._not_started:
            try:
                self.start_added(deadline.remaining_ms())
            except KafkaError:
                if key in self._not_started:
                    raise
            if (start := self._not_started.get(key)) is None:
                return
            if deadline.passed:
                who = "the coordinator" if isinstance(start.lookup, CommittedLookup) else "its leader"
                raise DeadlineExceeded(f"{key[0]}-{key[1]} has no start offset yet: {who} does not respond")
            if start.lookup is not None:
                start.lookup.wait(deadline.remaining_s())
            else:
                wait_s = start.retry_at_s - self._client.clock.now_s()
                self._client.clock.sleep_s(min(wait_s, deadline.remaining_s()))

    def _start_of(self, key: TopicPartition, lookup: StartLookup) -> _Start | None:
        """Return the search that uses the results of a lookup; None if the partition was dropped or sought since."""
        start = self._not_started.get(key) or self._lost.get(key)
        return start if start is not None and start.lookup is lookup else None

    def _apply_lookups(self) -> None:
        """Start partitions whose offsets have arrived; raise an error of lookups that have ended."""
        errors: list[Exception] = []
        for lookup in self._lookups.copy():
            ended = lookup.ended
            self._apply(lookup)
            if ended:
                errors += self._handle_end(lookup)
                self._lookups.remove(lookup)  # last: a signal handler may raise before
        if errors:
            raise min(errors, key=lambda each: isinstance(each, DeadlineExceeded))

    def _apply(self, lookup: StartLookup) -> None:
        starts: dict[TopicPartition, StartOffset] = {}
        for key, found in lookup.found().items():
            if (start := self._start_of(key, lookup)) is None:
                continue
            if start.loss is not None:
                self._resume_at(start.loss, found.offset)
                del self._lost[key]  # afterwards: a signal handler may raise within
            else:
                starts[key] = found
        if isinstance(lookup, CommittedLookup):
            self._committed.update((key, each.offset) for key, each in starts.items())
        self._start_consumers(starts)

    def _handle_end(self, lookup: StartLookup) -> list[Exception]:
        """Decide what comes next for the partitions of a lookup that have no offset; return errors to raise."""
        now_s, timeout_s = self._client.clock.now_s(), self._client.config.default_api_timeout_ms / 1000
        errors: list[Exception] = []
        self._look_up_at_s = 0.0
        # One wait for all that have failed together, so that their next lookup is one again.
        waits_s: dict[int, float] = {}
        for key in lookup.partitions:
            if (start := self._start_of(key, lookup)) is None:
                continue
            start.lookup = None
            error = lookup.error_of(key)
            if error is None:
                start.without_commit = True
                continue
            wait_s = start.backoff.next_s()
            start.retry_at_s = now_s + waits_s.setdefault(start.backoff.tries, wait_s)
            log.debug("%s-%d starts later: %s", *key, error)
            if start.failing_since_s is None:
                start.failing_since_s = lookup.started_at_s
            if not isinstance(error, DeadlineExceeded):
                errors.append(error)
            elif now_s - start.failing_since_s >= timeout_s:
                start.failing_since_s = now_s
                errors.append(DeadlineExceeded(f"no start offset for {timeout_s:.0f} s: {error}"))
        return errors

    def _look_up(self) -> None:
        """Start lookups of the partitions that have none, and partitions to which the user has sought."""
        now_s, wall_ms = self._client.clock.now_s(), self._client.clock.wall_ms()
        if now_s < self._look_up_at_s:
            return
        waiting = {
            key: start for key, start in [*self._not_started.items(), *self._lost.items()] if start.lookup is None
        }
        due = {key: start for key, start in waiting.items() if start.retry_at_s <= now_s}
        sought = {key: start.sought for key, start in due.items() if start.sought is not None}
        self._start_consumers({key: StartOffset(to.offset, to.leader_epoch) for key, to in sought.items()})
        rest = {key: start for key, start in due.items() if key not in sought}
        group = self._config.consumer.group_id
        committed = {k: start for k, start in rest.items() if group and not (start.loss or start.without_commit)}
        if group and committed:
            timeout_ms, is_retry = self._client.config.default_api_timeout_ms, _have_failed(committed.values())
            self._begin(CommittedLookup(self._client, group, committed, timeout_ms, is_retry=is_retry), committed)
        self._list_by_leader(due, reset_times(self._config, rest.keys() - committed.keys(), wall_ms))
        self._look_up_at_s = min((waiting[key].retry_at_s for key in waiting.keys() - due.keys()), default=math.inf)

    def _list_by_leader(self, starts: Mapping[TopicPartition, _Start], times: Mapping[TopicPartition, int]) -> None:
        """List offsets, first of all partitions at once; retries are separate for each leader."""
        groups: dict[tuple[float, int], dict[TopicPartition, int]] = {}
        for key, time in times.items():
            tries = starts[key].backoff.tries
            leader = self._leader(key) if tries else _NO_LEADER
            groups.setdefault((self._listing_timeout_ms(tries), leader), {})[key] = time
        for (timeout_ms, _), group in groups.items():
            is_retry = _have_failed(starts[key] for key in group)
            self._begin(ListingLookup(self._client, self._config, group, timeout_ms, is_retry=is_retry), starts)

    def _listing_timeout_ms(self, tries: int) -> float:
        return min(_FIRST_TRY_MS * (1 << min(tries, 30)), self._client.config.default_api_timeout_ms)

    def _leader(self, key: TopicPartition) -> int:
        topic = self._client.remembered_topic(key[0])
        partition = None if topic is None else topic.partitions.get(key[1])
        return _NO_LEADER if partition is None else partition.leader

    def _begin(self, lookup: StartLookup, starts: Mapping[TopicPartition, _Start]) -> None:
        lookup.start()
        self._lookups.append(lookup)
        for key in lookup.partitions:
            starts[key].lookup = lookup

    def _start_consumers(self, offsets: Mapping[TopicPartition, StartOffset]) -> None:
        if not offsets:
            return
        try:
            self.reader.consume_partitions(
                {key: each.offset for key, each in offsets.items()},
                epochs={key: each.leader_epoch for key, each in offsets.items()},
                topic_ids={key: each.topic_id for key, each in offsets.items()},
            )
        finally:  # also if a signal handler raises when they have started: they cannot start again
            started = self.reader.streams
            for key in offsets.keys() & started.keys():
                self._consumers[key] = started[key]
                # Checked after the insertion, since another thread may call `pause`.
                if key in self._paused_not_started:
                    self._consumers[key].pause()
                self._remove_not_started(key)

    def _remove_not_started(self, key: TopicPartition) -> None:
        self._not_started.pop(key, None)
        self._paused_not_started.discard(key)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions; iterations over them end."""
        for key in partitions:
            self._remove_not_started(key)
            self._lost.pop(key, None)
            self._committed.pop(key, None)
            self._recreations.pop(key, None)
            self._unseen_topics.discard(key)
            with DeferredInterrupts():  # one that stays open could not be assigned again
                if (consumer := self._consumers.pop(key, None)) is not None:
                    consumer.close()
        for lookup in self._lookups:
            if not [key for key in lookup.partitions if self._start_of(key, lookup)]:
                lookup.cancel()

    def __getitem__(self, key: TopicPartition) -> PartitionConsumer:
        if key not in self._consumers:
            raise UsageError(f"{key[0]}-{key[1]} is not assigned to this consumer")
        return self._consumers[key]

    def seek(
        self, key: TopicPartition, offset: int, epoch_before: int = NO_LEADER_EPOCH, *, listed: bool = False
    ) -> None:
        """Set the position, see `PartitionConsumer.seek`.

        Ignored with a warning if the topic was recreated and the user has not received records of the new one: only a
        `listed` offset is surely of it.
        """
        if key in self._not_started:
            self._not_started[key] = self._new_start()
            self._not_started[key].sought = CommittedOffset(offset, epoch_before)
            self._look_up_at_s = 0.0
        elif not listed and (key in self._unseen_topics or self._has_lost_topic(key)):
            log.warning("seek of %s-%d to offset %d is ignored: the topic was deleted and created again", *key, offset)
        else:
            self[key].seek(offset, epoch_before)
            self._lost.pop(key, None)

    def rewind(self, key: TopicPartition, offset: int, epoch_before: int) -> None:
        """Seek back to a record that the user did not get, unless its topic was recreated: the new one has others."""
        if not self._has_lost_topic(key):
            self.seek(key, offset, epoch_before, listed=True)

    def returned(self, partitions: Collection[TopicPartition]) -> None:
        """Record that the user gets records of these partitions."""
        self._unseen_topics.difference_update(partitions)

    def _has_lost_topic(self, key: TopicPartition) -> bool:
        lost = self._lost.get(key)
        return lost is not None and isinstance(lost.loss, TopicRecreated)

    def positions(self, *, moved: bool = False) -> dict[TopicPartition, CommittedOffset]:
        """Return positions to commit: of started partitions, unless in a recreated topic, and those set by `seek`.

        With `moved` only positions that may differ from the group's offsets.
        """
        recreated = self.recreated
        positions = {
            key: CommittedOffset(consumer.position, consumer.last_epoch)
            for key, consumer in self._consumers.items()
            if key not in recreated and (not moved or self._committed.get(key) != consumer.position)
        }
        for key, start in self._not_started.items():
            if start.sought is not None:
                positions[key] = start.sought
        return positions

    @property
    def recreated(self) -> frozenset[TopicPartition]:
        """Return partitions that are known to be at a position in a deleted topic, while a new topic has its name."""
        consumers = list(self._consumers.items())
        return frozenset(key for key, consumer in consumers if consumer.recreated or self._has_lost_topic(key))

    @property
    def topic_ids(self) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics that are read, for commits; zeros if unknown."""
        return {key: consumer.topic_id for key, consumer in list(self._consumers.items())}

    @property
    def recreations(self) -> Mapping[TopicPartition, int]:
        """Return how often reading has moved to a recreated topic, for partitions where it has."""
        return self._recreations

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Record offsets that are being committed."""
        self._committed.update((key, to.offset) for key, to in offsets.items() if key in self._consumers)

    def poll(
        self, timeout_ms: float, max_rows: int | None = None
    ) -> tuple[TopicPartition, pa.RecordBatch, LeaderEpochs] | None:
        """Return the next record batch of any partition, see `Consumer.poll`, with the leader epochs of its records.

        None also means lost data: `start_added` finds the offset to continue at.
        """
        try:
            read = self.reader.poll(timeout_ms, max_rows)
        except DataLoss as loss:
            key = self._check_reset(loss)
            if isinstance(loss, LogTruncated):
                self._resume_at(loss, *end_of_common_log(loss))
            else:
                self._lost[key] = self._new_start(loss)
                self._look_up_at_s = 0.0
            return None
        except KafkaError as error:
            self._note_failure(error)
            raise
        # No further call: a signal handler that raises there would lose the batch.
        return None if read is None else ((read[0].topic, read[0].partition), read[1], read[0].buffer.leader_epochs)

    def raise_again(self) -> None:
        """Raise the error of a partition that `poll` has raised once, and that lasts until `seek`.

        If several partitions have one, each call raises that of the next.
        """
        for key in list(self._failed):
            del self._failed[key]
            consumer = self._consumers.get(key) if key not in self._lost else None
            if consumer is not None and (error := consumer.buffer.raised_error) is not None:
                self._failed[key] = None
                raise error.with_traceback(None)  # else it would keep the frames of each time

    def recover(self, loss: DataLoss, keeps_claims: Callable[[], bool]) -> CommittedOffset | None:
        """Seek after lost data: to the last common offset, else by `auto.offset.reset`. Return the new position.

        Raises the loss if the reset is `none`. Waits for the leader, up to `default.api.timeout.ms`; returns None if
        the partition is dropped meanwhile, or if `keeps_claims`, which is called in between, returns False. Called in
        the thread that reads the partition.
        """
        key = self._check_reset(loss)
        if isinstance(loss, LogTruncated):
            offset, leader_epoch = end_of_common_log(loss)
        elif (reset := self._await_reset_offset(key, keeps_claims)) is not None:
            offset, leader_epoch = reset, NO_LEADER_EPOCH
        else:
            return None
        self._resume_at(loss, offset, leader_epoch)
        return CommittedOffset(offset, leader_epoch)

    def _await_reset_offset(self, key: TopicPartition, keeps_claims: Callable[[], bool]) -> int | None:
        start, deadline = self._new_start(), self._client.deadline()
        times = reset_times(self._config, [key], self._client.clock.wall_ms())
        while keeps_claims() and key in self._consumers:  # also if each lookup fails at once
            timeout_ms = min(self._listing_timeout_ms(start.backoff.tries), deadline.remaining_ms())
            lookup = ListingLookup(self._client, self._config, times, timeout_ms)
            lookup.start()
            while not lookup.ended:
                if key not in self._consumers or not keeps_claims():
                    lookup.cancel()
                    return None
                lookup.wait()
            if (found := lookup.found().get(key)) is not None:
                return found.offset
            error = lookup.error_of(key)
            assert error is not None
            if deadline.passed or not isinstance(error, DeadlineExceeded):
                raise error
            self._client.clock.sleep_s(min(start.backoff.next_s(), deadline.remaining_s()))
        return None

    def _note_failure(self, error: KafkaError) -> None:
        if (key := partition_of(error)) is not None:
            self._failed[key] = None

    def _check_reset(self, loss: DataLoss) -> TopicPartition:
        if self._config.auto_offset_reset == "none":
            self._note_failure(loss)
            raise loss
        return loss.context["topic"], loss.context["partition"]

    def _resume_at(self, loss: DataLoss, offset: int, leader_epoch: int = NO_LEADER_EPOCH) -> None:
        key = loss.context["topic"], loss.context["partition"]
        # Brokers delete the committed offsets of a deleted topic.
        self._committed.pop(key, None)
        if (consumer := self._consumers.get(key)) is not None:
            consumer.seek(offset, leader_epoch)
            if isinstance(loss, TopicRecreated):
                self._recreations[key] = self._recreations.get(key, 0) + 1
                self._unseen_topics.add(key)
        log.warning("%s; reading continues at offset %d", loss, offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Pause partitions, also before they have started."""
        for key in partitions:
            if key in self._not_started:
                self._paused_not_started.add(key)
            if key in self._consumers or key not in self._not_started:
                self[key].pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions."""
        for key in partitions:
            self._paused_not_started.discard(key)
            if key not in self._not_started:
                self[key].resume()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(key for key, consumer in self._consumers.items() if consumer.paused) | self._paused_not_started

    @property
    def consumers(self) -> Mapping[TopicPartition, PartitionConsumer]:
        """Return the consumers of started partitions."""
        return self._consumers

    def close(self, deadline: Deadline | None = None) -> None:
        """Stop reading, and end the fetches."""
        for lookup in self._lookups:
            lookup.cancel()
        self.reader.close(deadline)


def partition_of(error: KafkaError) -> TopicPartition | None:
    """Return the partition that an error is about, if it is about one."""
    topic, partition = error.context.get("topic"), error.context.get("partition")
    return None if topic is None or partition is None else (topic, partition)


def _have_failed(starts: Iterable[_Start]) -> bool:
    return any(start.backoff.tries for start in starts)


def end_of_common_log(loss: LogTruncated) -> tuple[int, int]:
    """Return the offset at which to continue after a truncation, and the leader epoch of the record before it.

    With the epoch, a second truncation is detected before any record is read from the offset.
    """
    return loss.context["end_offset"], loss.context.get("end_epoch", NO_LEADER_EPOCH)
