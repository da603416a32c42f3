"""A consumer double that yields given records and errors, after sarama's `mocks`: no cluster, no threads."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ParamSpec

import pyarrow as pa

from protocol.base.calls import CallGate, gated
from protocol.base.clock import SYSTEM_CLOCK
from protocol.checked_values import checked_partition, checked_times, require_callback
from protocol.consumer.commits import Offsets, OnCommit
from protocol.consumer.consumer_records import ConsumerRecords
from protocol.consumer.rebalance_listener import ConsumerRebalanceListener
from protocol.errors import CommitFailed, Corrupt, DataLoss, KafkaError, NoOffset, UsageError, WakeUp
from protocol.fetch.log_offsets import ListedOffset
from protocol.group.commits.committed_offsets import (
    CallerOffsets,
    CommittedOffset,
    as_committed_offset,
    as_committed_offsets,
)
from protocol.group.member import ConsumerGroupMetadata, GroupMember
from protocol.group.membership.assignment import TopicSubscription
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition
from protocol.metrics.client_sensors import Metric
from protocol.producer.messages import Headers, Message
from protocol.records.decode import ALL_COLUMNS, SCHEMA

_MAX_POLL_ROWS = 500

P = ParamSpec("P")


class MockConsumer:
    """A double of `protocol.KafkaConsumer` that yields the records and errors of a test.

    `subscribe` gets all partitions of the topics that have records; `assign` chooses them, as in Kafka. The end of a
    `with` block raises `AssertionError` for records and errors that were not polled, and for expected commits that
    were not made. `poll` never waits. Not thread-safe, except `wakeup`.

    Parameters
    ----------
    group_id : str
        Group of `group_metadata`.
    columns : collection of str
        Columns of the record batches, as of `KafkaConsumer`.
    wakeup_when_drained : bool
        `poll` raises `WakeUp` when no records are left, to end the loop of the tested code.
    max_poll_records : int
        Maximum number of records of one `poll`.

    Attributes
    ----------
    commits : list of dict
        The offsets of each commit: `CommittedOffset` by (topic, partition).

    Examples
    --------
    >>> with MockConsumer() as consumer:
    ...     consumer.yield_records("orders", b"1", b"2")
    ...     consumer.subscribe(["orders"])
    ...     consumer.poll(100).num_rows
    2
    """

    def __init__(
        self,
        *,
        group_id: str = "mock",
        columns: Collection[str] = ALL_COLUMNS,
        wakeup_when_drained: bool = False,
        max_poll_records: int = _MAX_POLL_ROWS,
    ) -> None:
        self.commits: list[dict[TopicPartition, CommittedOffset]] = []
        self._group_id = group_id
        self._schema = pa.schema([field for field in SCHEMA if field.name in columns or field.name == "offset"])
        self._wakeup_when_drained = wakeup_when_drained
        self._max_poll_records = max_poll_records
        self._logs: dict[TopicPartition, list[dict[str, Any]]] = {}
        self._errors: list[tuple[TopicPartition | None, int, Exception]] = []
        # Errors that `poll` has raised and that last until `seek`.
        self._lasting_errors: dict[TopicPartition, KafkaError] = {}
        self._commit_errors: list[CommitFailed] = []
        self._expected_commits: list[dict[TopicPartition, int]] = []
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._drained: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._subscription = TopicSubscription()
        self._subscribed = False
        self._given_assignment: set[TopicPartition] | None = None
        self._listener = ConsumerRebalanceListener()
        self._callbacks: list[tuple[OnCommit, Offsets, CommitFailed | None]] = []
        self._generation = 0
        self._woken = threading.Event()
        self._gate = CallGate("consumer", "another thread uses this consumer, which is not thread-safe except wakeup")
        self._in_listener = self._leaving = False
        # A member that has left the group cannot commit until `assign`, or until `poll` has joined it again.
        self._is_member = self._has_left = False
        # The first exception of the listener or a callback that no call has raised yet.
        self._user_error: Exception | None = None

    def __enter__(self) -> MockConsumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is None:
            self.verify()

    # -- what the test gives ------------------------------------------------------------------

    def yield_records(
        self,
        topic: str,
        *values: bytes | str | None,
        partition: int = 0,
        key: bytes | str | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append one record per value to a partition, at the next offsets.

        Parameters
        ----------
        topic, partition
        *values : bytes, str or None
        key, headers, timestamp_ms
            Fields of all these records; the timestamp is now by default.
        """
        log = self._logs.setdefault(checked_partition((topic, partition)), [])
        for value in values:
            time_ms = SYSTEM_CLOCK.wall_ms() if timestamp_ms is None else timestamp_ms
            message = Message(value, key, headers, time_ms, partition)
            pairs = [{"key": name, "value": content} for name, content in message.headers]
            log.append(
                {
                    "key": message.key,
                    "value": message.value,
                    "offset": len(log),
                    "timestamp_ms": time_ms,
                    "timestamp_type": 0,
                    "headers": pairs or None,
                }
            )

    def yield_error(self, error: Exception, topic: str | None = None, partition: int = 0) -> None:
        """Make a `poll` raise an error: the next one, or that after the records of the partition yielded so far.

        As with `KafkaConsumer`, after `DataLoss`, `Corrupt` or `NoOffset` of a partition its next records come after a
        `seek`; until then, each `poll` without records raises it again. After `NoOffset` no partition has records, and
        pausing the partition changes nothing.
        """
        where = None if topic is None else checked_partition((topic, partition))
        self._errors.append((where, len(self._logs.get(where, ())) if where else 0, error))

    def rebalance(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions in the next `poll`, as after a rebalance of the group."""
        self._given_assignment = set(map(checked_partition, partitions))

    def fail_commit(self, error: CommitFailed) -> None:
        """Make the next commit fail."""
        self._commit_errors.append(error)

    def expect_commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Expect that these offsets are committed, in one or several commits, in the order of the expectations."""
        self._expected_commits.append(dict(offsets))

    def verify(self) -> None:
        """Raise `AssertionError` for records, errors and expected commits that are left."""
        unread_records = {key: len(log) - self._drained.get(key, 0) for key, log in self._logs.items()}
        unread = [
            f"{topic}-{number}: {count}" for (topic, number), count in sorted(unread_records.items()) if count > 0
        ]
        if unread:
            raise AssertionError(f"MockConsumer: records were not polled ({', '.join(unread)})")
        if self._errors:
            raise AssertionError(
                f"MockConsumer: {len(self._errors)} errors were not polled, first: {self._errors[0][2]!r}"
            )
        made = iter(self.commits)
        counts: dict[TopicPartition, int] = {}
        for expected in self._expected_commits:
            while any(counts.get(key) != offset for key, offset in expected.items()):
                commit = next(made, None)
                if commit is None:
                    raise AssertionError(f"MockConsumer: {expected} was not committed; the last offsets were {counts}")
                counts.update({key: offset.offset for key, offset in commit.items()})

    def metrics(self) -> list[Metric]:
        """Return no metrics."""
        return []

    # -- which partitions ---------------------------------------------------------------------

    @gated
    def subscribe(
        self,
        topics: Collection[str] | re.Pattern[str],
        listener: ConsumerRebalanceListener | None = None,
        *,
        re2: str | None = None,
    ) -> None:
        """Subscribe to topics; the next `poll` assigns their partitions. As `KafkaConsumer.subscribe`."""
        if self._positions and not self._subscribed:
            raise UsageError("partitions are assigned with assign; call unsubscribe first")
        self._subscription = TopicSubscription.of(topics, re2)
        self._subscribed = True
        self._listener = listener or ConsumerRebalanceListener()

    @gated
    def replace_listener(self, listener: ConsumerRebalanceListener) -> ConsumerRebalanceListener:
        """Set the listener of the subscription, and return the former one."""
        former, self._listener = self._listener, listener
        return former

    @gated
    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions. As `KafkaConsumer.assign`."""
        if self._subscribed:
            raise UsageError("topics are subscribed; call unsubscribe first")
        assigned = set(map(checked_partition, partitions))
        self._has_left = False
        self._drop(self._positions.keys() - assigned)
        self._add(assigned - self._positions.keys())

    @gated
    def unsubscribe(self) -> None:
        """Revoke and drop all partitions."""
        self._require_not_leaving()
        self._leave()
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
        return frozenset(self._positions)

    @gated
    def enforce_rebalance(self) -> None:
        """Revoke all partitions of a subscription; the next `poll` assigns them again."""
        self._require_not_leaving()
        if self._subscribed:
            self._leave()
            self._subscribed = True
            self._raise_user_error()

    def _leave(self) -> None:
        self._leaving = True
        try:
            self._revoke(set(self._positions))
        finally:
            self._leaving = self._subscribed = False
            self._has_left = self._has_left or self._is_member
            self._is_member = False

    def _require_not_leaving(self) -> None:
        if self._leaving:  # the listener would be called again, without end
            raise UsageError("a rebalance listener must not call this while the consumer leaves its group")

    def _update_assignment(self) -> None:
        """Revoke and assign as the coordinator would."""
        if not self._subscribed:
            return
        self._is_member, self._has_left = True, False
        names, pattern = self._subscription.names, self._subscription.pattern
        target = self._given_assignment
        if target is None:
            target = {key for key in self._logs if key[0] in names or (pattern and pattern.fullmatch(key[0]))}
        self._revoke(self._positions.keys() - target)
        added = target - self._positions.keys()
        if added and self._subscribed:  # else the listener has unsubscribed
            self._generation += 1
            self._add(added)
            self._call_listener(self._listener.on_partitions_assigned, added)
        self._raise_user_error()

    def _revoke(self, partitions: set[TopicPartition]) -> None:
        try:
            self._call_and_keep_error(self._run_callbacks)
            if partitions and self._subscribed:
                self._call_listener(self._listener.on_partitions_revoked, partitions)
            self._call_and_keep_error(self._run_callbacks)  # of the listener's commits
        finally:
            self._drop(partitions)

    def _call_listener(
        self, function: Callable[[Collection[TopicPartition]], None], partitions: Collection[TopicPartition]
    ) -> None:
        former, self._in_listener = self._in_listener, True
        try:
            self._call_and_keep_error(self._gate.user_code, function, partitions)
        finally:
            self._in_listener = former

    def _call_and_keep_error(self, function: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
        """Call code that runs a listener or callbacks; `_raise_user_error` raises the first exception."""
        try:
            function(*arguments, **options)
        except Exception as error:
            self._user_error = self._user_error or error

    def _raise_user_error(self) -> None:
        error, self._user_error = self._user_error, None
        if error is not None:
            raise error

    def _add(self, partitions: set[TopicPartition]) -> None:
        for key in sorted(partitions):
            committed = self._committed.get(key)
            self._positions[key] = committed.offset if committed else 0

    def _drop(self, partitions: set[TopicPartition]) -> None:
        for key in partitions:
            self._positions.pop(key, None)
            self._lasting_errors.pop(key, None)
            self._paused.discard(key)

    # -- reading ------------------------------------------------------------------------------

    @gated
    def poll(self, timeout_ms: float) -> ConsumerRecords:
        """Return the next records of the assigned partitions, or raise the next error; never waits."""
        if self._in_listener:
            raise UsageError("a rebalance listener must not call poll")
        self._run_callbacks()
        self._update_assignment()
        if self._woken.is_set():
            self._woken.clear()
            raise WakeUp("this consumer was woken up")
        if self._gate.closes:  # in the listener
            return ConsumerRecords({})
        self._raise_error()
        batches: dict[TopicPartition, list[pa.RecordBatch]] = {}
        room = self._max_poll_records
        for key in sorted(self._positions):
            rows = [] if key in self._paused else self._readable(key)[:room]
            if rows:
                room -= len(rows)
                batches[key] = [pa.RecordBatch.from_pylist(rows, schema=self._schema)]
                self._positions[key] = rows[-1]["offset"] + 1
                self._drained[key] = max(self._drained.get(key, 0), self._positions[key])
        is_drained = not batches and not any(map(self._readable, self._paused))
        if is_drained and self._wakeup_when_drained and not self._errors:
            raise WakeUp("all records were polled")
        for key, error in self._lasting_errors.items():
            if not batches and (key not in self._paused or isinstance(error, NoOffset)):
                self._lasting_errors[key] = self._lasting_errors.pop(key)  # the next call raises that of another one
                raise error
        return ConsumerRecords(batches)

    def _readable(self, key: TopicPartition) -> list[dict[str, Any]]:
        """Return the records from the position up to the next error of the partition."""
        if key in self._lasting_errors or any(isinstance(error, NoOffset) for error in self._lasting_errors.values()):
            return []
        ends = [offset for where, offset, _ in self._errors if where == key]
        return self._logs.get(key, [])[self._positions[key] : min(ends, default=None)]

    def _raise_error(self) -> None:
        for index, (where, offset, error) in enumerate(self._errors):
            is_due = where is None or self._positions.get(where, -1) >= offset
            if is_due and (where not in self._paused or isinstance(error, NoOffset)):
                del self._errors[index]
                if where is not None and isinstance(error, DataLoss | Corrupt | NoOffset):
                    self._lasting_errors[where] = error
                raise error

    def wakeup(self) -> None:
        """Make the present or the next `poll` raise `WakeUp`. Thread-safe."""
        self._woken.set()

    # -- positions ----------------------------------------------------------------------------

    @gated
    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns."""
        return self._positions[self._assigned(partition)]

    @gated
    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the positions of the assigned partitions, without leader epochs."""
        return {key: CommittedOffset(offset) for key, offset in self._positions.items()}

    @property
    @gated
    def recreations(self) -> dict[TopicPartition, int]:
        """Empty: no topic is recreated here."""
        return {}

    @gated
    def seek(self, partition: TopicPartition, offset: int | CommittedOffset) -> None:
        """Set the position."""
        position = as_committed_offset(partition, offset).offset
        key = self._assigned(partition)
        self._positions[key] = position
        self._lasting_errors.pop(key, None)

    @gated
    def seek_to_beginning(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Seek to offset 0 of these partitions, by default all assigned ones."""
        for key, offset in self.beginning_offsets(partitions or self.assignment).items():
            self.seek(key, offset)

    @gated
    def seek_to_end(self, partitions: Collection[TopicPartition] = ()) -> None:
        """Seek past the last record of these partitions, by default all assigned ones."""
        for key, offset in self.end_offsets(partitions or self.assignment).items():
            self.seek(key, offset)

    @gated
    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return 0 for each partition."""
        return dict.fromkeys(map(checked_partition, partitions), 0)

    @gated
    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the number of yielded records of each partition."""
        return {key: len(self._logs.get(key, ())) for key in map(checked_partition, partitions)}

    @gated
    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset | None]:
        """Return the first offset at or after a timestamp of each partition; None if there is no such record."""
        offsets: dict[TopicPartition, ListedOffset | None] = {}
        for key, time_ms in checked_times(times_ms).items():
            later = [record for record in self._logs.get(key, ()) if record["timestamp_ms"] >= time_ms]
            offsets[key] = (
                ListedOffset(later[0]["offset"], NO_LEADER_EPOCH, later[0]["timestamp_ms"]) if later else None
            )
        return offsets

    @gated
    def current_lag(self, partition: TopicPartition) -> int | None:
        """Return the number of records after the position."""
        key = self._assigned(partition)
        return len(self._logs.get(key, ())) - self._positions[key]

    @gated
    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        for partition in partitions:
            self._paused.add(self._assigned(partition))

    @gated
    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Return records of paused partitions again."""
        for partition in partitions:
            self._paused.discard(self._assigned(partition))

    @property
    @gated
    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return frozenset(self._paused)

    # -- commits ------------------------------------------------------------------------------

    @gated
    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the committed offset of each partition; None if it has none."""
        return {key: self._committed.get(key) for key in map(checked_partition, partitions)}

    @gated
    def commit_sync(self, offsets: CallerOffsets | None = None, timeout_ms: float | None = None) -> None:
        """Commit offsets, by default all positions; raise the error of `fail_commit`."""
        error = self._commit(offsets)
        if error is not None:
            raise error
        self._run_callbacks()

    @gated
    def commit_async(self, offsets: CallerOffsets | None = None, callback: OnCommit | None = None) -> None:
        """Commit offsets; the callback is called in a later `poll`, `commit_sync` or `close`."""
        require_callback(callback)
        error = self._commit(offsets)
        if callback is not None:
            self._callbacks.append((callback, self._positions_or(offsets), error))

    def _positions_or(self, offsets: CallerOffsets | None) -> dict[TopicPartition, CommittedOffset]:
        return self.positions() if offsets is None else as_committed_offsets(offsets)

    def _commit(self, offsets: CallerOffsets | None) -> CommitFailed | None:
        made = self._positions_or(offsets)
        if made and self._has_left:
            return CommitFailed(
                f"group {self._group_id}: offsets were not committed: the assignment under which they were read has "
                "ended"
            )
        if self._commit_errors:
            return self._commit_errors.pop(0)
        self.commits.append(made)
        self._committed.update(made)
        return None

    def _run_callbacks(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        errors: list[Exception] = []
        for callback, offsets, failure in callbacks:
            try:
                self._gate.user_code(callback, offsets, failure)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @gated
    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the group and a member of it."""
        return ConsumerGroupMetadata(self._group_id, GroupMember("mock", self._generation))

    # -- the end ------------------------------------------------------------------------------

    def close(self, timeout_ms: float | None = None, *, leave_group: bool | None = None) -> None:
        """Call the listener for all partitions, and close. Idempotent. Only a `with` block or `verify` verifies."""
        self._gate.close(self._close)

    def _close(self) -> None:
        try:
            self._leave()
        finally:
            self._gate.closed = True
        self._raise_user_error()

    def _assigned(self, partition: TopicPartition) -> TopicPartition:
        key = checked_partition(partition)
        if key not in self._positions:
            raise UsageError(f"{key[0]}-{key[1]} is not assigned to this consumer")
        return key
