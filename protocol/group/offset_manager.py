"""Commits a group's offsets in the background: sarama's `OffsetManager`, without a ticker.

`mark` says what is complete; a thread commits it at once, and again and again while the coordinator does not
answer, always the newest marks only. Nobody who marks ever waits for a broker, unless it asks to by `flush`.
What would be refused for ever (`broker_errors.Ends`) is tried once. For Spark it lives in the driver's process of one
query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from protocol.broker_errors import Ends, ErrorCode, error_row
from protocol.clock import Backoff, Deadline
from protocol.cluster.call import Row
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.condition import Condition
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.group.offsets import CommittedOffset, commit_offsets
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

_ONE_COMMIT_MS = 5_000
_RETRY_INITIAL_MS = 200
_RETRY_MAXIMUM_MS = 5_000
# What coordinators say when a request does not fit into their log; those of Kafka 4 have no name for it.
_TOO_LARGE = (ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.UNKNOWN_SERVER_ERROR)


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
    # Who was told that the next generation has begun: `join` says who this process is in that one.
    overtaken: GroupMember | None = None


class OffsetManager:
    """The offsets of one group that this process commits: as no member of it, until it says by `join` which one it is.

    refresh_ms: what has been committed is committed again after this long, although nothing changed, since a
    broker forgets the offsets of a group without members `offsets.retention.minutes` after their last commit.
    insist: whether who is no member tries again what was refused: others may leave the group, or ACLs be changed.
    `healthy`: whether the last commit went through (true before the first one).
    """

    def __init__(self, client: Client, group: str, *, refresh_ms: float = 600_000, insist: bool = True) -> None:
        self.group = group
        self._client = client
        self._refresh_s = refresh_ms / 1000
        self._insist = insist
        self._changed = Condition()
        self._member = NO_MEMBER
        self._marks: dict[TopicPartition, _Mark] = {}
        self.counts = CommitCounts()
        self.healthy = True
        self._closed = False
        self._thread: threading.Thread | None = None

    def join(self, member: GroupMember) -> None:
        """Who commits from now on. What was marked by another one, or under claims that have ended, is dropped.

        What the next generation has overtaken is committed in that one.
        """
        with self._changed:
            if not member.has_claims_of(self._member):
                self._marks = {}
            self._member = member
            self._changed.notify_all()

    def keep(self, owned: Collection[TopicPartition]) -> None:
        """Drops what is marked of all other partitions, also if it is on its way: they are revoked, or gone."""
        with self._changed:
            self._marks = {key: mark for key, mark in self._marks.items() if key in owned}
            self._changed.notify_all()

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
            if taken := member.has_claims_of(self._member):
                for key, to in offsets.items():
                    if key not in self._marks or self._marks[key].to != to:
                        self._marks[key] = _Mark(to)
            if self._thread is None and not self._closed:
                self._start()
            self._changed.notify_all()
            return taken

    def failure(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> KafkaError | None:
        """Why these are not committed, though marked: refused, revoked, or (`DeadlineExceeded`) not yet.

        That is so, too, for `flush`, while the next generation has overtaken them and `join` has not told who this is.
        """
        with self._changed:
            marks = {key: self._marks.get(key) for key in offsets}
            for (topic, partition), mark in marks.items():
                if mark is None:
                    return UsageError(f"{topic}-{partition} is not this member's any more")
                if mark.refused is not None:
                    return mark.refused
            if any(mark.answered_at_s is None for mark in marks.values() if mark is not None):
                return DeadlineExceeded(
                    f"the coordinator has not answered: {self.counts.last_failure or 'no error yet'}"
                )
            return None

    def flush(self, deadline: Deadline) -> bool:
        """Waits until everything marked is committed; False when the deadline passed first, or some is refused."""
        with self._changed:
            while any(mark.answered_at_s is None for mark in self._marks.values()):
                if deadline.passed or self._closed:
                    return False
                self._changed.wait(min(deadline.remaining_s(), 0.5))
            return all(mark.refused is None for mark in self._marks.values())

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
            self._note(error)  # no more threads just now: the next mark tries again

    def _due(self) -> dict[TopicPartition, _Mark]:
        """What to commit now: what is not committed, and what was too long ago."""
        long_ago_s = self._client.clock.now_s() - self._refresh_s
        return {
            key: mark
            for key, mark in self._marks.items()
            if mark.overtaken != self._member
            and (mark.answered_at_s is None or (mark.refused is None and mark.answered_at_s <= long_ago_s))
        }

    def _run(self) -> None:
        backoff = Backoff(_RETRY_INITIAL_MS, _RETRY_MAXIMUM_MS)
        while True:
            with self._changed:
                while not self._closed and not (due := self._due()):
                    self._changed.wait(min(self._refresh_s, 60.0))
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
        """Whether nothing of it need be tried again. What is too large for one request goes in halves."""
        failure: Exception | None = None
        answers: dict[TopicPartition, BrokerError | None] = {}
        too_large: dict[TopicPartition, BrokerError] = {}

        def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> BrokerError | None:
            if error is not None and error.code in _TOO_LARGE:
                too_large[key] = error
                return None
            if error is not None and not self._is_final(error, member):
                return error
            answers[key] = error
            return None

        offsets = {key: mark.to for key, mark in due.items()}
        try:
            commit_offsets(self._client, self.group, offsets, self._client.deadline(_ONE_COMMIT_MS), member, handle)
        except Exception as error:  # also a fault in this client: nobody else commits
            failure = error
        if len(too_large) == 1:  # it is not for the others
            key, alone = too_large.popitem()
            if self._is_final(alone, member):
                answers[key] = alone
            else:
                failure = failure or alone
        with self._changed:  # who waits in `flush` finds marks and counts changed together
            now_s, late = self._client.clock.now_s(), None
            for key, answer in answers.items():
                if answer is not None and _is_overtaken(answer, member):
                    due[key].overtaken, late = member, answer
                elif answer is None or self._member == member or not _ends_claims(answer):
                    due[key].answered_at_s, due[key].refused = now_s, answer
            if not self._member.has_claims_of(member) or not due.keys() & self._marks.keys():
                return True  # nobody's any more, whatever came of it
            refused = next((mark.refused for mark in due.values() if mark.refused is not None), None)
            if refused is not None:
                self._note(refused, "was refused and will not be tried again")
            if late is not None and self._member == member:
                ended = "came too late, and is made again in the next generation if the claims hold in it"
                self._note(late, ended, logging.INFO)
            if failure is not None or (refused is None and None in answers.values()):
                self._note(failure)
            self._changed.notify_all()
        keys, half = list(too_large), len(too_large) // 2
        halves = [{key: due[key] for key in some} for some in (keys[:half], keys[half:]) if some]
        # Where something else is wrong, one half shows it: that is not asked again and again.
        return failure is None and all(self._commit(each, member) for each in halves)

    def _is_final(self, error: BrokerError, member: GroupMember) -> bool:
        """Whether it is not tried again."""
        ends = error_row(error.code).ends
        insists = self._insist and member == NO_MEMBER
        return ends is Ends.MARK or (ends is not Ends.NOTHING and not insists)

    def _note(self, failure: Exception | None, ended: str = "", level: int = logging.WARNING) -> None:
        """Counts; says what has `ended`, how, when commits begin to fail, and when they go through again."""
        counts, was_healthy = self.counts, self.healthy
        if failure is None:
            self.counts, self.healthy = replace(counts, succeeded=counts.succeeded + 1), True
            if not was_healthy:
                log.warning("group %s: commits go through again", self.group)
            return
        fault = None if isinstance(failure, KafkaError) else failure
        words = self._client.words(failure) if isinstance(failure, KafkaError) else f"an unexpected fault: {fault!r}"
        self.counts = replace(counts, failed=counts.failed + 1, last_failure=words)
        self.healthy = was_healthy and bool(ended)
        if ended:
            log.log(level, "group %s: a commit %s: %s", self.group, ended, words)
        elif was_healthy:
            log.warning("group %s: a commit failed and will be tried again: %s", self.group, words, exc_info=fault)


def _ends_claims(error: BrokerError) -> bool:
    return error_row(error.code).ends is Ends.CLAIMS


def _is_overtaken(error: BrokerError, member: GroupMember) -> bool:
    """Whether `join` will say what comes of it: not of who was in no generation either, and had no claims."""
    return error.code == ErrorCode.ILLEGAL_GENERATION and member.generation_id >= 0
