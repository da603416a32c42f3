"""Commits a group's offsets in the background: sarama's `OffsetManager`, without a ticker.

`mark` says what is complete; a thread commits it at once, and again and again while the coordinator does not
answer, always the newest marks only. Nobody who marks ever waits for a broker, unless it asks to by `flush`.
A commit is not retried after an error that no retry mends (`broker_errors.GroupEffect`). A partition that the
coordinator refuses alone, such as one of a deleted topic, is retried separately and holds up no other. For Spark it
lives in the driver's process of one query.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from protocol.broker_errors import ErrorCode, GroupEffect, error_row
from protocol.clock import Backoff, Deadline
from protocol.cluster.call import Row
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.cluster.unknown_topic import TRANSIENT_UNKNOWN_MS
from protocol.condition import Condition
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.committed_offsets import CommittedOffset, commit_offsets
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

_COMMIT_TIMEOUT_MS = 5_000
_RETRY_INITIAL_MS = 200
_RETRY_MAXIMUM_MS = 5_000
# What coordinators say when a request does not fit into their log; those of Kafka 4 have no name for it.
_TOO_LARGE_ERRORS = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR)
# Errors of one partition; all others that a retry may mend concern the group or its coordinator.
_PARTITION_ERRORS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)

DELETED_TOPIC_S = 1.0
"""How long to wait for a partition that fails alone, where the other partitions would wait for its commit."""


@dataclass(frozen=True)
class CommitCounts:
    """How many commits went through and failed since the start, and the last failure's words."""

    succeeded: int = 0
    failed: int = 0
    last_failure: str | None = None


@dataclass
class _Mark:
    """What a partition is to have. A late answer is for this mark, and not for one that has taken its place."""

    to: CommittedOffset
    answered_at_s: float | None = None
    refused: BrokerError | None = None
    # Who was told that the next generation has begun: `set_member` says who this process is in that one.
    stale_generation: GroupMember | None = None
    # The last error of this partition alone, and since when this and earlier marks of it have had such errors.
    failed: BrokerError | None = None
    failing_since_s: float | None = None
    retry_at_s: float = -math.inf
    backoff: Backoff = field(default_factory=lambda: Backoff(_RETRY_INITIAL_MS, _RETRY_MAXIMUM_MS))

    def complete(self, refused: BrokerError | None, now_s: float) -> None:
        self.answered_at_s, self.refused = now_s, refused
        if refused is None:
            self.failed = self.failing_since_s = None

    def fail(self, error: BrokerError, now_s: float) -> float:
        """Returns since how many seconds the partition has failed alone."""
        self.failed = error
        self.failing_since_s = now_s if self.failing_since_s is None else self.failing_since_s
        self.retry_at_s = now_s + self.backoff.next_s()
        return now_s - self.failing_since_s


class OffsetManager:
    """Commits the offsets of one group; not as a member, until `set_member` sets one.

    refresh_ms: what has been committed is committed again after this long, although nothing changed, since a
    broker forgets the offsets of a group without members `offsets.retention.minutes` after their last commit.
    insist: whether who is no member tries again what was refused: others may leave the group, or ACLs be changed.
        Otherwise an unknown topic is refused after ten seconds, and a missing right at once.
    `healthy`: whether the coordinator took the last commit (true before the first one).
    `changes`: counts up whenever `failure` may have another answer.
    """

    def __init__(self, client: Client, group: str, *, refresh_ms: float = 600_000, retry_refused: bool = True) -> None:
        self.group = group
        self._client = client
        self._refresh_s = refresh_ms / 1000
        self._retry_refused = retry_refused
        self._changed = Condition()
        self._member = NO_MEMBER
        self._marks: dict[TopicPartition, _Mark] = {}
        self.counts = CommitCounts()
        self.healthy = True
        self.changes = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def set_member(self, member: GroupMember) -> None:
        """Who commits from now on. What was marked by another one, or under claims that have ended, is dropped.

        What the next generation has overtaken is committed in that one.
        """
        with self._changed:
            if not member.keeps_assignment_of(self._member):
                self._marks = {}
            self._member = member
            self._notify()

    def retain(self, owned: Collection[TopicPartition]) -> None:
        """Drops what is marked of all other partitions, also if it is on its way: they are revoked, or gone."""
        with self._changed:
            self._marks = {key: mark for key, mark in self._marks.items() if key in owned}
            self._notify()

    def mark(self, offsets: Mapping[TopicPartition, CommittedOffset], member: GroupMember = NO_MEMBER) -> bool:
        """The group should hold these offsets, where it should not hold later ones already. Returns at once.

        `member`: who owned the partitions when they were read; nothing is marked, and False, if its claims have ended.
        """
        with self._changed:
            before = {key: mark.to.offset for key, mark in self._marks.items()}
            return self.reset({key: to for key, to in offsets.items() if to.offset >= before.get(key, 0)}, member)

    def reset(self, offsets: Mapping[TopicPartition, CommittedOffset], member: GroupMember = NO_MEMBER) -> bool:
        """As `mark`, and also back to earlier offsets."""
        with self._changed:
            before = {key: mark.to for key, mark in self._marks.items()}
            return self.commit({key: to for key, to in offsets.items() if to != before.get(key)}, member)

    def commit(self, offsets: Mapping[TopicPartition, CommittedOffset], member: GroupMember = NO_MEMBER) -> bool:
        """As `reset`, but asks the coordinator also for an offset that it has taken or refused before."""
        with self._changed:
            if taken := member.keeps_assignment_of(self._member):
                for key, to in offsets.items():
                    before = self._marks.get(key)
                    self._marks[key] = _Mark(to, failing_since_s=before.failing_since_s if before else None)
            if self._thread is None and not self._closed:
                self._start()
            self._changed.notify_all()
            return taken

    def failure(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> KafkaError | None:
        """Why these are not committed, though marked: refused, revoked, or (`DeadlineExceeded`) not yet.

        The same holds for `flush` while the commit was refused for a stale generation and `set_member` was not called.
        """
        with self._changed:
            marks = {key: self._marks.get(key) for key in offsets}
            for (topic, partition), mark in marks.items():
                if mark is None:
                    return UsageError(f"{topic}-{partition} is not this member's any more")
                if mark.refused is not None:
                    return mark.refused
            waiting = [mark for mark in marks.values() if mark is not None and mark.answered_at_s is None]
            if waiting:
                alone = next((str(mark.failed) for mark in waiting if mark.failed is not None), None)
                words = alone or self.counts.last_failure or "no error yet"
                return DeadlineExceeded(f"the coordinator has not taken it: {words}")
            return None

    def flush(
        self,
        deadline: Deadline,
        partitions: Collection[TopicPartition] | None = None,
        *,
        partition_timeout_s: float = math.inf,
    ) -> bool:
        """Wait until the marks of these partitions (None: all) are committed or refused.

        Parameters
        ----------
        patience_s : how long to wait for a partition that has failed alone, from its first error on.

        Returns
        -------
        bool
            Whether all are committed.
        """

        def committing(mark: _Mark) -> bool:
            if mark.answered_at_s is not None or mark.failed is None or mark.failing_since_s is None:
                return mark.answered_at_s is None
            return self._client.clock.now_s() - mark.failing_since_s < partition_timeout_s

        with self._changed:
            while any(committing(mark) for mark in self._marks_of(partitions)):
                if deadline.passed or self._closed:
                    return False
                self._changed.wait(min(deadline.remaining_s(), partition_timeout_s, 0.5))
            return all(mark.answered_at_s is not None and mark.refused is None for mark in self._marks_of(partitions))

    def _marks_of(self, partitions: Collection[TopicPartition] | None) -> list[_Mark]:
        keys = self._marks if partitions is None else partitions
        return [self._marks[key] for key in keys if key in self._marks]

    def _notify(self) -> None:
        """Under the lock."""
        self.changes += 1
        self._changed.notify_all()

    def close(self) -> None:
        """Ends the thread without another commit."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"offsets-{self.group}", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:
            self._record_result(error)  # no more threads just now: the next mark tries again

    def _due_marks(self) -> dict[TopicPartition, _Mark]:
        """What to commit now: what is not committed, and what was too long ago."""
        now_s = self._client.clock.now_s()
        long_ago_s = now_s - self._refresh_s
        return {
            key: mark
            for key, mark in self._marks.items()
            if mark.stale_generation != self._member
            and mark.retry_at_s <= now_s
            and (mark.answered_at_s is None or (mark.refused is None and mark.answered_at_s <= long_ago_s))
        }

    def _idle_s(self) -> float:
        """How long nothing is due, unless there are new marks."""
        waiting = (mark for mark in self._marks.values() if mark.answered_at_s is None)
        retry_s = min((mark.retry_at_s for mark in waiting if mark.stale_generation != self._member), default=math.inf)
        return max(0.0, min(self._refresh_s, 60.0, retry_s - self._client.clock.now_s()))

    def _run(self) -> None:
        backoff = Backoff(_RETRY_INITIAL_MS, _RETRY_MAXIMUM_MS)
        while True:
            with self._changed:
                while not self._closed and not (due := self._due_marks()):
                    self._changed.wait(self._idle_s())
                if self._closed:
                    return
                member = self._member
            if self._commit(due, member):
                backoff.reset()
                continue
            with self._changed:
                # Newer marks do not shorten the wait: a coordinator in trouble is not asked more often for them.
                wait_until = Deadline.after_ms(backoff.next_s() * 1000, self._client.clock)
                while not self._closed and not wait_until.passed:
                    self._changed.wait(wait_until.remaining_s())

    def _commit(self, due: Mapping[TopicPartition, _Mark], member: GroupMember) -> bool:
        """Send one request, or halves of it if the coordinator says that it is too large.

        Returns false if the coordinator has not answered, or has refused for a reason that concerns the group.
        """
        failure: Exception | None = None
        answers: dict[TopicPartition, BrokerError | None] = {}
        alone: dict[TopicPartition, BrokerError] = {}
        too_large: dict[TopicPartition, BrokerError] = {}

        def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> BrokerError | None:
            if error is not None and error.code in _TOO_LARGE_ERRORS:
                too_large[key] = error
                return None
            if error is not None and not self._is_final(error, member):
                if error.code not in _PARTITION_ERRORS:
                    return error
                alone[key] = error
                return None
            answers[key] = error
            return None

        offsets = {key: mark.to for key, mark in due.items()}
        try:
            commit_offsets(self._client, self.group, offsets, self._client.deadline(_COMMIT_TIMEOUT_MS), member, handle)
        except Exception as error:  # also a fault in this client: nobody else commits
            failure = error
        if len(too_large) == 1:  # it is not for the others
            key, largest = too_large.popitem()
            if self._is_final(largest, member):
                answers[key] = largest
            else:
                failure = failure or largest
        with self._changed:  # who waits in `flush` finds marks and counts changed together
            now_s, late = self._client.clock.now_s(), None
            is_new = any(due[key].failing_since_s is None for key in alone)
            for key, of_partition in list(alone.items()):
                if due[key].fail(of_partition, now_s) >= TRANSIENT_UNKNOWN_MS / 1000 and not self._retry_refused:
                    answers[key] = alone.pop(key)
            for key, answer in answers.items():
                if answer is not None and _is_stale_generation(answer, member):
                    due[key].stale_generation, late = member, answer
                elif answer is None or self._member == member or not _loses_assignment(answer):
                    due[key].complete(answer, now_s)
            if not self._member.keeps_assignment_of(member) or not due.keys() & self._marks.keys():
                return True  # nobody's any more, whatever came of it
            refused = next((mark.refused for mark in due.values() if mark.refused is not None), None)
            if refused is not None:
                self._record_result(refused, "was refused and will not be tried again")
            if late is not None and self._member == member:
                ended = "came too late, and is made again in the next generation if the claims hold in it"
                self._record_result(late, ended, logging.INFO)
            if failure is not None:
                for mark in self._marks.values():  # it may have been created, or deleted, in the silence
                    mark.failing_since_s = None
            if alone and failure is None:
                ended = "of some partitions failed and will be tried again"
                self._record_result(next(iter(alone.values())), ended, logging.WARNING if is_new else logging.DEBUG)
            elif failure is not None or (refused is None and None in answers.values()):
                self._record_result(failure)
            self._notify()
        keys, half = list(too_large), len(too_large) // 2
        halves = [{key: due[key] for key in some} for some in (keys[:half], keys[half:]) if some]
        # Where something else is wrong, one half shows it: that is not asked again and again.
        return failure is None and all(self._commit(each, member) for each in halves)

    def _is_final(self, error: BrokerError, member: GroupMember) -> bool:
        """Whether it is not tried again."""
        if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return not self._retry_refused
        effect = error_row(error.code).group_effect
        retries_refused = self._retry_refused and member == NO_MEMBER
        return effect is GroupEffect.COMMIT_REFUSED or (effect is not GroupEffect.NOTHING and not retries_refused)

    def _record_result(self, failure: Exception | None, ended: str = "", level: int = logging.WARNING) -> None:
        """Counts; says what has `ended`, how, when commits begin to fail, and when they go through again."""
        counts, was_healthy = self.counts, self.healthy
        if failure is None:
            self.counts, self.healthy = replace(counts, succeeded=counts.succeeded + 1), True
            if not was_healthy:
                log.warning("group %s: commits go through again", self.group)
            return
        fault = None if isinstance(failure, KafkaError) else failure
        words = (
            self._client.format_error(failure) if isinstance(failure, KafkaError) else f"an unexpected fault: {fault!r}"
        )
        self.counts = replace(counts, failed=counts.failed + 1, last_failure=words)
        self.healthy = was_healthy and bool(ended)
        if ended:
            log.log(level, "group %s: a commit %s: %s", self.group, ended, words)
        elif was_healthy:
            log.warning("group %s: a commit failed and will be tried again: %s", self.group, words, exc_info=fault)


def _loses_assignment(error: BrokerError) -> bool:
    return error_row(error.code).group_effect is GroupEffect.ASSIGNMENT_LOST


def _is_stale_generation(error: BrokerError, member: GroupMember) -> bool:
    """Whether `set_member` will say what comes of it: not of who was in no generation either, and had no claims."""
    return error.code == ErrorCode.ILLEGAL_GENERATION and member.generation_id >= 0
