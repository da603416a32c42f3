"""Commit the offsets of a group in a background thread, as sarama's `OffsetManager` does.

Callers stage offsets without waiting; the thread commits the latest offset of each partition at once, and retries with
back-off. Errors that are not retriable (`broker_errors.GroupEffect`) end the retries. A partition with an error of its
own, such as one of a deleted topic, is retried separately and does not delay other partitions.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from protocol.broker_errors import ErrorCode
from protocol.clock import Backoff, Deadline, StoppableClock
from protocol.cluster.call import Row
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker, is_another_topic
from protocol.cluster.unknown_topic import TRANSIENT_UNKNOWN_MS
from protocol.condition import Condition
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.commit_marks import (
    RETRY_INITIAL_MS,
    RETRY_MAXIMUM_MS,
    CommitReplies,
    OffsetMark,
    is_stale_generation,
    loses_assignment,
)
from protocol.group.committed_offsets import (
    NO_TOPIC_IDS,
    CommittedOffset,
    TopicIds,
    commit_offsets,
    fetch_offsets,
)
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.interrupts import DeferredInterrupts, join
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.listing import listed
from protocol.metrics import definitions

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS = 5_000
"""Time in which a commit is repeated with the same offsets. The reply to a request may take `request.timeout.ms`."""
# Limit of the Metadata requests after UNKNOWN_TOPIC_ID; other commits wait for them.
_TOPIC_CHECK_MS = 1_000
# The member has been removed from the group, or replaced by another one with its instance id.
_MEMBER_ERRORS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)

DELETED_TOPIC_S = 1.0
"""Maximum wait for a partition that fails alone, if other partitions wait for its commit."""


@dataclass(frozen=True)
class CommitCounts:
    """Numbers of succeeded and failed commits since the start, and the message of the last failure."""

    succeeded: int = 0
    failed: int = 0
    last_failure: str | None = None


class OffsetManager:
    """Commits offsets of one group; thread-safe.

    The process is not a member of the group until `set_member` is called.

    A coordinator may receive an unanswered request after a newer commit, and go back to the older offset. Therefore the
    group's offset is fetched `request.timeout.ms` later, and committed again if it is the older one.

    Brokers accept a reset of a group without members. With `compare_ms`, a process that is not a member commits its
    offsets again after it, and logs a warning.

    Parameters
    ----------
    client : Client
        The client of the cluster.
    group : str
        The group id.
    refresh_ms : float
        Repeat an unchanged commit after this time: brokers delete offsets of a group without members
        `offsets.retention.minutes` after the last commit.
    retry_refused : bool
        Retry refused commits of a process that is not a member, since members may leave the group and ACLs may change.
        If false, an unknown topic is refused after 10 s, and a missing ACL at once.
    compare_ms : float
        The interval at which a process that is not a member fetches the group's offsets, and commits those again that
        another program has changed.

    Attributes
    ----------
    counts : CommitCounts
        Numbers of commits, and the last failure.
    healthy : bool
        True if the coordinator accepted the last commit, and before the first one.
    changes : int
        Incremented when the result of `failure` may have changed.
    on_member_refused : callable
        Called in the thread with the member of a commit and the error, if the coordinator does not know the member any
        more: `Membership.on_member_refused`.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        *,
        refresh_ms: float = 600_000,
        retry_refused: bool = True,
        compare_ms: float = math.inf,
    ) -> None:
        client.require_open()
        self.group = group
        self._client = client
        client.sensors.use([definitions.COORDINATOR])
        self._refresh_s = refresh_ms / 1000
        self._retry_refused = retry_refused
        self._compare_s = compare_ms / 1000
        self._compared_at_s = client.clock.now_s()
        self._has_foreign_offsets = False  # in the last comparison
        self._changed = Condition()
        self._member = NO_MEMBER
        self._marks: dict[TopicPartition, OffsetMark] = {}
        # The id of each topic when it was last known: a commit may be staged after the topic was deleted.
        self._topic_ids: dict[str, bytes] = {}
        self.counts = CommitCounts()
        self.healthy = True
        self.changes = 0
        self.on_member_refused: Callable[[GroupMember, BrokerError], None] = lambda member, error: None
        self._closed = False
        # Stopped by `close`: a retry afterwards could reset a newer offset of another process.
        self._retry_clock = StoppableClock(client.clock)
        self._thread: threading.Thread | None = None

    def set_member(self, member: GroupMember) -> None:
        """Set the member of all later commits.

        Staged offsets of another member, or of an assignment that has ended, are dropped. Commits refused for a stale
        generation are retried with the new one.
        """
        with self._changed:
            if not member.keeps_assignment_of(self._member):
                self._marks = {}
            self._member = member
            self._notify()

    def retain(self, owned: Collection[TopicPartition]) -> None:
        """Drop the staged offsets of all partitions except `owned`, also if a commit is in flight."""
        with self._changed:
            kept = {key: mark for key, mark in self._marks.items() if key in owned}
            if len(kept) < len(self._marks):
                self._marks = kept
                self._notify()

    def mark(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: GroupMember = NO_MEMBER,
        *,
        topic_ids: TopicIds = NO_TOPIC_IDS,
    ) -> bool:
        """Stage offsets, except those lower than a staged offset of the same partition.

        Parameters
        ----------
        offsets : mapping of (str, int) to CommittedOffset
            Offsets by partition.
        member : GroupMember
            The member that owned the partitions when they were read.
        topic_ids : mapping of (str, int) to bytes
            Ids of the topics that were read; for missing ids and zeros, those of the newest metadata. An offset of a
            deleted topic is refused with UNKNOWN_TOPIC_ID, also if a new topic has its name.

        Returns
        -------
        bool
            False if the assignment of `member` has ended; nothing is staged then.
        """
        with self._changed:
            before = {key: mark.offset.offset for key, mark in self._marks.items()}
            not_lower = {key: to for key, to in offsets.items() if to.offset >= before.get(key, 0)}
            return self.reset(not_lower, member, topic_ids=topic_ids)

    def reset(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: GroupMember = NO_MEMBER,
        *,
        topic_ids: TopicIds = NO_TOPIC_IDS,
    ) -> bool:
        """Stage offsets as `mark` does, also lower ones."""
        with self._changed:
            changed = {key: to for key, to in offsets.items() if not self._is_staged(key, to, topic_ids)}
            return self.commit(changed, member, topic_ids=topic_ids)

    def _is_staged(self, key: TopicPartition, to: CommittedOffset, topic_ids: TopicIds) -> bool:
        mark, topic_id = self._marks.get(key), topic_ids.get(key, NO_TOPIC_ID)
        return mark is not None and mark.offset == to and not is_another_topic(topic_id, mark.topic_id)

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: GroupMember = NO_MEMBER,
        *,
        topic_ids: TopicIds = NO_TOPIC_IDS,
    ) -> bool:
        """Stage offsets as `reset` does, and send also those that were committed or refused before."""
        with self._changed:
            if accepted := member.keeps_assignment_of(self._member):
                self._update_topic_ids({key[0] for key in offsets})
                for key, to in offsets.items():
                    topic_id = topic_ids.get(key, NO_TOPIC_ID)
                    if topic_id == NO_TOPIC_ID:
                        topic_id = self._topic_ids.get(key[0], topic_id)
                    self._marks[key] = OffsetMark.after(self._marks.get(key), to, topic_id)
            self._wake()
            return accepted

    def _wake(self) -> None:
        """Start the thread, or wake it if a mark is not committed. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._start()
        if [mark for mark in self._marks.values() if mark.completed_at_s is None]:
            self._changed.notify_all()

    def _update_topic_ids(self, topics: Collection[str]) -> None:
        known = {name: self._client.remembered_topic(name) for name in topics}
        self._topic_ids.update((name, topic.topic_id) for name, topic in known.items() if topic is not None)

    def uncommitted(self, at_s: float = math.inf) -> dict[TopicPartition, OffsetMark]:
        """Return the staged offsets that were not committed at this time: in flight, being retried, or refused."""
        with self._changed:
            return {key: mark for key, mark in self._marks.items() if not mark.was_committed(at_s)}

    def failure(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> KafkaError | None:
        """Return the reason why some of these offsets are not committed; None if all are.

        `DeadlineExceeded` means that a commit is in flight or being retried, also for a stale generation before the
        next `set_member`. `UsageError` means that a partition was revoked.
        """
        with self._changed:
            marks = {key: self._marks.get(key) for key in offsets}
            for (topic, partition), mark in marks.items():
                if mark is None:
                    return UsageError(f"{topic}-{partition} is no longer assigned to this member")
                if mark.refused is not None:
                    return mark.refused
            waiting = [mark for mark in marks.values() if mark is not None and mark.completed_at_s is None]
            if waiting:
                partition_error = next((str(mark.last_error) for mark in waiting if mark.last_error is not None), None)
                text = partition_error or self.counts.last_failure or "no error yet"
                return DeadlineExceeded(f"not committed yet: {text}")
            return None

    def flush(
        self,
        deadline: Deadline,
        partitions: Collection[TopicPartition] | None = None,
        *,
        partition_timeout_s: float = math.inf,
    ) -> bool:
        """Wait until the staged offsets of these partitions are committed or refused.

        Parameters
        ----------
        deadline : Deadline
            Time limit.
        partitions : collection of (str, int), optional
            Partitions to wait for; None: all.
        partition_timeout_s : float
            Maximum wait for a partition that fails alone, since its first error.

        Returns
        -------
        bool
            True if all are committed.
        """

        def committing(mark: OffsetMark) -> bool:
            if mark.completed_at_s is not None or mark.last_error is None or mark.failing_since_s is None:
                return mark.completed_at_s is None
            return self._client.clock.now_s() - mark.failing_since_s < partition_timeout_s

        with self._changed:
            self._wake()  # Ctrl-C may have prevented it after offsets were staged
            # A list: an interrupt while a generator is closed would be lost.
            while [mark for mark in self._marks_of(partitions) if committing(mark)]:
                if deadline.passed or self._closed:
                    return False
                self._changed.wait(min(deadline.remaining_s(), partition_timeout_s, 0.5))
            marks = self._marks_of(partitions)
            return not [mark for mark in marks if mark.completed_at_s is None or mark.refused is not None]

    def _marks_of(self, partitions: Collection[TopicPartition] | None) -> list[OffsetMark]:
        keys = self._marks if partitions is None else partitions
        return [self._marks[key] for key in keys if key in self._marks]

    def _notify(self) -> None:
        """Wake waiting callers. The caller holds the lock."""
        self.changes += 1
        self._changed.notify_all()

    def close(self) -> None:
        """End the thread without another commit; a request in flight may still succeed."""
        with self._changed:
            self._closed = True
            self._retry_clock.stop()
            self._changed.notify_all()
        if self._thread is not None:
            join(self._thread, 1.0)

    # -- the thread ---------------------------------------------------------------------------

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"offsets-{self.group}", daemon=True)
        with DeferredInterrupts():
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:
                self._record_result(error)  # the process has too many threads: the next mark or flush retries

    def _due_marks(self) -> dict[TopicPartition, OffsetMark]:
        """Return marks that are not committed, and those committed longer than `refresh_ms` ago."""
        now_s, member = self._client.clock.now_s(), self._member
        return {key: mark for key, mark in self._marks.items() if mark.due_at_s(member, self._refresh_s) <= now_s}

    def _check_at_s(self, mark: OffsetMark) -> float:
        """Return the time at which the group's offset is compared with the mark."""
        compares = self._member == NO_MEMBER and mark.was_committed(math.inf) and not mark.older
        return self._compared_at_s + self._compare_s if compares else mark.check_at_s

    def _marks_to_check(self) -> dict[TopicPartition, OffsetMark]:
        now_s = self._client.clock.now_s()
        return {key: mark for key, mark in self._marks.items() if self._check_at_s(mark) <= now_s}

    def _idle_s(self) -> float:
        """Return the time until a mark is due or to be checked."""
        times_s = (
            min(mark.due_at_s(self._member, self._refresh_s), self._check_at_s(mark)) for mark in self._marks.values()
        )
        return max(0.0, min(60.0, min(times_s, default=math.inf) - self._client.clock.now_s()))

    def _run(self) -> None:
        backoff = Backoff(RETRY_INITIAL_MS, RETRY_MAXIMUM_MS)
        while True:
            with self._changed:
                doubtful: dict[TopicPartition, OffsetMark] = {}
                while not self._closed and not (due := self._due_marks()) and not (doubtful := self._marks_to_check()):
                    self._changed.wait(self._idle_s())
                if self._closed:
                    return
                member = self._member
            if not due:
                self._check(doubtful)
                continue
            if self._commit(due, member):
                backoff.reset()
                continue
            with self._changed:
                # New marks do not shorten the back-off.
                wait_until = Deadline.after_ms(backoff.next_s() * 1000, self._client.clock)
                while not self._closed and not wait_until.passed:
                    self._changed.wait(wait_until.remaining_s())

    def _check(self, doubtful: Mapping[TopicPartition, OffsetMark]) -> None:
        """Commit marks again that the group's coordinator has replaced by an older, unanswered offset.

        An offset of another program is kept until the next comparison.
        """
        deadline, found = Deadline.after_ms(COMMIT_TIMEOUT_MS, self._retry_clock), None
        in_transactions: set[TopicPartition] = set()
        try:
            found = fetch_offsets(self._client, self.group, doubtful, deadline, pending=in_transactions)
        except Exception as error:  # including bugs: the thread must not end
            log.debug("group %s: its offsets could not be checked: %s", self.group, error)
        with self._changed:
            now_s, foreign = self._client.clock.now_s(), []
            for key, mark in doubtful.items():
                if found is None or key in in_transactions:
                    mark.check_later(now_s)
                elif not mark.older and self._marks.get(key) is mark and mark.was_replaced(found.get(key)):
                    now = found[key].offset if key in found else "none"
                    foreign.append(f"{key[0]}-{key[1]} had {now}, gets {mark.offset.offset}")
                elif mark.was_set_back(found.get(key)):
                    log.warning(
                        "group %s: a delayed commit has set %s-%d back to offset %d; offset %d is committed again",
                        self.group, *key, found[key].offset, mark.offset.offset,
                    )  # fmt: skip
            if self._compared_at_s + self._compare_s <= now_s:
                self._compared_at_s = now_s
                if foreign and not self._has_foreign_offsets:  # two readers of one group would warn each time
                    log.warning(
                        "group %s: another program has changed committed offsets (a reset, or another reader of this "
                        "group); this process commits its own again: %s. To move its position, stop it first",
                        self.group, listed(foreign),
                    )  # fmt: skip
                self._has_foreign_offsets = bool(foreign)
            self._notify()

    def _commit(self, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> bool:
        """Send one request, or two halves if it is too large for the coordinator or cannot be encoded.

        Return false if the coordinator did not respond, or refused for a reason that concerns the group.
        """
        replies = self._send(due, member)
        refusals = [error for error in replies.final.values() if isinstance(error, BrokerError)]
        evicted = [error for error in refusals if error.code in _MEMBER_ERRORS]
        if evicted:
            self.on_member_refused(member, evicted[0])
        if not self._apply(replies, due, member):
            return True
        keys, half = list(replies.to_split), len(replies.to_split) // 2
        halves = [{key: due[key] for key in half_keys} for half_keys in (keys[:half], keys[half:]) if half_keys]
        # If the first half fails for another reason, the second half is not sent.
        return replies.failure is None and all(self._commit(each, member) for each in halves)

    def _send(self, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> CommitReplies:
        """Send the marks and sort the replies, without changing the marks."""
        replies = CommitReplies(member, self._retry_refused, self._client.clock.now_s())

        def handle(key: TopicPartition, row: Row, broker: Broker, error: BrokerError | None) -> BrokerError | None:
            replies.in_flight &= not row  # no row: an error of a check before the request
            return replies.add(key, error)

        offsets = {key: mark.offset for key, mark in due.items()}
        topic_ids = {key: mark.topic_id for key, mark in due.items()}
        deadline = Deadline.after_ms(COMMIT_TIMEOUT_MS, self._retry_clock)
        request_timeout_ms = self._client.config.request_timeout_ms
        try:
            commit_offsets(
                self._client,
                self.group,
                offsets,
                deadline,
                member,
                handle,
                replies.begin_attempt,
                topic_ids=topic_ids,
                reply_deadline=lambda: Deadline.after_ms(request_timeout_ms, self._retry_clock),
            )
        except Exception as error:  # including bugs: the thread must not end
            if isinstance(error, UsageError) and not self._client.closed:
                replies.cannot_be_encoded(due, error)
            else:
                replies.failure = error
        replies.end()
        self._refuse_deleted_topics(due, replies)
        return replies

    def _refuse_deleted_topics(self, due: Mapping[TopicPartition, OffsetMark], replies: CommitReplies) -> None:
        """Make UNKNOWN_TOPIC_ID final for topics that were recreated.

        Others are retried: the coordinator may not know the new topic yet. The ids are those of several brokers, since
        one may lag behind.
        """
        refused = {key for key, error in replies.partition_errors.items() if error.code == ErrorCode.UNKNOWN_TOPIC_ID}
        if not refused:
            return
        deadline = Deadline.after_ms(_TOPIC_CHECK_MS, self._retry_clock)
        found = self._client.ids_at_brokers({key[0] for key in refused}, deadline)
        for key in refused:
            if found[key[0]] and due[key].topic_id not in found[key[0]]:
                replies.final[key] = replies.partition_errors.pop(key)
        if recreated := {key[0] for key in refused & replies.final.keys()}:
            with suppress(KafkaError):  # later offsets without an id get that of the new topic
                self._client.metadata(recreated, deadline)

    def _apply(self, replies: CommitReplies, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> bool:
        """Record replies in the marks and counters. Return False after `close`, or if all these marks were dropped."""
        with self._changed:  # `flush` must see marks and counts change together
            now_s, stale_error = self._client.clock.now_s(), None
            is_new = any(due[key].failing_since_s is None for key in replies.partition_errors)
            for key, error in list(replies.partition_errors.items()):
                if due[key].fail(error, now_s) >= TRANSIENT_UNKNOWN_MS / 1000 and not self._retry_refused:
                    replies.final[key] = replies.partition_errors.pop(key)
            for key, answer in replies.final.items():
                if answer is not None and is_stale_generation(answer, member):
                    due[key].refuse_generation(member, now_s)
                    stale_error = answer
                elif answer is None or self._member == member or not loses_assignment(answer):
                    due[key].complete(answer, now_s, replies.sent_at_s)
            if self._closed or not self._member.keeps_assignment_of(member) or not due.keys() & self._marks.keys():
                return False
            if replies.unanswered:
                until_s = now_s + self._client.config.request_timeout_ms / 1000
                for key in due.keys() & self._marks.keys():
                    self._marks[key].doubt(due[key].offset, until_s)
            refused = next((mark.refused for mark in due.values() if mark.refused is not None), None)
            if refused is not None:
                self._record_result(refused, "was refused and is not retried")
            if stale_error is not None and self._member == member:
                outcome = "has a stale generation, and is retried in the next one if the assignment is kept"
                self._record_result(stale_error, outcome, logging.INFO)
            if replies.failure is not None:
                for mark in self._marks.values():  # topics may have been created or deleted since the first error
                    mark.failing_since_s = None
            if replies.partition_errors and replies.failure is None:
                outcome = "of some partitions failed and is retried"
                self._record_result(
                    next(iter(replies.partition_errors.values())), outcome, logging.WARNING if is_new else logging.DEBUG
                )
            elif replies.failure is not None or (refused is None and None in replies.final.values()):
                self._record_result(replies.failure)
            self._notify()
        return True

    def _record_result(self, failure: Exception | None, outcome: str = "", level: int = logging.WARNING) -> None:
        """Count a result, and log failures and the recovery."""
        counts, was_healthy = self.counts, self.healthy
        if failure is None:
            self.counts, self.healthy = replace(counts, succeeded=counts.succeeded + 1), True
            if not was_healthy:
                log.warning("group %s: commits succeed again", self.group)
            return
        fault = None if isinstance(failure, KafkaError) else failure
        text = (
            self._client.format_error(failure) if isinstance(failure, KafkaError) else f"an unexpected error: {fault!r}"
        )
        self.counts = replace(counts, failed=counts.failed + 1, last_failure=text)
        self.healthy = was_healthy and bool(outcome)
        if outcome:
            log.log(level, "group %s: a commit %s: %s", self.group, outcome, text)
        elif was_healthy:
            log.warning("group %s: a commit failed and is retried: %s", self.group, text, exc_info=fault)
