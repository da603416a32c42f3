"""A consumer that polls, after Java's `KafkaConsumer`: `subscribe` or `assign`, then call `poll` in a loop.

Fetches, heartbeats and commits run in background threads. Rebalances, listeners and callbacks run only in calls of the
user, in the user's thread.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import ParamSpec

import pyarrow as pa

from protocol.base.calls import CallGate, gated
from protocol.base.clock import Deadline
from protocol.base.condition import Event
from protocol.base.listing import listed
from protocol.checked_values import checked_partition, checked_times, require_callback
from protocol.cluster.client import Client, open_client
from protocol.consumer.assigned_partitions import AssignedPartitions, partition_of
from protocol.consumer.commits import Commits, Offsets, OnCommit
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed, KafkaError, UsageError, WakeUp
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.group.commits.committed_offsets import (
    CallerOffsets,
    CommittedOffset,
    as_committed_offset,
    as_committed_offsets,
    fetch_positions,
)
from protocol.group.commits.offset_manager import DELETED_TOPIC_S
from protocol.group.member import NO_MEMBER, ConsumerGroupMetadata
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.kafka_terms import EARLIEST, LATEST, NO_TOPIC_ID, TopicIds, TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.metrics.definitions import CLIENT_GROUPS, CONSUMER_GROUPS
from protocol.position import Position, RecordPositions
from protocol.records.decode import ALL_COLUMNS
from protocol.settings.secret import hide_variables

log = logging.getLogger(__name__)

# Interval at which a waiting poll checks for rebalances, wake-ups and completed commits.
_CHECK_INTERVAL_MS = 50
# Time left for LeaveGroup if the commit has used up the timeout.
_LEAST_LEAVE_MS = 500
# Without `max.poll.records`, a poll takes no further record batch from this number of records on.
_ENOUGH_ROWS = 500

P = ParamSpec("P")
Batches = list[tuple[TopicPartition, pa.RecordBatch, RecordPositions]]


def _to_consumer_records(batches: Batches, partitions: AssignedPartitions) -> ConsumerRecords:
    by_partition: dict[TopicPartition, list[pa.RecordBatch]] = {}
    positions: dict[TopicPartition, list[RecordPositions]] = {}
    for key, batch, records in batches:
        by_partition.setdefault(key, []).append(batch)
        positions.setdefault(key, []).append(records)
    return ConsumerRecords(by_partition, positions, partitions.positions_of(by_partition))


class KafkaConsumer:
    """A consumer that reads topics as a member of a group, or assigned partitions.

    Not thread-safe, except `wakeup`: a call raises `UsageError` while another thread is in a call. A signal handler may
    call `wakeup` and `close`. Also a context manager that calls `close`.

    Parameters
    ----------
    client : Client or mapping, optional
        A `Client`, which stays open after `close`; or its properties in Kafka's names, such as `bootstrap.servers`.
    config : GroupConsumerConfig or mapping, optional
        A `GroupConsumerConfig`, or consumer properties such as `group.id` and `auto.offset.reset`.
    columns : collection of str
        Names of the columns to decode; fewer columns are faster. By default all:
        `key`, `value`, `offset`, `timestamp_ms`, `timestamp_type`, `headers`.
    **properties
        More properties, with `_` for `.`; see `open_client`.

    Raises
    ------
    ConfigurationError
        A property is unknown or invalid.

    Notes
    -----
    If the group's coordinator refuses this member, for example because of missing ACLs, its partitions are lost and
    `poll` raises the error; a later `poll` joins again. With `enable.auto.commit` (the default) the positions of the
    last `poll` are committed every `auto.commit.interval.ms`, before partitions are revoked, and by `unsubscribe` and
    `close`.
    """

    @hide_variables
    def __init__(
        self,
        client: Client | Mapping[str, object] | None = None,
        config: GroupConsumerConfig | Mapping[str, object] | None = None,
        *,
        columns: Collection[str] = ALL_COLUMNS,
        **properties: object,
    ) -> None:
        self._client, self._owns_client, settings = open_client(client, config, properties, parse_group_consumer)
        self._config = settings
        self._gate = CallGate("consumer", "another thread uses this consumer, which is not thread-safe except wakeup")
        self._partitions = AssignedPartitions(self._client, settings, columns)
        self._commits = Commits(self._client, settings, self._gate.user_code)
        self._membership: Membership | None = None
        self._member = NO_MEMBER
        self._listener = ConsumerRebalanceListener()
        self._in_listener = False
        self._leaving = False
        self._subscription = TopicSubscription()
        self._woken = Event()  # set also by signal handlers
        # An error of a partition, found while `poll` had records to return: the next `poll` raises it.
        self._error: KafkaError | None = None
        # The first exception of the user's listener or callbacks that no call has raised yet.
        self._user_error: Exception | None = None
        self._client.sensors.use(CONSUMER_GROUPS)
        self._polled_s: float | None = None

    def __enter__(self) -> KafkaConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client(self) -> Client:
        """Return the client, shared or this consumer's own. Thread-safe."""
        return self._client

    @property
    def config(self) -> GroupConsumerConfig:
        """Return the configuration. Thread-safe."""
        return self._config

    def metrics(self) -> list[Metric]:
        """Return the metrics of consumers and connections of this consumer's client. Thread-safe; sends no request."""
        return self._client.metrics((*CONSUMER_GROUPS, *CLIENT_GROUPS))

    # -- which partitions ---------------------------------------------------------------------

    @gated
    def subscribe(
        self,
        topics: Collection[str] | re.Pattern[str],
        listener: ConsumerRebalanceListener | None = None,
        *,
        re2: str | None = None,
    ) -> None:
        """Subscribe to topics instead of any former ones; the next `poll` joins the group.

        Until the coordinator has changed the assignment, `poll` may return records of former topics, as in Java.

        Parameters
        ----------
        topics : collection of str or re.Pattern
            Names of topics, or a pattern that matches whole names; internal topics never match.
        listener : ConsumerRebalanceListener, optional
            Called when partitions are assigned, revoked or lost.
        re2 : str, optional
            The same pattern in RE2 syntax, which brokers match (Java's `SubscriptionPattern`). Used with
            `group.protocol=consumer` only; ignored if `topics` are names.

        Raises
        ------
        UsageError
            Partitions are assigned by `assign`, `group.id` is not set, or `topics` is a single name.
        """
        subscription = TopicSubscription.of(topics, re2)
        if self._membership is not None:
            self._membership.subscribe(subscription)
        else:
            if self._partitions.assigned:
                raise UsageError("partitions are assigned with assign; call unsubscribe first")
            self._membership = self._new_membership(subscription)
        self._subscription = subscription
        self._listener = listener or ConsumerRebalanceListener()

    @gated
    def replace_listener(self, listener: ConsumerRebalanceListener) -> ConsumerRebalanceListener:
        """Set the listener of the subscription, and return the former one."""
        former, self._listener = self._listener, listener
        return former

    @gated
    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, without group membership.

        Partitions that were assigned before continue at their positions. With `enable.auto.commit`, the positions of
        the others are committed if a commit is due, as in Java.

        Parameters
        ----------
        partitions : collection of (str, int)
            Pairs of topic and partition number.

        Raises
        ------
        UsageError
            Topics are subscribed, or a partition cannot exist.
        """
        if self._membership is not None:
            raise UsageError("topics are subscribed; call unsubscribe first")
        assigned = set(map(checked_partition, partitions))
        self._member = NO_MEMBER
        if self._commits.take_auto_commit_due():
            self._commit_in_background()
        before = self._partitions.assigned
        self._partitions.drop(before - assigned)
        self._partitions.add(assigned - before)

    @gated
    def unsubscribe(self) -> None:
        """Commit with `enable.auto.commit`, leave the group, and drop all partitions.

        Raises
        ------
        UsageError
            Called by the listener while this consumer leaves its group.
        Exception
            The first exception of the listener or a callback.
        """
        self._require_not_leaving()
        try:
            self._leave()
        finally:
            self._subscription = TopicSubscription()
        self._raise_user_error()

    @property
    @gated
    def subscription(self) -> TopicSubscription:
        """Return the subscription; without names and pattern if there is none."""
        return self._subscription

    @property
    @gated
    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions."""
        return self._partitions.assigned

    # -- reading ------------------------------------------------------------------------------

    def poll(self, timeout_ms: float) -> ConsumerRecords:
        """Return records of the assigned partitions.

        Parameters
        ----------
        timeout_ms : float
            Maximum wait for records. Longer in a rebalance: listeners, and up to `request.timeout.ms` for automatic
            commits before partitions are revoked.

        Returns
        -------
        ConsumerRecords
            Record batches by partition, at most `max.poll.records` records; by default whole record batches, until they
            have at least 500 records or no more have arrived. Empty after the timeout.

        Raises
        ------
        WakeUp
            `wakeup` was called.
        BrokerError
            A partition cannot be read; raised at each attempt, while other partitions continue. Or this member leads
            the group and has no Describe ACL for a subscribed topic; raised once.
        DataLoss
            The position of a partition is not in the log, and `auto.offset.reset` is `none`. Raised again by each call
            without records, until `seek`; for several partitions in turn.
        Corrupt
            A record batch cannot be decoded. Raised after the records before it have been returned, and again as
            `DataLoss` is.
        NoOffset
            A partition has no committed offset, and `auto.offset.reset` is `none`. Raised by each call until `seek`; no
            partition is read meanwhile.
        KafkaError
            The consumer cannot be a member of the group, or `group.join.retries` retries of a join have failed; the
            next call continues to join.
        Exception
            The first exception of the listener or a callback in a rebalance; the consumer stays a member.

        Notes
        -----
        A partition whose start offset is not known yet starts in a later call, and does not delay other partitions: its
        leader, or the group's coordinator, does not respond.
        """
        batches: Batches = []
        with self._gate.call(undo=partial(self._rewind, batches)):
            return self._poll(timeout_ms, batches)

    def _poll(self, timeout_ms: float, batches: Batches) -> ConsumerRecords:
        """Read into `batches`, which are rewound if the caller of `poll` does not get them.

        The order matters: rebalances drop partitions before others start, and nothing is read or returned unless the
        partitions are still owned. `batches` are empty in a rebalance, since a dropped partition cannot be rewound.
        """
        if self._in_listener:  # it would handle the same rebalance a second time
            raise UsageError("a rebalance listener must not call poll")
        self._record_poll()
        deadline = self._client.deadline(timeout_ms)
        while True:
            self._update_assignment(deadline)
            if self._woken.is_set():
                self._woken.clear()
                raise WakeUp("this consumer was woken up")
            self._partitions.start_added(deadline.remaining_ms())
            wait_ms = min(deadline.remaining_s() * 1000, _CHECK_INTERVAL_MS)
            if self._still_owned():
                self._read_batches(batches, wait_ms)
            elif self._membership is not None:  # it is joining
                self._membership.await_change(wait_ms)
            # The process may have been suspended, and the partitions assigned to another member.
            if batches and self._still_owned() and not self._gate.closes:
                self._partitions.record_returned({key for key, *_ in batches})
                return _to_consumer_records(batches, self._partitions)
            self._rewind(batches)
            if self._gate.closes:
                return ConsumerRecords({})
            if deadline.passed:
                self._partitions.raise_again()  # without its records, a program would wait for them forever
                return ConsumerRecords({})

    def _record_poll(self) -> None:
        before_s, self._polled_s = self._polled_s, self._client.clock.now_s()
        since_s = 0.0 if before_s is None else self._polled_s - before_s
        self._client.sensors.polls.record((self._polled_s, since_s * 1000))

    def _update_assignment(self, deadline: Deadline) -> None:
        """Handle rebalances and completed commits, and start automatic commits."""
        if (error := self._error) is not None:
            self._error = None
            if (key := partition_of(error)) is None or key in self._partitions.assigned:
                raise error
        self._commits.run_callbacks()
        if (membership := self._membership) is not None:
            membership.progress()
            if (authorization_error := membership.take_authorization_error()) is not None:
                raise authorization_error
            # Partitions may be owned and not added here, if Ctrl-C has ended an earlier wait of `poll_rebalance`. All
            # that are added are owned: `_on_revocation` drops them before the member releases them.
            if membership.rebalance_pending is not None or len(membership.owned) != len(self._partitions):
                assignment = membership.poll_rebalance(deadline.at_most_ms(_CHECK_INTERVAL_MS), self._on_revocation)
                if self._membership is membership:  # else the listener has left the group
                    if assignment.member.is_in_group:
                        self._member = assignment.member
                    self._add_assigned(assignment.owned - self._partitions.assigned, membership.topic_ids)
                self._raise_user_error()
        if self._commits.take_auto_commit_due():
            self._commit_in_background()

    def _call_and_keep_error(self, function: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
        """Call code that runs a listener or callbacks; `_raise_user_error` raises the first exception, as in Java."""
        try:
            function(*arguments, **options)
        except Exception as error:
            log.exception("a rebalance listener or commit callback raised an exception")
            self._user_error = self._user_error or error

    def _call_listener(
        self, function: Callable[[Collection[TopicPartition]], None], partitions: Collection[TopicPartition]
    ) -> None:
        former, self._in_listener = self._in_listener, True
        try:
            self._call_and_keep_error(self._gate.user_code, function, partitions)
        finally:
            self._in_listener = former

    def _raise_user_error(self) -> None:
        """Raise the first exception that `_call_and_keep_error` has caught, once."""
        if (raised := self._user_error) is not None:
            self._user_error = None
            raise raised

    def _read_batches(self, batches: Batches, timeout_ms: float) -> None:
        rows, max_records = 0, self._config.max_poll_records
        while rows < (max_records or _ENOUGH_ROWS):
            try:
                read = self._partitions.poll(
                    0 if rows else timeout_ms, None if max_records is None else max_records - rows
                )
            except KafkaError as error:
                if not rows:
                    raise
                self._error = error
                break
            if read is None:
                break
            batches.append(read)
            rows += read[1].num_rows

    def _rewind(self, batches: Batches) -> None:
        """Take back the read of records that `poll` does not return: their offsets must not be committed."""
        first_batches = {key: (batch, records) for key, batch, records in reversed(batches)}
        for key, (first, records) in first_batches.items():
            self._partitions.rewind(key, records.at(first.column("offset")[0].as_py()))
        batches.clear()

    def _still_owned(self) -> bool:
        """Return True if the member certainly still owns the partitions.

        In the consumer protocol, only the coordinator knows after a long pause of this process (KIP-848). Returns
        False until the coordinator responds.
        """
        if self._membership is None:
            return True
        self._membership.progress()
        return self._membership.assignment_lost is None and self._membership.member.keeps_assignment_of(self._member)

    def wakeup(self) -> None:
        """Make the present or the next `poll` raise `WakeUp`. Thread-safe."""
        self._woken.set()

    # -- rebalances ---------------------------------------------------------------------------

    def _new_membership(self, subscription: TopicSubscription) -> Membership:
        """Create a member, which joins with the next `poll`."""
        membership = Membership(
            self._client,
            self._config.consumer,
            subscription,
            self._commits.set_member,
            self._config.group_join_retries,
        )
        self._commits.report_to(membership)
        return membership

    def _on_revocation(self, revocation: Revocation) -> None:
        partitions, membership = revocation.partitions, self._membership
        if revocation.lost:
            if partitions:
                self._call_listener(self._listener.on_partitions_lost, partitions)
        else:
            self._revoke(partitions, self._client.deadline())
        if self._membership is membership:  # else the listener has dropped them, and may have assigned others
            self._partitions.drop(partitions)
        self._call_and_keep_error(self._commits.retain, self._partitions.assigned)

    def _add_assigned(self, added: Collection[TopicPartition], topic_ids: TopicIds) -> None:
        if added:
            self._partitions.add(added, topic_ids)
            self._call_listener(self._listener.on_partitions_assigned, added)

    def _revoke(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Commit positions, call the listener, and wait for commits in flight, before partitions are released."""
        limit_ms = self._client.config.request_timeout_ms
        completed = self._commit_positions(partitions, deadline.at_most_ms(limit_ms))
        if partitions and self._membership is not None:
            lost = self._membership.assignment_lost is not None
            listener = self._listener
            self._call_listener(listener.on_partitions_lost if lost else listener.on_partitions_revoked, partitions)
        # Commits of the listener; not a second time for a coordinator that does not respond.
        self._call_and_keep_error(self._commits.await_pending, deadline.at_most_ms(limit_ms if completed else 0))

    def _commit_positions(self, partitions: Collection[TopicPartition], deadline: Deadline) -> bool:
        """Commit positions if commits are automatic, and wait for commits in flight; False after the deadline."""
        if self._commits.auto:
            uncommitted = self._uncommitted()
            try:
                offsets = {key: uncommitted[key] for key in partitions if key in uncommitted}
                self._commit(offsets, deadline, partition_timeout_s=DELETED_TOPIC_S)
            except CommitFailed as error:
                log.warning("%s", error)
        self._call_and_keep_error(self._commits.await_pending, deadline)
        return not deadline.passed

    @gated
    def enforce_rebalance(self) -> None:
        """Leave the group as `unsubscribe` does; the next `poll` rejoins, which causes a new assignment."""
        self._require_not_leaving()
        if self._membership is not None:
            try:
                self._leave(for_good=True)
            finally:
                self._membership = self._new_membership(self._subscription)
            self._raise_user_error()

    @gated
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the member that has fetched the records, for `send_offsets_to_transaction`.

        Call it for each transaction, after `poll`: the result also has the ids of the topics that were read.

        Returns
        -------
        ConsumerGroupMetadata
            After a loss of the partitions the generation or epoch is the old one until the member has rejoined, so that
            the coordinator refuses the offsets.

        Raises
        ------
        UsageError
            `group.id` is not set.
        """
        group = self._config.consumer.group_id
        if group is None:
            raise UsageError("this consumer has no group: set group.id", settings=("group.id",))
        member = self._member if self._membership is None else self._member.updated_to(self._membership.member)
        return ConsumerGroupMetadata(group, member, self._partitions.topic_ids)

    # -- positions ----------------------------------------------------------------------------

    @gated
    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns; if necessary, wait until the start offset is known.

        Raises
        ------
        UsageError
            The partition is not assigned.
        NoOffset, BrokerError, DeadlineExceeded
            The start offset is not known.
        """
        return self._started_consumer(partition).position

    @gated
    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions that `commit_sync` commits by default, with their leader epochs. Does not wait.

        Absent are partitions whose start offset is not known yet, and partitions that are known to be at a position in
        a deleted topic while a new topic has its name.
        """
        return self._partitions.positions()

    @property
    @gated
    def recreations(self) -> dict[TopicPartition, int]:
        """Return how often each partition was moved from a deleted topic to a new topic of the same name.

        Counted since the assignment; partitions without a move are absent. Offsets read before a move belong to the
        deleted topic. Empty for subscribed partitions of the consumer protocol: the group assigns the new topic.
        """
        return self._partitions.recreations

    def _started_consumer(self, partition: TopicPartition) -> PartitionConsumer:
        self._partitions.await_position(partition, self._client.deadline())
        return self._partitions[partition]

    @gated
    def seek(self, partition: TopicPartition, offset: int | CommittedOffset) -> None:
        """Set the position; the next record is that at `offset` or the first after it.

        Parameters
        ----------
        partition : (str, int)
            An assigned partition.
        offset : int or CommittedOffset
            With the leader epoch of a `CommittedOffset`, a truncation of the log below the offset is noticed (KIP-320).
            With its topic id, `auto.offset.reset` applies if the topic was deleted and created again.

        Raises
        ------
        UsageError
            The partition is not assigned, or the offset is negative.

        Notes
        -----
        Ignored with a warning if the topic was deleted and created again, and no `poll` has returned records of the new
        topic or raised `TopicRecreated` since: an offset of the deleted topic would skip records. `auto.offset.reset`
        selects where to continue; `seek_to_beginning` and `seek_to_end` take effect. In the consumer protocol these
        two are ignored, too, until the group has assigned the new topic.
        """
        self._seek(partition, as_committed_offset(partition, offset))

    def _seek(self, partition: TopicPartition, offset: CommittedOffset, *, listed: bool = False) -> None:
        if self._error is not None and partition_of(self._error) == partition:
            self._error = None
        position = Position(offset.offset, offset.leader_epoch, topic_id=offset.topic_id)
        self._partitions.seek(partition, position, listed=listed)

    @gated
    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Seek to the log start offsets of these partitions, by default all assigned ones.

        Raises
        ------
        UsageError
            A partition is not assigned.
        BrokerError, DeadlineExceeded
            An offset is not known.
        """
        self._seek_all(self.beginning_offsets(partitions or self.assignment))

    @gated
    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Seek to the high watermarks of these partitions, by default all assigned ones.

        With `isolation.level=read_committed` the last stable offsets are used.

        Raises
        ------
        UsageError
            A partition is not assigned.
        BrokerError, DeadlineExceeded
            An offset is not known.
        """
        self._seek_all(self.end_offsets(partitions or self.assignment))

    def _seek_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            self._seek(partition, CommittedOffset(offset), listed=True)

    @gated
    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offsets.

        Raises
        ------
        BrokerError, DeadlineExceeded
            An offset is not known.
        """
        times = dict.fromkeys(map(checked_partition, partitions), EARLIEST)
        return {key: offset.offset for key, offset in self._list_offsets(times).items()}

    @gated
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermarks; with `isolation.level=read_committed` the last stable offsets.

        Raises
        ------
        BrokerError, DeadlineExceeded
            An offset is not known.
        """
        times = dict.fromkeys(map(checked_partition, partitions), LATEST)
        return {key: offset.offset for key, offset in self._list_offsets(times).items()}

    @gated
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset | None]:
        """Return the first offset at or after a timestamp of each partition.

        Parameters
        ----------
        times_ms : mapping of (str, int) to int
            Milliseconds since 1970 by partition.

        Returns
        -------
        dict of (str, int) to ListedOffset or None
            None if there is no such record.

        Raises
        ------
        UsageError
            A timestamp is negative, or `times_ms` is no mapping of partitions to integers.
        BrokerError, DeadlineExceeded
            An offset is not known.
        """
        offsets = self._list_offsets(checked_times(times_ms))
        return {key: offset if offset.offset >= 0 else None for key, offset in offsets.items()}

    def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return list_offsets(self._client, times, isolation_level=self._config.consumer.isolation_level) if times else {}

    @gated
    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return the number of offsets from the position to the end of readable data; None before the first fetch.

        If necessary, waits until the start offset is known, and raises as `position`.
        """
        return self._started_consumer(partition).lag

    @gated
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions until `resume`; raise `UsageError` if one is not assigned."""
        self._partitions.pause(partitions)

    @gated
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Fetch paused partitions again; raise `UsageError` if one is not assigned."""
        self._partitions.resume(partitions)

    @property
    @gated
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return self._partitions.paused

    # -- commits ------------------------------------------------------------------------------

    @gated
    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offset of each partition; None if it has none.

        Since Kafka 4.2, the coordinator omits offsets of a deleted topic whose name a new topic has.

        Raises
        ------
        UsageError
            `group.id` is not set.
        BrokerError, DeadlineExceeded
            The offsets could not be fetched.
        """
        group = self.group_metadata().group_id
        if not partitions:
            return {}
        keys = list(map(checked_partition, partitions))
        offsets, of_unknown_topics = fetch_positions(self._client, group, keys, self._client.deadline())
        return {key: offsets.get(key) or of_unknown_topics.get(key) for key in keys}

    @gated
    def commit_sync(self, offsets: CallerOffsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit offsets and wait. A request is sent also for unchanged offsets.

        Parameters
        ----------
        offsets : mapping of (str, int) to CommittedOffset or int, optional
            Offsets by partition; None: the positions of all partitions.
        timeout_ms : float, optional
            Maximum wait; None: `default.api.timeout.ms`.

        Raises
        ------
        CommitFailed
            The partitions are assigned to another member, or an offset was refused or not committed in time. Offsets of
            an unknown topic are refused after 10 s of retries, in a rebalance listener after 1 s. Offsets of a topic
            that was deleted and created again are refused until a later `poll` has moved to the new topic.
            Offsets of other topics are committed.
        UsageError
            `group.id` is not set, an offset is negative, or Kafka cannot store it; nothing is committed.
        """
        present, recreated = self._split_recreated(None if offsets is None else as_committed_offsets(offsets))
        limit_s = DELETED_TOPIC_S if self._in_listener else math.inf  # a rebalance waits for the listener
        self._commit(present, self._client.deadline(timeout_ms), partition_timeout_s=limit_s)
        self._commits.run_callbacks()
        if recreated is not None:
            raise recreated

    @gated
    def commit_async(self, offsets: CallerOffsets | None = None, callback: OnCommit | None = None) -> None:
        """Commit offsets in the background.

        Parameters
        ----------
        offsets : mapping of (str, int) to CommittedOffset or int, optional
            Offsets by partition; None: the positions of all partitions.
        callback : callable, optional
            `callback(offsets, error)` is called in a later `poll`, `commit_sync` or `close`, in the order of the
            `commit_async` calls. `error` is None or `CommitFailed`, also if the coordinator has not responded within
            `request.timeout.ms`; the commit is retried nevertheless, until a later commit replaces it. Without a
            callback, refused commits are logged.

        Raises
        ------
        UsageError
            `group.id` is not set, an offset is negative or Kafka cannot store it, or the callback is not callable;
            nothing is committed.
        """
        require_callback(callback)
        checked = None if offsets is None else as_committed_offsets(offsets)
        present, failure = self._split_recreated(checked)
        try:
            self._commit_async(present)
        except CommitFailed as error:
            failure = error
        if callback is not None:
            self._commits.add_callback(present if checked is None else checked, callback, failure)
        elif failure is not None:
            log.warning("%s", failure)

    def _split_recreated(self, offsets: Offsets | None) -> tuple[Offsets, CommitFailed | None]:
        """Return the offsets to commit, and an error for offsets of a deleted topic whose name a new topic has."""
        if offsets is None:
            return self._partitions.positions(), None
        recreated = self._partitions.recreated & offsets.keys()
        if not recreated:
            return offsets, None
        names = listed([f"{topic}-{partition}" for topic, partition in sorted(recreated)])
        failure = CommitFailed(
            f"group {self._config.consumer.group_id}: offsets were not committed: the topic of {names} was deleted and "
            "created again, and the consumer has not moved to the new topic. Call poll"
        )
        return {key: offset for key, offset in offsets.items() if key not in recreated}, failure

    def _commit_in_background(self) -> None:
        """Commit the changed and the refused positions of a member, or all positions without membership.

        Brokers delete the offsets of a group without members after `offsets.retention.minutes`, so unchanged positions
        are committed, too.
        """
        with suppress(CommitFailed):  # the next `poll` reports lost partitions
            self._commit_async(self._partitions.positions() if self._membership is None else self._uncommitted())

    def _uncommitted(self) -> Offsets:
        """Return the positions that have changed since the last commit, or were refused in it."""
        moved, positions = self._partitions.positions(moved=True), self._partitions.positions()
        return {
            **moved,
            **self._commits.refused_of({key: offset for key, offset in positions.items() if key not in moved}),
        }

    def _commit(self, offsets: Offsets, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        self._commit_async(offsets)
        self._commits.wait(offsets, deadline, partition_timeout_s=partition_timeout_s)

    def _commit_async(self, offsets: Offsets) -> None:
        if self._membership is not None:
            self._membership.progress()  # also detects that this process was suspended
        topic_ids = self._partitions.topic_ids
        of_topics = {key: offset.assumed_in(topic_ids.get(key, NO_TOPIC_ID)) for key, offset in offsets.items()}
        self._commits.commit_async(of_topics, self._member)
        self._partitions.record_staged(offsets)

    # -- the end ------------------------------------------------------------------------------

    def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None) -> None:
        """Commit with `enable.auto.commit`, leave the group, and end all threads. Further calls have no effect.

        Parameters
        ----------
        timeout_ms : float, optional
            Maximum wait for brokers; None: `default.api.timeout.ms`.
        leave_group : bool, optional
            As Java's `CloseOptions` (KIP-1092). False: the group rebalances only after the session timeout. True: a
            static member leaves, too. None: leave, except a static member.

        Raises
        ------
        UsageError
            Another thread is in a call.
        Exception
            The first exception of the listener or a callback, after everything is closed.

        Notes
        -----
        In a signal handler that interrupts another call, and in a listener or callback, this call returns at once; the
        other one then closes before it returns or raises. Records that `poll` has read then are not committed.
        Ctrl-C ends the commit and the wait. A background thread then leaves the group and ends the threads; a further
        call waits for it.
        """
        self._gate.close(partial(self._close, timeout_ms, leave_group))

    def _close(self, timeout_ms: float | None, leave_group: bool | None) -> None:
        deadline = self._client.deadline(timeout_ms)

        def release() -> None:
            self._partitions.close(deadline)
            self._commits.close()
            if self._owns_client:
                self._client.close()

        try:
            self._leave(leave_group, deadline, release)  # still open, since the listener may commit
        finally:
            self._gate.closed = True
        self._call_and_keep_error(self._commits.run_callbacks)
        self._raise_user_error()

    def _leave(
        self,
        for_good: bool | None = None,
        deadline: Deadline | None = None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """Revoke all partitions and leave the group, then call `release`. See `Membership.close` for `for_good`.

        If Ctrl-C interrupts the commit, the listener or the wait, a background thread does what remains to be done.
        """
        deadline = deadline or self._client.deadline()
        partitions, membership = self._partitions.assigned, self._membership

        def end() -> None:
            try:
                if membership is not None:
                    membership.close(for_good, max(_LEAST_LEAVE_MS, min(LEAVE_MS, deadline.remaining_ms())))
            finally:
                release()

        self._leaving = True
        try:
            self._revoke(partitions, deadline)
        finally:
            self._leaving = False
            self._partitions.drop(partitions)
            # `_member` stays: records fetched as a member must not be committed without one.
            self._membership = None
            if membership is not None:
                membership.detach()
            self._commits.set_member(NO_MEMBER)
            ending = self._gate.end_in_background(end, "end of a consumer")
        ending.wait()

    def _require_not_leaving(self) -> None:
        if self._leaving:  # the listener would be called again, without end
            raise UsageError("a rebalance listener must not call this while the consumer leaves its group")
