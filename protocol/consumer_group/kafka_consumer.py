"""A consumer that polls, for who comes from Java's `KafkaConsumer`: `subscribe` or `assign`, then `poll` in a loop.

Not thread-safe, except `wakeup`: a call raises `UsageError` while another thread is in one. It fetches, keeps its place
in the group and commits in threads of its own; rebalances are taken up, and listeners and callbacks called, only within
`poll`, `commit_sync` and `close`.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client, open_client
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.log_offsets import ListedOffset
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer_group.commits import Commits, Offsets, OnCommit
from protocol.consumer_group.consumer_records import ConsumerRecords
from protocol.consumer_group.group_consumer_config import GroupConsumerConfig, parse_group_consumer
from protocol.consumer_group.group_streams import GroupStreams, fetch_group_offsets
from protocol.consumer_group.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed, KafkaError, UsageError, WakeUp
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import NO_MEMBER, ConsumerGroupMetadata
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.membership import LEAVE_MS, Membership
from protocol.group.offset_manager import DELETED_TOPIC_S
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from protocol.records.decode import ALL_COLUMNS

log = logging.getLogger(__name__)

# A poll that waits looks so often for rebalances, wake-ups and answers to commits.
_CHECK_INTERVAL_MS = 50
_MAX_POLL_ROWS = 500

P = ParamSpec("P")
T = TypeVar("T")
Batches = dict[TopicPartition, list[pa.RecordBatch]]


def _single_threaded(method: Callable[Concatenate[KafkaConsumer, P], T]) -> Callable[Concatenate[KafkaConsumer, P], T]:
    """Raises `UsageError` after `close`, and while another thread uses the consumer."""

    @wraps(method)
    def call(consumer: KafkaConsumer, /, *given: P.args, **named: P.kwargs) -> T:
        with consumer._acquire():
            if consumer._closed:
                raise UsageError("this consumer is closed")
            return method(consumer, *given, **named)

    return call


class KafkaConsumer:
    """`columns`: as of `Consumer`. Raises `KafkaError` in `poll` when it cannot be a member of its group for good."""

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
        self._streams = GroupStreams(self._client, settings, columns)
        self._commits = Commits(self._client, settings)
        self._membership: Membership | None = None
        self._member = NO_MEMBER
        self._listener = ConsumerRebalanceListener()
        self._subscription = TopicSubscription()
        self._woken = threading.Event()
        # What was wrong behind the records of the last poll.
        self._error: KafkaError | None = None
        # The first exception of the user's listener or callbacks that no call has raised yet.
        self._user_error: Exception | None = None
        self._closing = self._closed = False
        self._in_use = threading.RLock()

    def __enter__(self) -> KafkaConsumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- which partitions ---------------------------------------------------------------------

    @_single_threaded
    def subscribe(
        self,
        topics: Collection[str] | re.Pattern[str],
        listener: ConsumerRebalanceListener | None = None,
        *,
        re2: str | None = None,
    ) -> None:
        """To topics by name, or to all whose whole name matches. Joins the group with the next `poll`.

        `re2`: the pattern as brokers match it (Java's `SubscriptionPattern`), with `group.protocol=consumer`.
        """
        if isinstance(topics, re.Pattern):
            self._subscription = TopicSubscription(pattern=topics, re2=re2)
        else:
            self._subscription = TopicSubscription(frozenset(topics))
        if self._membership is not None:
            self._membership.subscribe(self._subscription)
        else:
            if self._streams.partitions:
                raise UsageError("partitions are assigned by hand; unsubscribe first")
            self._join()
        self._listener = listener or ConsumerRebalanceListener()

    @_single_threaded
    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Reads exactly these, without a group that shares them. Those that are read already go on."""
        if self._membership is not None:
            raise UsageError("topics are subscribed to; unsubscribe first")
        self._member = NO_MEMBER
        before = self._streams.partitions
        self._streams.drop(before - set(partitions))
        self._streams.add(set(partitions) - before)

    @_single_threaded
    def unsubscribe(self) -> None:
        """From everything; leaves the group. What was polled is committed before, with `enable.auto.commit`."""
        self._leave()
        self._subscription = TopicSubscription()
        self._raise_user_error()

    @property
    @_single_threaded
    def subscription(self) -> TopicSubscription:
        return self._subscription

    @property
    @_single_threaded
    def assignment(self) -> frozenset[TopicPartition]:
        return self._streams.partitions

    # -- reading ------------------------------------------------------------------------------

    @_single_threaded
    def poll(self, timeout_ms: float) -> ConsumerRecords:
        """Records of the assigned partitions, at most a few thousand; none when none came in time.

        Takes longer where partitions begin to be read, or a listener does. A partition without a leader begins in a
        later call, and holds up no other. Raises `WakeUp`, what reading a partition
        raises (once; the others go on), the first exception of a listener (once, after the rebalance: the member goes
        on), and, once, which topics nobody can be assigned since this member leads its group and has no right to know
        of them.
        """
        deadline = self._client.deadline(timeout_ms)
        while True:
            self._update_assignment(deadline)
            if self._woken.is_set():
                self._woken.clear()
                raise WakeUp("this consumer was woken up")
            self._streams.start_added(self._client.deadline())
            batches: Batches = {}
            try:
                if self._still_owned():
                    self._read(batches, min(deadline.remaining_s() * 1000, _CHECK_INTERVAL_MS))
                # This process may have slept, and the partitions may be another member's.
                if batches and self._still_owned():
                    return ConsumerRecords(batches)
            except BaseException:  # such as Ctrl-C
                self._rewind(batches)
                raise
            self._rewind(batches)
            if deadline.passed:
                return ConsumerRecords({})

    def _update_assignment(self, deadline: Deadline) -> None:
        """With the group: what has to be given up, what is new; commits that are due."""
        if (error := self._error) is not None:
            self._error = None
            raise error
        self._commits.run_callbacks()
        if (membership := self._membership) is not None:
            membership.progress()
            if (authorization_error := membership.take_authorization_error()) is not None:
                raise authorization_error
            # An interrupt may have come when the member had taken partitions, and before they were added here.
            if membership.rebalance_pending is not None or len(membership.owned) != len(self._streams):
                assignment = membership.poll_rebalance(deadline.at_most_ms(_CHECK_INTERVAL_MS), self._on_revocation)
                if assignment.member.is_in_group:
                    self._member = assignment.member
                self._add_assigned(assignment.owned - self._streams.partitions)
                self._raise_user_error()
        if self._commits.auto_commit_due:
            self._commit_in_background()

    def _call_user_code(self, function: Callable[P, object], *given: P.args, **named: P.kwargs) -> None:
        """Call a listener or callback; `_raise_user_error` raises the first exception later, as in Java."""
        try:
            function(*given, **named)
        except Exception as error:
            log.exception("a rebalance listener or commit callback raised an exception")
            self._user_error = self._user_error or error

    def _raise_user_error(self) -> None:
        """Raises what `_call_user_code` has kept, once."""
        if (raised := self._user_error) is not None:
            self._user_error = None
            raise raised

    def _read(self, batches: Batches, timeout_ms: float) -> None:
        rows = 0
        while rows < _MAX_POLL_ROWS:
            try:
                read = self._streams.poll(0 if rows else timeout_ms)
            except KafkaError as error:
                if not rows:
                    raise
                self._error = error
                break
            if read is None:
                break
            key, batch = read
            batches.setdefault(key, []).append(batch)
            rows += batch.num_rows

    def _rewind(self, batches: Batches) -> None:
        """Has them read again: the position of records that no `poll` returned must not be committed."""
        for key, (first, *_) in batches.items():
            self._streams.seek(key, first.column("offset")[0].as_py())

    def _still_owned(self) -> bool:
        """Not while only the coordinator knows (KIP-848): after a long sleep the member asks it."""
        if self._membership is None:
            return True
        self._membership.progress()
        return self._membership.assignment_lost is None and self._membership.member.keeps_assignment_of(self._member)

    def wakeup(self) -> None:
        """From any thread: `poll`, this one or the next, raises `WakeUp`."""
        self._woken.set()

    # -- rebalances ---------------------------------------------------------------------------

    def _join(self) -> None:
        """With the next `poll`."""
        self._membership = Membership(self._client, self._config.consumer, self._subscription, self._commits.set_member)

    def _on_revocation(self, revocation: Revocation) -> None:
        partitions = revocation.partitions
        if revocation.lost:
            self._call_user_code(self._listener.on_partitions_lost, partitions)
        else:
            self._revoke(partitions, self._client.deadline())
        self._streams.drop(partitions)
        self._call_user_code(self._commits.retain, self._streams.partitions)

    def _add_assigned(self, added: Collection[TopicPartition]) -> None:
        if added:
            self._streams.add(added)
            self._call_user_code(self._listener.on_partitions_assigned, added)

    def _revoke(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """Before they are given up: the last commits, also those that the listener does not wait for."""
        limit_ms = self._client.config.request_timeout_ms
        self._commit_positions(partitions, deadline.at_most_ms(limit_ms))
        if partitions and self._membership is not None:
            self._call_user_code(self._listener.on_partitions_revoked, partitions)
        self._call_user_code(self._commits.await_pending, deadline.at_most_ms(limit_ms))

    def _commit_positions(self, partitions: Collection[TopicPartition], deadline: Deadline) -> None:
        """If commits are automatic; others that are under way end, too."""
        if self._commits.auto:
            moved = self._streams.positions(moved=True)
            try:
                offsets = {key: moved[key] for key in partitions if key in moved}
                self._commit(offsets, deadline, partition_timeout_s=DELETED_TOPIC_S)
            except CommitFailed as error:
                log.warning("%s", error)
        self._call_user_code(self._commits.await_pending, deadline)

    @_single_threaded
    def enforce_rebalance(self) -> None:
        """Leaves the group at once, as `unsubscribe` does, and joins again with the next `poll`: it assigns anew."""
        if self._membership is not None:
            self._leave(for_good=True)
            self._join()
            self._raise_user_error()

    @_single_threaded
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the member that has fetched what `poll` returned, for `send_offsets_to_transaction`.

        After the member has lost its partitions, this stays the old generation or epoch until it has joined again, and
        the coordinator refuses the offsets.
        """
        group = self._config.consumer.group_id
        if group is None:
            raise UsageError("there is no group: set group.id", settings=("group.id",))
        member = self._member if self._membership is None else self._member.updated_to(self._membership.member)
        return ConsumerGroupMetadata(group, member)

    # -- positions ----------------------------------------------------------------------------

    @_single_threaded
    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that `poll` gives of it."""
        return self._stream(partition).position

    def _stream(self, partition: TopicPartition) -> PartitionConsumer:
        self._streams.await_position(partition, self._client.deadline())
        return self._streams[partition]

    @_single_threaded
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record is the one at `offset`, or the first after it."""
        about = self._error.context if self._error is not None else {}
        if (about.get("topic"), about.get("partition")) == partition:
            self._error = None
        self._streams.seek(partition, offset)

    @_single_threaded
    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        """None given: of all that are assigned."""
        self._seek_all(self.beginning_offsets(partitions or self.assignment))

    @_single_threaded
    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        """None given: of all that are assigned. With `read_committed`, to the last stable offset."""
        self._seek_all(self.end_offsets(partitions or self.assignment))

    def _seek_all(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            self.seek(partition, offset)

    @_single_threaded
    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {key: each.offset for key, each in self._list(dict.fromkeys(partitions, EARLIEST)).items()}

    @_single_threaded
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """With `read_committed` the last stable offsets."""
        return {key: each.offset for key, each in self._list(dict.fromkeys(partitions, LATEST)).items()}

    @_single_threaded
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset | None]:
        """The first record at or after a time, since 1970; None where there is none."""
        for (topic, partition), time_ms in times_ms.items():
            if time_ms < 0:
                raise UsageError(f"{topic}-{partition}: {time_ms} is no time")
        return {key: each if each.offset >= 0 else None for key, each in self._list(times_ms).items()}

    def _list(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return list_offsets(self._client, times, isolation_level=self._config.consumer.isolation_level) if times else {}

    @_single_threaded
    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets its position is behind what can be read; None before the first reply."""
        return self._stream(partition).lag

    @_single_threaded
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """`poll` gives nothing of these until `resume`."""
        self._streams.pause(partitions)

    @_single_threaded
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._streams.resume(partitions)

    @property
    @_single_threaded
    def paused(self) -> frozenset[TopicPartition]:
        return self._streams.paused

    # -- commits ------------------------------------------------------------------------------

    @_single_threaded
    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """The group's offsets; None where there is none."""
        self.group_metadata()
        found = fetch_group_offsets(self._client, self._config, partitions, self._client.deadline())
        return {key: found.get(key) for key in partitions}

    @_single_threaded
    def commit_sync(self, offsets: Offsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit these offsets, None: the positions of all partitions, and wait. Always asks the coordinator.

        Raises
        ------
        CommitFailed
            The partitions are another member's now, or the coordinator refuses an offset or does not answer in time.
            An unknown topic is refused after ten seconds. The other offsets are committed.
        """
        self._commit(self._streams.positions() if offsets is None else offsets, self._client.deadline(timeout_ms))
        self._commits.run_callbacks()

    @_single_threaded
    def commit_async(self, offsets: Offsets | None = None, callback: OnCommit | None = None) -> None:
        """Do the same without waiting.

        `callback(offsets, error)` is called in a later `poll`, `commit_sync` or `close`; with an error also if the
        coordinator has not answered within `request.timeout.ms`. The commit is retried after that, too, until a later
        commit replaces it.
        """
        offsets = self._streams.positions() if offsets is None else offsets
        try:
            self._commit_async(offsets)
        except CommitFailed as error:
            if callback is not None:
                callback(offsets, error)
        else:
            if callback is not None:
                self._commits.add_callback(offsets, callback)

    def _commit_in_background(self) -> None:
        """As a member only what has moved. Brokers forget the offsets of a group without members in time."""
        with suppress(CommitFailed):  # the next `poll` tells of the lost partitions
            self._commit_async(self._streams.positions(moved=self._membership is not None))

    def _commit(self, offsets: Offsets, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        self._commit_async(offsets)
        self._commits.wait(offsets, deadline, partition_timeout_s=partition_timeout_s)

    def _commit_async(self, offsets: Offsets) -> None:
        if self._membership is not None:
            self._membership.progress()  # also finds out whether this process has slept for too long
        self._commits.commit_async(offsets, self._member)
        self._streams.committed(offsets)

    # -- the end ------------------------------------------------------------------------------

    def close(self, timeout_ms: float | None = None) -> None:
        """Commits with `enable.auto.commit`, leaves the group, and ends all threads. May be called again.

        timeout_ms : how long brokers may take to answer; None: `default.api.timeout.ms`.
        """
        if self._closing:
            return
        deadline = self._client.deadline(timeout_ms)
        with self._acquire():
            self._closing = True
            try:
                self._leave(deadline=deadline)  # while it is open yet: the listener may commit
            finally:
                self._closed = True
                self._streams.close(deadline)
                self._commits.close()
                if self._owns_client:
                    self._client.close()
            self._call_user_code(self._commits.run_callbacks)
            self._raise_user_error()

    @contextmanager
    def _acquire(self) -> Iterator[None]:
        """By one thread at a time: else what a poll reads might be committed before anybody has seen it."""
        if not self._in_use.acquire(blocking=False):
            raise UsageError("another thread uses this consumer: it is for one thread, except wakeup")
        try:
            yield
        finally:
            self._in_use.release()

    def _leave(self, for_good: bool | None = None, deadline: Deadline | None = None) -> None:
        """`for_good`: None: a static member's partitions wait for it."""
        deadline = deadline or self._client.deadline()
        partitions = self._streams.partitions
        try:
            self._revoke(partitions, deadline)
        finally:
            self._streams.drop(partitions)
            if self._membership is not None:
                self._membership.close(for_good, min(LEAVE_MS, deadline.remaining_ms()))
            # `_member` stays: what was fetched under it is not to be committed as no member.
            self._membership = None
            self._commits.set_member(NO_MEMBER)
