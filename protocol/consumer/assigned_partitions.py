"""The partitions that one consumer reads, and their start offsets.

Start offsets are the group's offsets, else those of `auto.offset.reset`, which also applies to positions that the log
has lost. A partition whose offset is not known yet starts later and does not delay others. Partitions are added,
started and dropped in one thread; each partition is read by one thread at a time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping

import pyarrow as pa

from protocol.base.clock import Backoff, Deadline
from protocol.checked_values import checked_partition
from protocol.cluster.client import Client
from protocol.cluster.metadata import topic_id_text
from protocol.consumer.assigned_partition import DUE_FOR_LOOKUP, AssignedPartition, PartitionState
from protocol.consumer.group_consumer_config import GroupConsumerConfig
from protocol.consumer.start_offsets import CommittedLookup, ListingLookup, StartLookup, reset_times
from protocol.errors import DataLoss, DeadlineExceeded, KafkaError, LogTruncated, NoOffset, TopicRecreated, UsageError
from protocol.fetch.consumer import Consumer
from protocol.fetch.fetch_failures import end_of_common_log
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.group.commits.committed_offsets import CommittedOffset, to_commit
from protocol.kafka_terms import NO_TOPIC_ID, NO_TOPIC_IDS, TopicIds, TopicPartition
from protocol.position import Position, RecordPositions

log = logging.getLogger(__name__)

# Time limit of the first lookup at leaders; it doubles with each retry.
_FIRST_TRY_MS = 1_000.0
_NO_LEADER = -1


class AssignedPartitions:
    """The partitions that one consumer reads; `columns` are the names of columns to decode, see `KafkaConsumer`.

    Thread rule: `recover` runs in the thread that reads the partition; `assigned`, `consumers`, `recreated`, `paused`,
    `pause` and `resume` in any; others in the one that adds partitions. Those for any thread copy with `list`, since
    partitions may be added or dropped meanwhile.
    """

    def __init__(self, client: Client, config: GroupConsumerConfig, columns: Collection[str]) -> None:
        self._client = client
        self._config = config
        self.reader = Consumer(client, config.consumer, columns=columns)
        client.sensors.add_gauge("assigned-partitions", self, lambda assigned: [((), len(assigned))])
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._lookups: list[StartLookup] = []
        # When the next lookup may start: until then, many partitions without a leader cost nothing.
        self._look_up_at_s = math.inf
        # `raise_again` looks for failed partitions only if there may be some.
        self._may_have_failed = False

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """Return all added partitions."""
        return frozenset(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    def _new_backoff(self) -> Backoff:
        return Backoff(self._client.config.retry_backoff_ms, self._client.config.retry_backoff_max_ms)

    def add(self, partitions: Collection[TopicPartition], topic_ids: TopicIds = NO_TOPIC_IDS) -> None:
        """Add partitions; the next calls of `start_added` start them. See `Membership.topic_ids`."""
        self._partitions.update(
            (key, AssignedPartition(key, self._new_backoff, topic_ids.get(key, NO_TOPIC_ID))) for key in partitions
        )
        self._look_up_at_s = 0.0

    def start_added(self, wait_ms: float) -> None:
        """Start to read added partitions whose start offsets are known, and look up those of the others.

        Lookups run in threads. Those that fail are repeated after a back-off. New lookups are waited for, at most
        `wait_ms`: the usual ones end within it. A lookup that has run for 50 ms is not waited for.

        Raises `NoOffset` or `BrokerError` if a partition cannot start. Others start nevertheless; `NoOffset` is raised
        by each call until `seek`. Raises `DeadlineExceeded` if the start offset of a partition is unknown for
        `default.api.timeout.ms`, and again after each such period.
        """
        if errors := self._start_added(wait_ms):
            raise min(errors.values(), key=lambda error: isinstance(error, DeadlineExceeded))

    def _start_added(self, wait_ms: float) -> dict[TopicPartition, Exception]:
        """Do as `start_added`, but return the errors by partition."""
        if not self._lookups and self._look_up_at_s == math.inf:
            return {}
        deadline = Deadline.after_ms(wait_ms, self._client.clock)
        while True:
            if errors := self._apply_lookups() or self._look_up():
                return errors
            new = [lookup for lookup in self._lookups if lookup.is_worth_waiting_for]
            if not new or deadline.passed:
                return {}
            new[0].wait(deadline.remaining_s())

    def await_position(self, key: TopicPartition, deadline: Deadline) -> None:
        """Do as `start_added` until this partition has started; raise its own errors, and `DeadlineExceeded`."""
        partition = self._partition(key)
        while partition.consumer is None:
            errors = self._start_added(deadline.remaining_ms())
            if partition.consumer is not None:
                return
            if key in errors:
                raise errors[key]
            if deadline.passed:
                silent = "the coordinator" if isinstance(partition.lookup, CommittedLookup) else "its leader"
                raise DeadlineExceeded(f"{key[0]}-{key[1]} has no start offset yet: {silent} does not respond")
            if partition.lookup is not None:
                partition.lookup.wait(deadline.remaining_s())
            else:
                wait_s = partition.retry_at_s - self._client.clock.now_s()
                self._client.clock.sleep_s(min(wait_s, deadline.remaining_s()))

    def _awaiting(self, lookup: StartLookup) -> dict[TopicPartition, AssignedPartition]:
        """Return the partitions that use the results of a lookup: not dropped and not sought since."""
        partitions = {key: self._partitions[key] for key in lookup.partitions & self._partitions.keys()}
        return {key: partition for key, partition in partitions.items() if partition.lookup is lookup}

    def _apply_lookups(self) -> dict[TopicPartition, Exception]:
        """Start partitions whose offsets have arrived; return the errors of lookups that have ended."""
        errors: dict[TopicPartition, Exception] = {}
        for lookup in self._lookups.copy():
            ended = lookup.ended
            self._apply(lookup)
            if ended:
                errors |= self._handle_end(lookup)
                self._lookups.remove(lookup)
        return errors

    def _apply(self, lookup: StartLookup) -> None:
        positions = lookup.positions()
        starts: dict[TopicPartition, Position] = {}
        for key, partition in self._awaiting(lookup).items():
            if (position := positions.get(key)) is None or not position.is_in(partition.assigned_topic_id):
                continue
            if partition.loss is not None:
                # Without the listed id, the position counts as one in the topic that was read. If that was recreated,
                # the first Fetch reports it; with the id, reading would move to the new topic silently.
                self._resume_at(partition, Position(position.offset), partition.loss)
                continue
            starts[key] = position
            if isinstance(lookup, CommittedLookup):
                partition.group_offset = position.offset
        self._start(starts)

    def _handle_end(self, lookup: StartLookup) -> dict[TopicPartition, Exception]:
        """Decide what comes next for the partitions of a lookup that have no offset; return errors to raise."""
        now_s, timeout_s = self._client.clock.now_s(), self._client.config.default_api_timeout_ms / 1000
        errors: dict[TopicPartition, Exception] = {}
        self._look_up_at_s = 0.0
        # Partitions that have failed together share the wait, so that one lookup retries them all.
        waits_s: dict[int, float] = {}
        for key, partition in self._awaiting(lookup).items():
            error = self._failure_of(lookup, partition)
            partition.end_lookup(without_commit=error is None)
            if error is None:
                continue
            wait_s = partition.backoff.next_s()
            retry_at_s = now_s + waits_s.setdefault(partition.backoff.tries, wait_s)
            partition.postpone_lookup(retry_at_s, lookup.started_at_s)
            log.debug("%s-%d starts later: %s", *key, error)
            if not isinstance(error, DeadlineExceeded):
                errors[key] = error
            elif partition.take_overdue(now_s, timeout_s):
                errors[key] = DeadlineExceeded(f"no start offset for {timeout_s:.0f} s: {error}")
        return errors

    def _failure_of(self, lookup: StartLookup, partition: AssignedPartition) -> Exception | None:
        """Return why a lookup has no position in the assigned topic; None if it needs another kind of lookup.

        Either the group has not assigned the present topic yet, or the metadata are those of a broker that lags behind.
        """
        topic, number = partition.key
        if (position := lookup.positions().get(partition.key)) is None:
            return lookup.error_of(partition.key)
        self._client.expire_metadata([topic])
        return DeadlineExceeded(
            f"{topic}-{number}: the topic was deleted and created again, and the group has assigned it with the id "
            f"{topic_id_text(partition.assigned_topic_id)}, not with {topic_id_text(position.topic_id)}"
        )

    def _raise_if_overdue(self, partition: AssignedPartition, error: Exception) -> None:
        """Raise an error that has lasted for `default.api.timeout.ms`, once in each such period."""
        now_s, timeout_s = self._client.clock.now_s(), self._client.config.default_api_timeout_ms / 1000
        partition.postpone_lookup(now_s, now_s)
        if partition.take_overdue(now_s, timeout_s):
            raise error

    def _look_up(self) -> dict[TopicPartition, Exception]:
        """Start lookups of the partitions that have none, and partitions to which the user has sought.

        Returns `NoOffset` of partitions that have no start offset, each time until `seek`.
        """
        now_s, wall_ms = self._client.clock.now_s(), self._client.clock.wall_ms()
        if now_s < self._look_up_at_s:
            return {}
        waiting = {key: partition for key, partition in self._partitions.items() if partition.state in DUE_FOR_LOOKUP}
        due = {key: partition for key, partition in waiting.items() if partition.retry_at_s <= now_s}
        sought = {key: partition.sought for key, partition in due.items() if partition.sought is not None}
        self._start(sought)
        unknown = {key: partition for key, partition in due.items() if key not in sought}
        group = self._config.consumer.group_id
        committed = {
            key: partition
            for key, partition in unknown.items()
            if group and not (partition.loss or partition.without_commit)
        }
        if group and committed:
            timeout_ms, is_retry = self._client.config.default_api_timeout_ms, _have_failed(committed.values())
            self._begin(CommittedLookup(self._client, group, committed, timeout_ms, is_retry=is_retry))
        without_commit = unknown.keys() - committed.keys()
        try:
            self._list_by_leader(reset_times(self._config, without_commit, wall_ms))
        except NoOffset as error:
            return dict.fromkeys(without_commit, error)
        later = (partition.retry_at_s for key, partition in waiting.items() if key not in due)
        self._look_up_at_s = min(later, default=math.inf)
        return {}

    def _list_by_leader(self, times: Mapping[TopicPartition, int]) -> None:
        """List offsets, first of all partitions at once; retries are separate for each leader."""
        groups: dict[tuple[float, int], dict[TopicPartition, int]] = {}
        for key, time in times.items():
            tries = self._partitions[key].backoff.tries
            leader = self._leader(key) if tries else _NO_LEADER
            groups.setdefault((self._listing_timeout_ms(tries), leader), {})[key] = time
        for (timeout_ms, _), group in groups.items():
            is_retry = _have_failed(self._partitions[key] for key in group)
            self._begin(ListingLookup(self._client, self._config, group, timeout_ms, is_retry=is_retry))

    def _listing_timeout_ms(self, tries: int) -> float:
        return min(_FIRST_TRY_MS * (1 << min(tries, 30)), self._client.config.default_api_timeout_ms)

    def _leader(self, key: TopicPartition) -> int:
        topic = self._client.remembered_topic(key[0])
        partition = None if topic is None else topic.partitions.get(key[1])
        return _NO_LEADER if partition is None else partition.leader

    def _begin(self, lookup: StartLookup) -> None:
        lookup.start()
        self._lookups.append(lookup)
        for key in lookup.partitions:
            self._partitions[key].begin_lookup(lookup)

    def _start(self, positions: Mapping[TopicPartition, Position]) -> None:
        if positions:
            topic_ids = {key: self._partitions[key].assigned_topic_id for key in positions}
            for key, consumer in self.reader.consume_partitions(positions, topic_ids=topic_ids).items():
                self._partitions[key].start(consumer)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions; iterations over them end."""
        for key in partitions:
            if (partition := self._partitions.pop(key, None)) is not None:
                partition.drop()
        for lookup in self._lookups.copy():
            if not self._awaiting(lookup):
                lookup.cancel()
                self._lookups.remove(lookup)

    def _partition(self, key: TopicPartition) -> AssignedPartition:
        if (partition := self._partitions.get(checked_partition(key))) is None:
            raise UsageError(f"{key[0]}-{key[1]} is not assigned to this consumer")
        return partition

    def __getitem__(self, key: TopicPartition) -> PartitionConsumer:
        if (consumer := self._partition(key).consumer) is None:
            raise UsageError(f"{key[0]}-{key[1]} has no start offset yet")
        return consumer

    def seek(self, key: TopicPartition, position: Position, *, listed: bool = False) -> None:
        """Set the position, see `PartitionConsumer.seek`.

        Ignored with a warning if the topic was recreated and the group has not assigned the new one yet. If reading has
        moved to the new one, only a `listed` offset is certainly of it; others are ignored until `record_returned`.
        """
        partition = self._partition(key)
        if partition.awaits_assignment or (not listed and (partition.is_new_topic or partition.has_lost_topic)):
            ignored = "seek of %s-%d to offset %d is ignored: the topic was deleted and created again"
            log.warning(ignored, *key, position.offset)
            return
        partition.seek(position)
        if partition.consumer is None:
            self._look_up_at_s = 0.0

    def rewind(self, key: TopicPartition, position: Position) -> None:
        """Seek back to a record that the user did not get, unless its topic was recreated: the new one has others."""
        partition = self._partition(key)
        if not partition.has_lost_topic:
            partition.seek(position)

    def record_returned(self, partitions: Collection[TopicPartition]) -> None:
        """Record that the user gets records of these partitions."""
        for key in partitions:
            self._partitions[key].is_new_topic = False

    def positions(self, *, moved: bool = False) -> dict[TopicPartition, CommittedOffset]:
        """Return positions to commit: of started partitions, unless in a recreated topic, and those set by `seek`.

        With `moved` only positions that may differ from the group's offsets.
        """
        return {
            key: to_commit(position)
            for key, partition in self._partitions.items()
            if (position := partition.position) is not None
            and not (moved and partition.group_offset == position.offset)
        }

    def positions_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of these partitions, as `positions`."""
        positions = {key: self._partitions[key].position for key in partitions}
        return {key: position for key, position in positions.items() if position is not None}

    @property
    def recreated(self) -> frozenset[TopicPartition]:
        """Return partitions that are known to be at a position in a deleted topic, while a new topic has its name."""
        return frozenset(key for key, partition in list(self._partitions.items()) if partition.is_recreated)

    @property
    def topic_ids(self) -> dict[TopicPartition, bytes]:
        """Return the ids of the topics that are read, for commits; zeros if unknown."""
        return {key: consumer.topic_id for key, consumer in self.consumers.items()}

    @property
    def recreations(self) -> dict[TopicPartition, int]:
        """Return how often reading has moved to a recreated topic, for partitions where it has."""
        return {key: partition.recreations for key, partition in self._partitions.items() if partition.recreations}

    def record_staged(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Record offsets that are being committed."""
        for key, offset in offsets.items():
            if (partition := self._partitions.get(key)) is not None and partition.consumer is not None:
                partition.group_offset = offset.offset

    def poll(
        self, timeout_ms: float, max_rows: int | None = None
    ) -> tuple[TopicPartition, pa.RecordBatch, RecordPositions] | None:
        """Return the next record batch of any partition, see `Consumer.poll`, with the positions in it.

        Also None after lost data: the next `start_added` looks up where to continue.
        """
        try:
            read = self.reader.poll(timeout_ms, max_rows)
        except KafkaError as error:
            if (partition := self._partition_of(error)) is None:
                raise
            if not isinstance(error, DataLoss) or self._config.auto_offset_reset == "none":
                self._fail(partition)
                raise
            if isinstance(error, LogTruncated):
                self._resume_at(partition, end_of_common_log(error), error)
            else:
                _log_wait(partition, error)
                partition.lose(error)
                self._look_up_at_s = 0.0
            return None
        return None if read is None else ((read[0].topic, read[0].partition), read[1], read[0].records)

    def raise_again(self) -> None:
        """Raise the error of a partition that `poll` has raised once, and that lasts until `seek`.

        If several partitions have one, each call raises the error of another partition.
        """
        if not self._may_have_failed:
            return
        failed = [partition for partition in self._partitions.values() if partition.state is PartitionState.FAILED]
        self._may_have_failed = bool(failed)
        for partition in failed:
            if (error := partition.lasting_error) is not None:
                self._fail(partition)
                raise error.with_traceback(None)  # each raise would add its frames

    def recover(self, loss: DataLoss, keeps_claims: Callable[[], bool], timeout_ms: float) -> CommittedOffset | None:
        """Seek after lost data: to the last common offset, else by `auto.offset.reset`. Return the new position.

        Raises the loss if the reset is `none`. Waits for the leader, up to `default.api.timeout.ms`. Returns None if
        the partition is dropped meanwhile, or if `keeps_claims`, called repeatedly during the wait, returns False, or
        after `timeout_ms` if the group has not assigned a recreated topic yet: reading raises the loss again. Called in
        the thread that reads the partition.
        """
        if self._config.auto_offset_reset == "none":
            raise loss
        if (partition := self._partition_of(loss)) is None:
            return None
        _log_wait(partition, loss)
        partition.loss = loss
        if isinstance(loss, LogTruncated):
            position = end_of_common_log(loss)
        elif (reset := self._await_reset_position(partition, keeps_claims, timeout_ms)) is not None:
            position = reset
        else:
            return None
        self._resume_at(partition, position, loss)
        return to_commit(position)

    def _await_reset_position(
        self, partition: AssignedPartition, keeps_claims: Callable[[], bool], timeout_ms: float
    ) -> Position | None:
        key, backoff, deadline = partition.key, self._new_backoff(), self._client.deadline()
        until = self._client.deadline(timeout_ms)
        times = reset_times(self._config, [key], self._client.clock.wall_ms())

        def is_read() -> bool:
            return partition.state is not PartitionState.DROPPED and keeps_claims()

        while is_read():  # also if each lookup fails at once
            timeout_ms = min(self._listing_timeout_ms(backoff.tries), deadline.remaining_ms())
            lookup = ListingLookup(self._client, self._config, times, timeout_ms)
            lookup.start()
            while not lookup.ended:
                if not is_read():
                    lookup.cancel()
                    return None
                lookup.wait()
            position = lookup.positions().get(key)
            if position is not None and position.is_in(partition.assigned_topic_id):
                return Position(position.offset)  # without the id, as in `_apply`
            error = self._failure_of(lookup, partition)
            assert error is not None
            if position is not None:
                self._raise_if_overdue(partition, error)
                self._client.clock.sleep_s(until.remaining_s())
                return None
            if deadline.passed or not isinstance(error, DeadlineExceeded):
                raise error
            self._client.clock.sleep_s(min(backoff.next_s(), deadline.remaining_s()))
        return None

    def _fail(self, partition: AssignedPartition) -> None:
        """Handle a raised error: `raise_again` raises that of the partition behind those of others."""
        partition.fail()
        self._partitions[partition.key] = self._partitions.pop(partition.key)
        self._may_have_failed = True

    def _partition_of(self, error: KafkaError) -> AssignedPartition | None:
        key = partition_of(error)
        return None if key is None else self._partitions.get(key)

    def _resume_at(self, partition: AssignedPartition, position: Position, loss: DataLoss) -> None:
        partition.resume_at(position, loss)
        log.warning("%s; reading continues at offset %d", loss, position.offset)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Pause partitions, also before they have started."""
        for key in partitions:
            self._partition(key).pause()

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Resume partitions."""
        for key in partitions:
            self._partition(key).resume()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(key for key, partition in list(self._partitions.items()) if partition.paused)

    @property
    def consumers(self) -> dict[TopicPartition, PartitionConsumer]:
        """Return the consumers of started partitions."""
        consumers = {key: partition.consumer for key, partition in list(self._partitions.items())}
        return {key: consumer for key, consumer in consumers.items() if consumer is not None}

    def close(self, deadline: Deadline | None = None) -> None:
        """Stop reading, and end the fetches."""
        for lookup in self._lookups:
            lookup.cancel()
        self.reader.close(deadline)


def partition_of(error: KafkaError) -> TopicPartition | None:
    """Return the partition that an error is about, if it is about one."""
    topic, partition = error.context.get("topic"), error.context.get("partition")
    return None if topic is None or partition is None else (topic, partition)


def _have_failed(partitions: Iterable[AssignedPartition]) -> bool:
    return any(partition.backoff.tries for partition in partitions)


def _log_wait(partition: AssignedPartition, loss: DataLoss) -> None:
    if isinstance(loss, TopicRecreated) and partition.assigned_topic_id != NO_TOPIC_ID and partition.loss is not loss:
        log.warning("%s; this member waits until the group assigns the new topic", loss)
