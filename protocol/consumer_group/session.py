"""A session of a consumer group, and its claims: what a handler sees. sarama's `ConsumerGroupSession` and `-Claim`.

Made by `consumer_group`; a handler's threads call it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator

import pyarrow as pa

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.condition import Event
from protocol.consumer.partition_consumer import ConsumerMessage, PartitionConsumer, messages_of
from protocol.consumer_group.commits import Commits
from protocol.errors import DataLoss, DeadlineExceeded, KafkaError, UsageError
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import GroupMember
from protocol.group.membership.assignment import Assignment, EndReason
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition

# A claim that waits for records says so often that its member is alive.
_MAX_WAIT_MS = 500
_CHECK_INTERVAL_S = 0.05


class ConsumerGroupSession:
    """From when this member has got claims until a rebalance takes all of them away, or something else ends it.

    A cooperative rebalance that leaves it some claims does not end it: those go on without a pause.

    Attributes
    ----------
    ended : set when it is over, and handlers are to return (sarama's context). `end_reason`: why; None before.
    """

    def __init__(self, client: Client, membership: Membership, commits: Commits, assignment: Assignment) -> None:
        self.ended = Event()
        self.end_reason: EndReason | None = None
        self._member = assignment.member
        self._client = client
        self._membership = membership
        self._commits = commits
        self._lock = threading.Lock()
        self._marked = MarkedOffsets()
        self._claimed_partitions: frozenset[TopicPartition] = assignment.owned

    @property
    def claims(self) -> dict[str, list[int]]:
        """Partitions by topic."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self._claimed_partitions):
            by_topic.setdefault(topic, []).append(partition)
        return by_topic

    @property
    def member(self) -> GroupMember:
        """The member that has these claims: in its present generation or epoch, or in the last one that had them."""
        return self._member.updated_to(self._membership.member)

    @property
    def member_id(self) -> str:
        return self.member.member_id

    @property
    def generation_id(self) -> int:
        """Generation of the classic protocol, else the member's epoch. Moves on while the session lasts."""
        return self.member.generation_id_or_member_epoch

    # -- offsets ------------------------------------------------------------------------------

    def mark_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """All before `offset` is handled. Only forward: an earlier offset than before changes nothing.

        It is committed within `auto.commit.interval.ms`, before the partition is revoked, and by `commit`.
        """
        self._mark((topic, partition), CommittedOffset(offset, metadata=metadata), self._marked.mark)

    def reset_offset(self, topic: str, partition: int, offset: int, metadata: str = "") -> None:
        """As `mark_offset`, only backward. In `setup` it also says where the claim begins."""
        self._mark((topic, partition), CommittedOffset(offset, metadata=metadata), self._marked.reset)

    def mark_message(self, message: ConsumerMessage, metadata: str = "") -> None:
        """This record and all before it are handled."""
        self.mark_offset(message.topic, message.partition, message.offset + 1, metadata)

    def commit(self, deadline: Deadline | None = None) -> None:
        """Commits what is marked, and waits for it. Raises `CommitFailed`."""
        self.commit_marked(deadline or self._client.deadline())

    def _mark(
        self, key: TopicPartition, to: CommittedOffset, how: Callable[[TopicPartition, CommittedOffset], None]
    ) -> None:
        self._membership.progress()
        with self._lock:
            if key not in self._claimed_partitions:
                raise UsageError(f"{key[0]}-{key[1]} is not claimed in this session")
            how(key, to)

    # -- for `consumer_group` and the claims ----------------------------------------------------

    def commit_marked(self, deadline: Deadline, *, partition_timeout_s: float = math.inf) -> None:
        """As `commit`. `partition_timeout_s`: how long to wait for a partition that fails alone."""
        with self._lock:
            refused = self._commits.refused(self._marked.taken)
        self.commit_async()
        with self._lock:
            marked = self._marked.taken  # what was handed on earlier may not be committed yet
            again = {key: to for key, to in refused.items() if marked.get(key) == to}
            self._commits.commit_async(again, self._member)
        self._commits.wait(marked, deadline, partition_timeout_s=partition_timeout_s)

    def commit_async(self) -> dict[TopicPartition, CommittedOffset]:
        """What was marked since the last time, which is committed now. Raises `CommitFailed` when claims have ended."""
        self._membership.progress()  # also finds out whether this process has slept for too long
        with self._lock:
            marked = self._marked.take()
            self._commits.commit_async(marked, self._member)
            return marked

    @property
    def marked(self) -> dict[TopicPartition, CommittedOffset]:
        with self._lock:
            return self._marked.dirty

    def set_start_offset(self, key: TopicPartition, offset: int) -> None:
        with self._lock:
            self._marked.set_start_offset(key, offset)

    def add_claims(self, partitions: Collection[TopicPartition], member: GroupMember) -> None:
        """`member`: whose they are. Who had none before may have left and joined again, and nobody had to know."""
        with self._lock:
            self._member = member
            self._claimed_partitions |= set(partitions)

    def remove_claims(self, partitions: Collection[TopicPartition]) -> None:
        with self._lock:
            self._claimed_partitions -= set(partitions)
            self._marked.drop(partitions)

    def end(self, reason: EndReason) -> None:
        with self._lock:
            self.end_reason = self.end_reason or reason
        self.ended.set()

    def keeps_claims(self) -> bool:
        """Whether its claims have not ended; looks at the clock."""
        self._membership.progress()
        return self._membership.member.keeps_assignment_of(self._member)

    @property
    def may_be_lost(self) -> bool:
        """Whether only the coordinator knows if the claims hold (KIP-848): after a long sleep the member asks it."""
        return self._membership.assignment_lost is not None


class ConsumerGroupClaim:
    """One partition of a session. Iterating yields `pyarrow.RecordBatch`es until it is revoked or the session ends.

    Errors that do not pass are raised, as of `PartitionConsumer`; what the log has lost goes by `auto.offset.reset`,
    and while brokers fail for long, `on_error` is told.
    """

    def __init__(
        self,
        session: ConsumerGroupSession,
        stream: PartitionConsumer,
        recover: Callable[[DataLoss], None],
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self.topic = stream.topic
        self.partition = stream.partition
        self.initial_offset = stream.position
        self._session = session
        self._stream = stream
        self._recover = recover
        self._on_error = on_error
        # Read while only the coordinator knew whether the partition is still this member's.
        self._withheld: pa.RecordBatch | None = None

    @property
    def high_water_mark(self) -> int:
        """The offset after the last record that is replicated, as of the last reply; -1 before the first."""
        return self._stream.high_water_mark

    @property
    def revoked(self) -> bool:
        return self._stream.closed

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.poll()) is not None:
            yield batch

    def messages(self) -> Iterator[ConsumerMessage]:
        """The same, record by record; ends between two of them when the claim does. Slower."""
        for batch in self:
            for message in messages_of(self.topic, self.partition, batch):
                if self.revoked:
                    return
                yield message

    def poll(self, timeout_ms: float | None = None) -> pa.RecordBatch | None:
        """The next record batch; None when none came in time (None: no limit), or the claim has ended."""
        session = self._session
        deadline = session._client.deadline(float("inf") if timeout_ms is None else timeout_ms)
        while not self.revoked and session.keeps_claims():
            if self._withheld is None:
                try:
                    self._withheld = self._read(min(deadline.remaining_s() * 1000, _MAX_WAIT_MS))
                except DeadlineExceeded as error:
                    self._on_error(error)
            # This process may have slept, and the partition may be another member's.
            if self._withheld is not None and session.keeps_claims() and not session.may_be_lost:
                batch, self._withheld = self._withheld, None
                return batch
            if deadline.passed:
                return None
            if self._withheld is not None:
                session.ended.wait(min(deadline.remaining_s(), _CHECK_INTERVAL_S))
        return None

    def _read(self, timeout_ms: float) -> pa.RecordBatch | None:
        try:
            return self._stream.poll(timeout_ms)
        except DataLoss as loss:
            self._recover(loss)
        return None


class MarkedOffsets:
    """Who calls it has a lock. What is not dirty is not handed on."""

    def __init__(self) -> None:
        self._marked: dict[TopicPartition, CommittedOffset] = {}
        self._dirty: set[TopicPartition] = set()
        self._taken: set[TopicPartition] = set()

    def set_start_offset(self, key: TopicPartition, offset: int) -> None:
        """Where it is read from; nothing before that is marked, unless by `reset`."""
        self._marked.setdefault(key, CommittedOffset(offset))

    def mark(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Only forward."""
        if key not in self._marked or to.offset > self._marked[key].offset:
            self._set(key, to)

    def reset(self, key: TopicPartition, to: CommittedOffset) -> None:
        """Only backward, or to the same offset."""
        if key not in self._marked or to.offset <= self._marked[key].offset:
            self._set(key, to)

    def _set(self, key: TopicPartition, to: CommittedOffset) -> None:
        if self._marked.get(key) != to:
            self._marked[key] = to
            self._dirty.add(key)

    @property
    def dirty(self) -> dict[TopicPartition, CommittedOffset]:
        return {key: self._marked[key] for key in self._dirty}

    def take(self) -> dict[TopicPartition, CommittedOffset]:
        """What was marked since the last time."""
        new = self.dirty
        self._dirty.clear()
        self._taken |= new.keys()
        return new

    @property
    def taken(self) -> dict[TopicPartition, CommittedOffset]:
        """All that was marked by the last `take`, also if an earlier one has had it."""
        return {key: self._marked[key] for key in self._taken - self._dirty}

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """They are not this session's any more."""
        for key in partitions:
            self._marked.pop(key, None)
            self._dirty.discard(key)
            self._taken.discard(key)
