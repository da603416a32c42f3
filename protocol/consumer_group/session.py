"""Sessions, claims and marked offsets of a consumer group: sarama's `ConsumerGroupSession` and `ConsumerGroupClaim`.

Created by `consumer_group`, and used in the threads of a handler.
"""

from __future__ import annotations

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
from protocol.consumer_group.claim_marks import ClaimMarks
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
from protocol.group.committed_offsets import CommittedOffset, as_committed_offset
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason
from protocol.group.membership.membership import Membership
from protocol.interrupts import DeferredInterrupts
from protocol.kafka_terms import TopicPartition

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
        self._marks = {key: ClaimMarks(key) for key in assignment.owned}
        # Last committed marks of claims that were revoked.
        self._left_at: dict[TopicPartition, CommittedOffset] = {}
        self._awaits_handlers = False

    @property
    def claims(self) -> dict[str, list[int]]:
        """Return the claimed partition numbers by topic."""
        by_topic: dict[str, list[int]] = {}
        with self._lock:
            claimed = sorted(self._marks)
        for topic, partition in claimed:
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

        Nor has an offset of records that the log has lost, see `ClaimMarks.position_lost`.

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
            The partition is not claimed in this session, its start offset is not known yet, as in
            `ConsumerGroupHandler.setup`, the offset is negative, or Kafka cannot store it.
        """
        self._progress()
        to = as_committed_offset((topic, partition), offset, metadata)
        with self._lock:
            marks = self._marks_of((topic, partition))
            if marks.offset is None:  # a lower offset than the group's would be committed
                raise UsageError(f"{topic}-{partition} has not started: in setup, call reset_offset")
            marks.mark(to.offset, to.metadata)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """Mark an offset that is lower than before; a higher one has no effect.

        In `ConsumerGroupHandler.setup` it sets the start offset of the claim, which may be lower or higher than the
        committed one; see also `ConsumerGroupClaim.seek`.

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
            The partition is not claimed in this session, its start offset is not known yet, the offset is negative, or
            Kafka cannot store it.
        """
        self._progress()
        to = as_committed_offset((topic, partition), offset, metadata)
        with self._lock:
            self._marks_of((topic, partition)).reset(to.offset, to.metadata)

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

    def _marks_of(self, key: TopicPartition) -> ClaimMarks:
        """Return the marks of a claim."""
        marks = self._marks.get(key)
        if marks is None:
            raise UsageError(f"{key[0]}-{key[1]} is not claimed in this session")
        if marks.starting:
            raise UsageError(f"{key[0]}-{key[1]} has not started in this session yet")
        return marks

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
            refused = self._commits.refused(self._taken)
            new = [key for key, marks in self._marks.items() if marks.dirty and not marks.recreated]
            for key in new:
                self._marks[key].take()
            taken = self._taken
            offsets = {key: to for key, to in taken.items() if key in refused or key in new}
            topic_ids = {key: self._marks[key].topic_id for key in offsets}
            self._commits.commit_async(offsets, self._member, topic_ids)
            return offsets, taken

    @property
    def _taken(self) -> dict[TopicPartition, CommittedOffset]:
        """All offsets passed to the commits that have not changed since."""
        return {key: marks.offset for key, marks in self._marks.items() if marks.offset is not None and marks.taken}

    def marked(self, key: TopicPartition) -> CommittedOffset | None:
        """Return the offset that the handler has marked in a claim, if any."""
        with self._lock:
            marks = self._marks[key]
            return marks.offset if marks.dirty or marks.taken else None

    def set_start_offset(self, key: TopicPartition, start: CommittedOffset, *, commit: bool = False) -> None:
        """Set the start offset of a claim; with `commit` it is committed, so that the next session starts there."""
        with self._lock:
            self._marks[key].start(start, commit=commit)

    def position_lost(self, key: TopicPartition, to: CommittedOffset, *, replaced: bool) -> None:
        """Lower the mark to the position after lost data, see `ClaimMarks.position_lost`."""
        with self._lock:
            if key in self._marks:
                self._marks[key].position_lost(to, replaced=replaced)

    def records_returned(self, key: TopicPartition, end: int, epochs: LeaderEpochs, topic_id: bytes) -> None:
        """Record the end of the records that a claim returns, their leader epochs and topic, for their marks."""
        with self._lock:
            if key in self._marks:
                self._marks[key].records_returned(end, epochs, topic_id)

    def ignore_marks_in_recreated_topics(self) -> None:
        """Do not commit marks in deleted topics whose names new topics have. Call before partitions are dropped."""
        present, recreated = self._partitions.consumers.keys(), self._partitions.recreated
        with self._lock:
            for key in self._marks.keys() & present:
                self._marks[key].recreated = key in recreated

    def add_claims(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """Add claims of `member`, which may differ from the former member if that owned nothing and rejoined."""
        with self._lock:
            self._member = member
            for key in partitions:
                self._marks.setdefault(key, ClaimMarks(key)).starting = True
                self._left_at.pop(key, None)

    def remove_claims(self, partitions: Collection[TopicPartition]) -> None:
        """Remove revoked claims and their marked offsets."""
        with self._lock:
            left_at = {key: to for key, to in self._taken.items() if key in partitions}
            self._left_at.update({key: to for key, to in left_at.items() if self._commits.has({key: to})})
            for key in partitions:
                self._marks.pop(key, None)

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
        self._session.reset_offset(self.topic, self.partition, offset)
        self._consumer.seek(offset)
        self.initial_offset = self._consumer.position

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
                session.records_returned(key, end, self._consumer.leader_epochs, self._consumer.topic_id)
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
