"""Sessions, claims and marked offsets of a consumer group: sarama's `ConsumerGroupSession` and `ConsumerGroupClaim`.

`ConsumerGroup` runs one session at a time in the thread of `consume`; each claim has a thread, in which the handler
reads it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.condition import Event, Lock
from protocol.base.interrupts import Deferred, interruptible, join, start
from protocol.cluster.client import Client
from protocol.consumer.assigned_partitions import AssignedPartitions
from protocol.consumer.claim_marks import ClaimMarks
from protocol.consumer.commits import Commits, Offsets
from protocol.consumer.group_consumer_config import GroupConsumerConfig
from protocol.errors import (
    CommitFailed,
    DataLoss,
    DeadlineExceeded,
    KafkaError,
    LogTruncated,
    TopicRecreated,
    UsageError,
)
from protocol.fetch.partition_consumer import ConsumerMessage, PartitionConsumer
from protocol.group.commits.committed_offsets import CommittedOffset, as_committed_offset, to_commit
from protocol.group.commits.offset_manager import DELETED_TOPIC_S
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

# Interval at which a waiting claim restarts `max.poll.interval.ms`.
_MAX_WAIT_MS = 500
CHECK_INTERVAL_S = 0.05

INTERRUPTED = EndReason("the session was interrupted")

OnError = Callable[[KafkaError], None]


class ConsumerGroupHandler(Protocol):
    """The user's part of a session. An exception of any method ends the session, and is raised by `consume`."""

    def setup(self, session: ConsumerGroupSession) -> None:
        """Prepare a session, before any claim is read, in the thread of `consume`.

        `session.reset_offset` sets start offsets of the claims that the session begins with. Claims may be added later
        (cooperative assignors, `group.protocol=consumer`): `claim.seek` in `consume_claim` sets those of all claims.
        """

    def consume_claim(self, session: ConsumerGroupSession, claim: ConsumerGroupClaim) -> None:
        """Read one claim until it ends, in the thread of this claim. An earlier return ends the session."""

    def cleanup(self, session: ConsumerGroupSession) -> None:
        """Finish a session in the thread of `consume`, after the end of all claims and before the last commit."""


class ConsumerGroupSession:
    """The time from the first claims of a member until all are revoked, an error occurs, or the group is closed.

    A cooperative rebalance that leaves some claims does not end the session: those claims continue.

    Thread rule: the methods for handlers and claims, and `end`, are thread-safe. `run`, `complete` and what they call
    are for the thread of `consume`; `close` completes a session that `consume` has left. `_lock` guards `_marks` and
    `end_reason`. Only the thread of `consume` adds and removes claims. It alone sets the other fields, except `raised`
    and `_handler_threads`.

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
        config: GroupConsumerConfig,
        membership: Membership,
        partitions: AssignedPartitions,
        commits: Commits,
        handler: ConsumerGroupHandler,
        on_error: OnError,
        assignment: Assignment,
    ) -> None:
        self.ended = Event()
        self.end_reason: EndReason | None = None
        self.raised: list[BaseException] = []
        """Exceptions of handlers that `run` has not raised."""
        self._client = client
        self._config = config
        self._membership = membership
        self._partitions = partitions
        self._commits = commits
        self._handler = handler
        self._on_error = on_error
        self._member = assignment.member
        self._lock = Lock()
        self._marks = {key: ClaimMarks(key) for key in assignment.owned}
        self._threads: dict[TopicPartition, threading.Thread] = {}
        self._handler_threads: set[int] = set()
        self._awaits_handlers = False
        self._began_s = client.clock.now_s()
        self._lost = self._cleaned = self._completed = False

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

    # -- offsets, in any thread ---------------------------------------------------------------

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
        marked = as_committed_offset((topic, partition), offset, metadata)
        with self._lock:
            marks = self._marks_of((topic, partition))
            if marks.offset is None:  # the mark could be lower than the group's offset
                raise UsageError(f"{topic}-{partition} has not started: in setup, call reset_offset")
            marks.mark(marked.offset, marked.metadata)

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
        marked = as_committed_offset((topic, partition), offset, metadata)
        with self._lock:
            self._marks_of((topic, partition)).reset(marked.offset, marked.metadata)

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

    def commit_marked(self, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        """Commit as `commit` does; see `OffsetManager.flush` for `partition_timeout_s`."""
        self._commit_async()
        with self._lock:
            marked = self._staged  # earlier offsets may still be in flight
        self._commits.wait(marked, deadline, partition_timeout_s=partition_timeout_s)

    def _commit_async(self) -> dict[TopicPartition, CommittedOffset]:
        """Commit newly marked and refused offsets in the background, and return them."""
        # Applies timeouts: after a lost session, `OffsetManager` refuses the marks. Unlike `progress`, it does not
        # restart max.poll.interval.ms.
        _ = self.may_be_lost
        self._ignore_marks_in_recreated_topics()
        with Deferred(), self._lock:  # an offset must not get lost on its way to the commits
            new = [key for key, marks in self._marks.items() if marks.dirty and not marks.recreated]
            refused = self._commits.refused_of(self._staged)
            for key in new:
                self._marks[key].stage()
            offsets = {key: offset for key, offset in self._staged.items() if key in refused or key in new}
            self._commits.commit_async(offsets, self._member)
            return offsets

    @property
    def _staged(self) -> dict[TopicPartition, CommittedOffset]:
        """All offsets staged for a commit that have not changed since."""
        return {key: marks.offset for key, marks in self._marks.items() if marks.offset is not None and marks.staged}

    def _marks_of(self, key: TopicPartition) -> ClaimMarks:
        marks = self._marks.get(key)
        if marks is None:
            raise UsageError(f"{key[0]}-{key[1]} is not claimed in this session")
        if marks.starting:
            raise UsageError(f"{key[0]}-{key[1]} has not started in this session yet")
        return marks

    def _marked(self, key: TopicPartition) -> CommittedOffset | None:
        """Return the offset that the handler has marked in a claim, if any."""
        with self._lock:
            marks = self._marks[key]
            return marks.offset if marks.dirty or marks.staged else None

    def _ignore_marks_in_recreated_topics(self) -> None:
        """Do not commit marks in deleted topics whose names new topics have. Call before partitions are dropped."""
        present, recreated = self._partitions.consumers.keys(), self._partitions.recreated
        with self._lock:
            for key in self._marks.keys() & present:
                self._marks[key].recreated = key in recreated

    # -- for claims, in their threads ---------------------------------------------------------

    def read(self, consumer: PartitionConsumer, timeout_ms: float) -> pa.RecordBatch | None:
        """Return records of a claim, None after the timeout. Lost data are handled by `auto.offset.reset`."""
        try:
            return consumer.poll(timeout_ms, self._config.max_poll_records)
        except DataLoss as loss:
            key = consumer.topic, consumer.partition
            position = self._partitions.recover(loss, self.keeps_claims, timeout_ms)
            with self._lock:
                if position is not None and key in self._marks:
                    replaced = isinstance(loss, (LogTruncated, TopicRecreated))
                    self._marks[key].position_lost(position, replaced=replaced)
        return None

    def record_positions_of(self, consumer: PartitionConsumer, batch: pa.RecordBatch) -> None:
        """Record the positions of the records that a claim returns, for their marks."""
        with self._lock:
            if (marks := self._marks.get((consumer.topic, consumer.partition))) is not None:
                marks.records_returned(batch["offset"][-1].as_py() + 1, consumer.records)

    def report(self, error: KafkaError) -> None:
        """Call `on_error`."""
        interruptible(self._on_error, error)

    def keeps_claims(self) -> bool:
        """Return True if the claims are still assigned, also by the session timeout."""
        self._progress()
        return self._membership.member.keeps_assignment_of(self._member)

    @property
    def may_be_lost(self) -> bool:
        """Return True after a long pause of this process, until the coordinator has confirmed the claims (KIP-848)."""
        return self._membership.assignment_lost is not None

    def deadline(self, timeout_ms: float | None) -> Deadline:
        """Return a deadline on the client's clock; None: never."""
        return self._client.deadline(math.inf if timeout_ms is None else timeout_ms)

    def _progress(self) -> None:
        if not self._awaits_handlers:  # else `max.poll.interval.ms` limits the wait for handlers to return
            self._membership.progress()

    # -- in the thread of `consume` -----------------------------------------------------------

    def run(self, check: Callable[[], EndReason | None]) -> EndReason:
        """Run the session from `setup` to `cleanup`. `check` is called in between, and may return a reason to end."""
        try:
            try:
                interruptible(self._handler.setup, self)
                self._add_claims(self._marks.keys(), self.member)
                while not self.ended.wait(CHECK_INTERVAL_S):
                    self._run_once(check)
            finally:
                self.complete(INTERRUPTED)
        finally:
            self.complete(INTERRUPTED)  # if Ctrl-C has interrupted the end: handlers still run
        if self.raised:
            raise self.raised.pop(0)
        assert self.end_reason is not None
        return self.end_reason

    def _run_once(self, check: Callable[[], EndReason | None]) -> None:
        self._commits.run_callbacks()
        if (reason := check()) is not None:
            return self.end(reason)
        if not self._threads:
            self._membership.progress()  # no handler does it
        if self._membership.rebalance_pending is not None:
            assignment = self._membership.poll_rebalance(self._client.deadline(0), self._on_revocation)
            if not self.ended.is_set():
                self._add_claims(assignment.owned - self._partitions.assigned, assignment.member)
        elif self._commits.take_auto_commit_due():
            self._commit_in_background()
        if not self.ended.is_set():
            self._start_partitions()

    def _add_claims(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """Add claims of `member`. It differs from the session's member if that owned nothing and rejoined."""
        if not partitions:
            return
        with self._lock:
            self._member = member
            for key in partitions:
                self._marks.setdefault(key, ClaimMarks(key)).starting = True
        self._partitions.add(partitions, self._membership.topic_ids)
        for key in partitions:
            if (marked := self._marked(key)) is not None:
                self._partitions.seek(key, marked)
        self._start_partitions()

    def _start_partitions(self) -> None:
        """Start claims whose start offsets are known, each in a thread; others start later."""
        try:
            self._partitions.start_added(CHECK_INTERVAL_S * 1000)
        except DeadlineExceeded as error:
            self.report(error)
        finally:
            self._start_claims()

    def _start_claims(self) -> None:
        consumers = self._partitions.consumers
        if len(self._threads) == len(consumers):
            return
        moved = self._partitions.positions(moved=True)
        uncommitted = self._commits.uncommitted(self._began_s)
        for key in sorted(consumers.keys() - self._threads.keys()):
            consumer = consumers[key]
            # Without a committed offset, a reset to `latest` would skip records that were read and not committed.
            uncommitted_at_revocation = self._commits.uncommitted_at_revocation.get(key)
            offset_of_last_session = uncommitted.get(key) or (uncommitted_at_revocation if key in moved else None)
            continues = (
                offset_of_last_session is not None
                and self._marked(key) is None
                and self._continue_at(consumer, offset_of_last_session)
            )
            # Commit a start by `auto.offset.reset`: `latest` would be another offset in the next session.
            position = to_commit(consumer.committable)
            with self._lock:
                self._marks[key].start(position, commit=key in moved or continues)
            claim = ConsumerGroupClaim(self, consumer)
            thread = threading.Thread(target=self._consume, args=(claim,), name=f"claim {consumer.name}", daemon=True)
            start(thread)
            self._threads[key] = thread
            self._commits.uncommitted_at_revocation.pop(key, None)

    def _continue_at(self, consumer: PartitionConsumer, last: CommittedOffset) -> bool:
        """Continue at the offset that the last session has left, whose commit is being retried; True if it differs.

        From another offset, marks would be lower than that commit, or higher than what `reset_offset` has gone back to.
        """
        if last.offset == consumer.position or not last.is_in(consumer.topic_id):
            return False
        self._partitions.seek((consumer.topic, consumer.partition), last)
        return True

    def _consume(self, claim: ConsumerGroupClaim) -> None:
        """Run the handler, in the thread of the claim."""
        name, thread_id = f"{claim.topic}-{claim.partition}", threading.get_ident()
        self._handler_threads.add(thread_id)
        try:
            self._handler.consume_claim(self, claim)
        except BaseException as error:  # raised by `consume`
            self.raised.append(error)
            self.end(EndReason(f"consume_claim of {name} has failed: {error!r}"))
        else:
            if not claim.revoked and self.keeps_claims():
                self.end(EndReason(f"consume_claim of {name} has returned"))
        finally:
            self._handler_threads.discard(thread_id)

    @property
    def runs_handler_here(self) -> bool:
        """Return True in the thread of a claim."""
        return threading.get_ident() in self._handler_threads

    # -- the end ------------------------------------------------------------------------------

    def end(self, reason: EndReason) -> None:
        """Tell the handlers to return; the first reason is kept."""
        with self._lock:
            self.end_reason = self.end_reason or reason
        self.ended.set()

    def _on_revocation(self, revocation: Revocation) -> None:
        """End claims, and commit their marked offsets before the partitions are released."""
        if revocation.lost or revocation.partitions >= self._partitions.assigned:
            self._lost = revocation.lost
            self.complete(revocation.reason)
        else:
            self._stop_claims(revocation.partitions, revocation.reason)
            refused = self._commit_marked_automatically()
            with self._lock:
                for key in revocation.partitions:
                    self._marks.pop(key, None)
            if refused is not None:
                self.report(refused)
        self._commits.retain(self._membership.owned - revocation.partitions)

    def complete(self, reason: EndReason) -> None:
        """End the session: handlers return, `cleanup` is called, and marked offsets are committed.

        A call that Ctrl-C ends may be repeated, and completes the work; otherwise further calls have no effect.
        """
        if self._completed:
            return
        self.end(reason)
        self._stop_claims(self._partitions.assigned | self._threads.keys(), reason)
        try:
            if not self._cleaned:
                self._cleaned = True
                interruptible(self._handler.cleanup, self)
        finally:
            refused = None if self._lost else self._commit_marked_automatically()
            self._completed = True
            if refused is not None:
                self.report(refused)

    def _stop_claims(self, partitions: Collection[TopicPartition], reason: EndReason) -> None:
        self._ignore_marks_in_recreated_topics()
        self._partitions.drop(partitions)
        deadline = self._client.deadline(self._config.consumer.max_poll_interval_ms)
        self._awaits_handlers = True
        try:
            for thread in [self._threads[key] for key in partitions if key in self._threads]:
                self._join(thread, deadline, reason)
        finally:
            self._awaits_handlers = False
        for key in partitions:
            self._threads.pop(key, None)

    def _join(self, thread: threading.Thread, deadline: Deadline, reason: EndReason) -> None:
        while not (ended := join(thread, min(deadline.remaining_s(), CHECK_INTERVAL_S))) and not deadline.passed:
            # Commit the marks of other claims meanwhile: all leave with the member if this handler does not return.
            if not self._lost and self._commits.take_auto_commit_due():
                self._commit_in_background()
        if not ended:
            log.warning(
                "the handler of %s has not returned %g s after the end of its claim (%s): the group continues "
                "without this member, and offsets marked from now on are not committed; return sooner, or raise "
                "max.poll.interval.ms",
                thread.name,
                self._config.consumer.max_poll_interval_ms / 1000,
                reason,
            )
            join(thread)

    def _commit_marked_automatically(self) -> CommitFailed | None:
        """Commit marked offsets if commits are automatic; return the failure."""
        if self._commits.auto:
            deadline = self._client.deadline(self._client.config.request_timeout_ms)
            try:
                self.commit_marked(deadline, partition_timeout_s=DELETED_TOPIC_S)
            except CommitFailed as error:
                return error
        return None

    def _commit_in_background(self) -> None:
        try:
            marked = self._commit_async()
        except CommitFailed as error:
            return self.report(error)
        if marked:
            self._commits.add_callback(marked, self._on_auto_commit)

    def _on_auto_commit(self, offsets: Offsets, error: CommitFailed | None) -> None:
        if error is not None:
            self.report(error)


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

    def __init__(self, session: ConsumerGroupSession, consumer: PartitionConsumer) -> None:
        self.topic = consumer.topic
        self.partition = consumer.partition
        self.initial_offset = consumer.position
        self._session = session
        self._consumer = consumer
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
                    self._withheld = session.read(self._consumer, min(deadline.remaining_s() * 1000, _MAX_WAIT_MS))
                except DeadlineExceeded as error:
                    session.report(error)
            # The process may have been suspended, and the partition assigned to another member.
            if self._withheld is not None and session.keeps_claims() and not session.may_be_lost:
                batch, self._withheld = self._withheld, None
                session.record_positions_of(self._consumer, batch)
                return batch
            if deadline.passed:
                return None
            if self._withheld is not None:
                session.ended.wait(min(deadline.remaining_s(), CHECK_INTERVAL_S))
        return None
