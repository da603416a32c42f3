"""Sessions, claims and marked offsets of a consumer group: sarama's `ConsumerGroupSession` and `ConsumerGroupClaim`.

Created by `consumer_group`, and used in the threads of a handler.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.condition import Event
from protocol.consumer.log_offsets import LeaderEpochs
from protocol.consumer.partition_consumer import ConsumerMessage, PartitionConsumer
from protocol.consumer_group.assigned_partitions import AssignedPartitions
from protocol.consumer_group.commits import Commits
from protocol.errors import (
    CommitFailed,
    DataLoss,
    DeadlineExceeded,
    KafkaError,
    LogTruncated,
    TopicRecreated,
    UsageError,
)
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason
from protocol.group.membership.membership import Membership
from protocol.interrupts import DeferredInterrupts
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

# Interval at which a waiting claim restarts `max.poll.interval.ms`.
_MAX_WAIT_MS = 500
_CHECK_INTERVAL_S = 0.05


class ConsumerGroupSession:
    """The time from the first claims of a member until all are revoked, an error occurs, or the group is closed.

    A cooperative rebalance that leaves some claims does not end the session: those claims continue. Thread-safe.

    Attributes
    ----------
    ended : Event
        Set when the session ends: handlers must return (sarama's context).
    end_reason : EndReason or None
        The reason of the end; None before.
    """

    def __init__(
        self,
        client: Client,
        membership: Membership,
        commits: Commits,
        assignment: Assignment,
        partitions: AssignedPartitions,
    ) -> None:
        self.ended = Event()
        self.end_reason: EndReason | None = None
        self._member = assignment.member
        self._client = client
        self._membership = membership
        self._commits = commits
        self._partitions = partitions
        self._lock = threading.Lock()
        self._marked = MarkedOffsets()
        # Leader epochs of the records that claims have returned.
        self._epochs: dict[TopicPartition, LeaderEpochs] = {}
        # Topics whose records the claims have returned: a commit in another topic of that name is refused.
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._claimed_partitions: frozenset[TopicPartition] = assignment.owned
        # Last committed marks of claims that were revoked.
        self._left_at: dict[TopicPartition, CommittedOffset] = {}
        # Claims whose start offsets are not known yet: a mark would be of an earlier time, before another member.
        self._starting: set[TopicPartition] = set()
        self._awaits_handlers = False

    @property
    def claims(self) -> dict[str, list[int]]:
        """Return the claimed partition numbers by topic."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self._claimed_partitions):
            by_topic.setdefault(topic, []).append(partition)
        return by_topic

    @property
    def member(self) -> GroupMember:
        """Return the member with these claims, in its latest generation or epoch that had them."""
        return self._member.updated_to(self._membership.member)

    @property
    def member_id(self) -> str:
        """Return the member id."""
        return self.member.member_id

    @property
    def generation_id(self) -> int:
        """Return the generation of the classic protocol, or the member epoch; it may increase within a session."""
        return self.member.generation_id_or_member_epoch

    # -- offsets ------------------------------------------------------------------------------

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Mark all records before `offset` as processed; a lower offset than before has no effect.

        Nor has an offset of records that the log has lost, see `MarkedOffsets.position_lost`.

        Marked offsets are committed every `auto.commit.interval.ms`, before the partition is revoked, and by `commit`.

        Parameters
        ----------
        topic, partition : str, int
            A claimed partition.
        offset : int
            Offset of the next record to process.
        metadata : str
            Free text, committed with the offset.

        Raises
        ------
        UsageError
            The partition is not claimed in this session, or its start offset is not known yet.
        """
        self._mark((topic, partition), offset, metadata, self._marked.mark)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Mark an offset that is lower than before; a higher one has no effect.

        In `ConsumerGroupHandler.setup` it sets the start offset of the claim; see also `ConsumerGroupClaim.seek`.

        Parameters
        ----------
        topic, partition : str, int
            A claimed partition.
        offset : int
            Offset of the next record to process.
        metadata : str
            Free text, committed with the offset.

        Raises
        ------
        UsageError
            The partition is not claimed in this session, or its start offset is not known yet.
        """
        self._mark((topic, partition), offset, metadata, self._marked.reset)

    def mark_message(self, message: ConsumerMessage, metadata: str = "") -> None:
        """Mark this record and all before it as processed; see `mark_offset`."""
        self.mark_offset(message.topic, message.partition, message.offset + 1, metadata)

    def commit(self, deadline: Deadline | None = None) -> None:
        """Commit marked offsets of present claims and wait. Those of a claim that was revoked before are dropped.

        Parameters
        ----------
        deadline : Deadline, optional
            Time limit; by default `default.api.timeout.ms` from now.

        Raises
        ------
        CommitFailed
            An offset was refused or not committed in time.
        """
        self._progress()
        self.commit_marked(deadline or self._client.deadline())

    def _mark(
        self,
        key: TopicPartition,
        offset: int,
        metadata: str,
        how: Callable[[TopicPartition, CommittedOffset], None],
    ) -> None:
        self._progress()
        with self._lock:
            if key not in self._claimed_partitions:
                raise UsageError(f"{key[0]}-{key[1]} is not claimed in this session")
            if key in self._starting:
                raise UsageError(f"{key[0]}-{key[1]} has not started in this session yet")
            epoch = self._epochs.get(key, LeaderEpochs()).before_offset(offset)
            how(key, CommittedOffset(offset, epoch, metadata))

    # -- for `consumer_group` and the claims ----------------------------------------------------

    def commit_marked(self, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        """Commit as `commit` does; see `OffsetManager.flush` for `partition_timeout_s`."""
        marked = self._hand_over()[1]  # earlier offsets may still be in flight
        while True:
            try:
                return self._commits.wait(marked, deadline, partition_timeout_s=partition_timeout_s)
            except CommitFailed:
                with self._lock:  # claims revoked meanwhile, after the commit of these offsets
                    missing = {key: to for key, to in marked.items() if self._left_at.get(key) != to}
                if missing == marked:
                    raise
                marked = missing

    def commit_async(self) -> dict[TopicPartition, CommittedOffset]:
        """Commit newly marked and refused offsets in the background, and return them.

        Raises
        ------
        CommitFailed
            The claims are lost.
        """
        return self._hand_over()[0]

    def _hand_over(self) -> tuple[dict[TopicPartition, CommittedOffset], dict[TopicPartition, CommittedOffset]]:
        """Pass offsets to the commits as `commit_async` does; return them, and all offsets passed so far."""
        _ = self.may_be_lost  # detects that this process was suspended
        self.ignore_marks_in_recreated_topics()
        with DeferredInterrupts(), self._lock:  # an offset must not get lost on its way to the commits
            refused = self._commits.refused(self._marked.taken)
            offsets = {**refused, **self._marked.take()}
            self._commits.commit_async(offsets, self._member, self._topic_ids)
            return offsets, self._marked.taken

    @property
    def marked(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the marked offsets, also those that are being committed or were refused."""
        with self._lock:
            return {**self._marked.taken, **self._marked.dirty}

    def set_start_offset(self, key: TopicPartition, offset: int, *, commit: bool = False) -> None:
        """Set the start offset of a claim; with `commit` it is committed, so that the next session starts there."""
        with self._lock:
            self._starting.discard(key)
            self._marked.set_start_offset(key, offset, commit=commit)

    def position_lost(self, key: TopicPartition, to: CommittedOffset, *, replaced: bool) -> None:
        """Lower the mark to the position after lost data, see `MarkedOffsets.position_lost`."""
        with self._lock:
            self._epochs.pop(key, None)
            self._topic_ids.pop(key, None)
            if key in self._claimed_partitions:
                self._marked.position_lost(key, to, replaced=replaced)

    def record_returned(self, key: TopicPartition, end: int, epochs: LeaderEpochs, topic_id: bytes) -> None:
        """Record the end of the records that a claim returns, their leader epochs and topic, for their marks."""
        with self._lock:
            if key in self._claimed_partitions:
                self._topic_ids[key] = topic_id
                self._marked.returned(key, end)
                known = self._epochs.get(key)
                self._epochs[key] = epochs if known is None else known.followed_by(epochs)

    def ignore_marks_in_recreated_topics(self) -> None:
        """Do not commit marks in deleted topics whose names new topics have. Call before partitions are dropped."""
        present, recreated = self._partitions.consumers.keys(), self._partitions.recreated
        with self._lock:
            self._marked.ignored = (self._marked.ignored - present) | recreated

    def add_claims(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """Add claims of `member`, which may differ from the former member if that owned nothing and rejoined."""
        with self._lock:
            self._member = member
            self._claimed_partitions |= set(partitions)
            self._starting |= set(partitions)
            for key in partitions:
                self._left_at.pop(key, None)

    def remove_claims(self, partitions: Collection[TopicPartition]) -> None:
        """Remove revoked claims and their marked offsets."""
        with self._lock:
            taken = self._marked.taken
            self._left_at.update(
                {key: taken[key] for key in partitions if key in taken and self._commits.has({key: taken[key]})}
            )
            self._claimed_partitions -= set(partitions)
            self._starting -= set(partitions)
            self._marked.drop(partitions)
            for key in partitions:
                self._epochs.pop(key, None)
                self._topic_ids.pop(key, None)

    def end(self, reason: EndReason) -> None:
        """End the session; the first reason is kept."""
        with self._lock:
            self.end_reason = self.end_reason or reason
        self.ended.set()

    def deadline(self, timeout_ms: float | None) -> Deadline:
        """Return a deadline on the client's clock; None: never."""
        return self._client.deadline(float("inf") if timeout_ms is None else timeout_ms)

    @contextmanager
    def awaiting_handlers(self) -> Iterator[None]:
        """In the block, claims do not restart `max.poll.interval.ms`: it limits the wait for handlers to return."""
        self._awaits_handlers = True
        try:
            yield
        finally:
            self._awaits_handlers = False

    def _progress(self) -> None:
        if not self._awaits_handlers:
            self._membership.progress()

    def keeps_claims(self) -> bool:
        """Return True if the claims are still assigned, also by the session timeout."""
        self._progress()
        return self._membership.member.keeps_assignment_of(self._member)

    @property
    def may_be_lost(self) -> bool:
        """Return True if only the coordinator knows if the claims are valid, after a long pause (KIP-848)."""
        return self._membership.assignment_lost is not None


class ConsumerGroupClaim:
    """One claimed partition of a session.

    Iteration yields `pyarrow.RecordBatch` objects until the partition is revoked or the session ends. Use each claim in
    one thread. Lost data are handled by `auto.offset.reset`; lasting failures of brokers are reported to `on_error`.

    Attributes
    ----------
    topic : str
        The topic.
    partition : int
        The partition number.
    initial_offset : int
        The start offset.
    """

    def __init__(
        self,
        session: ConsumerGroupSession,
        consumer: PartitionConsumer,
        recover: Callable[[DataLoss, Callable[[], bool]], CommittedOffset | None],
        on_error: Callable[[KafkaError], None],
        max_poll_records: int | None = None,
    ) -> None:
        self.topic = consumer.topic
        self.partition = consumer.partition
        self.initial_offset = consumer.position
        self._session = session
        self._consumer = consumer
        self._recover = recover
        self._on_error = on_error
        self._max_rows = max_poll_records
        # A batch read while the assignment was unconfirmed.
        self._withheld: pa.RecordBatch | None = None
        self._polled = False

    @property
    def high_water_mark(self) -> int:
        """Return the high watermark of the last fetch response; -1 before the first one."""
        return self._consumer.high_water_mark

    @property
    def revoked(self) -> bool:
        """Return True if the claim has ended."""
        return self._consumer.closed

    def seek(self, offset: int) -> None:
        """Start at this offset instead of the committed one, for programs that store offsets themselves.

        Works for all claims, while `ConsumerGroupHandler.setup` sees only those with which the session begins.

        Parameters
        ----------
        offset : int
            Offset of the first record to return. If it is lower than `initial_offset`, it is marked as by
            `ConsumerGroupSession.reset_offset`.

        Raises
        ------
        UsageError
            Records were requested before, the offset is negative, or the claim has ended.
        """
        if self._polled:
            raise UsageError(f"{self.topic}-{self.partition}: seek before the first records are requested")
        self._consumer.seek(offset)
        self._session.reset_offset(self.topic, self.partition, offset)
        self.initial_offset = offset

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.poll()) is not None:
            yield batch

    def messages(self) -> Iterator[ConsumerMessage]:
        """Yield records as Python objects until the claim ends. Slower than record batches.

        If the iteration is broken off, the next read continues after its last record.
        """
        for batch in self:
            for message in self._consumer.messages_of(batch):
                if self.revoked:
                    return
                yield message

    def poll(self, timeout_ms: float | None = None) -> pa.RecordBatch | None:
        """Return the next record batch; None after the timeout, or if the claim has ended.

        Parameters
        ----------
        timeout_ms : float, optional
            Maximum wait; None: no limit.

        Raises
        ------
        KafkaError
            The partition cannot be read.
        """
        session, self._polled = self._session, True
        deadline = session.deadline(timeout_ms)
        while not self.revoked and session.keeps_claims():
            if self._withheld is None:
                try:
                    self._withheld = self._read(min(deadline.remaining_s() * 1000, _MAX_WAIT_MS))
                except DeadlineExceeded as error:
                    self._on_error(error)
            # The process may have been suspended, and the partition assigned to another member.
            if self._withheld is not None and session.keeps_claims() and not session.may_be_lost:
                end = self._withheld["offset"][-1].as_py() + 1
                key = (self.topic, self.partition)
                session.record_returned(key, end, self._consumer.leader_epochs, self._consumer.topic_id)
                batch, self._withheld = self._withheld, None
                return batch
            if deadline.passed:
                return None
            if self._withheld is not None:
                session.ended.wait(min(deadline.remaining_s(), _CHECK_INTERVAL_S))
        return None

    def _read(self, timeout_ms: float) -> pa.RecordBatch | None:
        try:
            return self._consumer.poll(timeout_ms, self._max_rows)
        except DataLoss as loss:
            to = self._recover(loss, self._session.keeps_claims)
            replaced = isinstance(loss, (LogTruncated, TopicRecreated))
            if to is not None:
                self._session.position_lost((self.topic, self.partition), to, replaced=replaced)
        return None


class MarkedOffsets:
    """Offsets that handlers have marked, by sarama's rules; dirty ones are not committed yet.

    The caller holds a lock.

    Attributes
    ----------
    ignored : frozenset of (str, int)
        Partitions whose marks `take` does not return.
    """

    def __init__(self) -> None:
        self._marked: dict[TopicPartition, CommittedOffset] = {}
        self._dirty: set[TopicPartition] = set()
        self._taken: set[TopicPartition] = set()
        self.ignored: frozenset[TopicPartition] = frozenset()
        # End of the records that the claim has returned; after lost data, of those in the present log.
        self._returned: dict[TopicPartition, int] = {}
        self._after_loss: set[TopicPartition] = set()
        # From the first offset on, marks up to the second one may be of lost records.
        self._ambiguous: dict[TopicPartition, tuple[int, int]] = {}

    def set_start_offset(self, key: TopicPartition, offset: int, *, commit: bool = False) -> None:
        """Set the start offset; lower offsets are accepted by `reset` only. With `commit`, `take` returns it."""
        if commit and key not in self._marked:
            self._dirty.add(key)
        self._marked.setdefault(key, CommittedOffset(offset))

    def mark(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Set a higher offset."""
        if not self._is_in_present_log(key, to.offset):
            return
        if key not in self._marked or to.offset > self._marked[key].offset:
            self._set(key, to)

    def returned(self, key: TopicPartition, end: int) -> None:
        """Set the end of the records that the claim has returned."""
        self._returned[key] = max(end, self._returned.get(key, end))

    def position_lost(self, key: TopicPartition, to: CommittedOffset, *, replaced: bool) -> None:
        """Lower the mark to the position after lost data: marks in a recreated topic would not exceed the old ones.

        From now on, marks above the records returned since then are ignored. `replaced`: the log was truncated, or the
        topic recreated, so other records may have these offsets. If some of the lost records were not marked, the
        handler may mark them later than new ones: marks up to the former end are ignored until one reaches it. These
        records are handled again after a restart.
        """
        end = self._returned.get(key)
        floor, until = self._ambiguous.pop(key, (to.offset, -1))
        if replaced:
            if end is not None and (key not in self._marked or self._marked[key].offset < end):
                until = max(until, end)
            if until > to.offset:
                self._ambiguous[key] = min(floor, to.offset), until
                log.warning(
                    "%s-%d: records were lost before all of them were marked: marks of offsets up to %d are ignored "
                    "until one reaches it, since they may be of lost records",
                    *key,
                    until,
                )
        self._returned[key] = to.offset
        self._after_loss.add(key)
        self.reset(key, to)

    def _is_in_present_log(self, key: TopicPartition, offset: int) -> bool:
        """Return False for a mark that may be of records lost since."""
        floor, until = self._ambiguous.get(key, (offset, offset))
        if floor < offset:
            if offset >= until:
                del self._ambiguous[key]
            if offset <= until:
                return False
        return key not in self._after_loss or offset <= self._returned[key]

    def reset(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Set a lower or the same offset."""
        if key not in self._marked or to.offset <= self._marked[key].offset:
            self._set(key, to)

    def _set(self, key: TopicPartition, to: CommittedOffset) -> None:
        if self._marked.get(key) != to:
            self._marked[key] = to
            self._dirty.add(key)

    @property
    def dirty(self) -> dict[TopicPartition, CommittedOffset]:
        """Return offsets marked since the last `take`."""
        return {key: self._marked[key] for key in self._dirty}

    def take(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the dirty offsets, and clear them."""
        new = {key: to for key, to in self.dirty.items() if key not in self.ignored}
        self._dirty -= new.keys()
        self._taken |= new.keys()
        return new

    @property
    def taken(self) -> dict[TopicPartition, CommittedOffset]:
        """Return all offsets returned by any `take` that have not changed since."""
        return {key: self._marked[key] for key in self._taken - self._dirty}

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Remove revoked partitions."""
        for key in partitions:
            self._marked.pop(key, None)
            self._dirty.discard(key)
            self._taken.discard(key)
            self._returned.pop(key, None)
            self._after_loss.discard(key)
            self._ambiguous.pop(key, None)
        self.ignored -= set(partitions)
