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

from protocol.base.clock import Backoff, Deadline, StoppableClock
from protocol.base.condition import Condition
from protocol.base.interrupts import join
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.unknown_topic import TRANSIENT_UNKNOWN_MS
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, UsageError
from protocol.group.commits.commit_marks import (
    RETRY_INITIAL_MS,
    RETRY_MAXIMUM_MS,
    CommitReplies,
    CommitResult,
    OffsetMark,
)
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
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

    One request is in flight at a time. But a request whose connection or reply was lost may arrive after a newer one.
    The group then has the older offset until the next commit: a restart reads records again, or skips some, if the
    newer commit had a lower offset.

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
        Called in the thread, without the lock, with the member of a commit and the error, if the coordinator does not
        know the member any more: `Membership.on_member_refused`, which may call `set_member`. If it raises an
        exception, the replies are not recorded, and the commit is sent again.
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
        # Offsets that were committed when `retain` dropped them.
        self._committed_before_drop: dict[TopicPartition, CommittedOffset] = {}
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
                self._marks, self._committed_before_drop = {}, {}
            self._member = member
            self._notify()

    def retain(self, owned: Collection[TopicPartition]) -> None:
        """Drop the staged offsets of all partitions except `owned`, also if a commit is in flight."""
        with self._changed:
            marks = {key: mark for key, mark in self._marks.items() if key in owned}
            if len(marks) < len(self._marks):
                dropped = {key: self._marks[key] for key in self._marks.keys() - marks.keys()}
                self._committed_before_drop = {
                    key: offset for key, offset in self._committed_before_drop.items() if key not in dropped
                }
                self._committed_before_drop |= {
                    key: mark.offset for key, mark in dropped.items() if mark.was_committed(math.inf)
                }
                self._marks = marks
                self._notify()

    def stage(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        member: GroupMember = NO_MEMBER,
        *,
        again: bool = False,
    ) -> bool:
        """Stage offsets, lower ones too, instead of those staged before.

        Parameters
        ----------
        offsets : mapping of (str, int) to CommittedOffset
            Offsets by partition. Those without a topic id get that of the newest metadata. An offset of a deleted topic
            is refused with UNKNOWN_TOPIC_ID, also if a new topic has its name.
        member : GroupMember
            The member that owned the partitions when they were read.
        again : bool
            Send also unchanged offsets, which were committed or refused before.

        Returns
        -------
        bool
            False if the assignment of `member` has ended; nothing is staged then.
        """
        with self._changed:
            accepted = member.keeps_assignment_of(self._member)
            if accepted:
                self._update_topic_ids({topic for topic, _ in offsets})
                for key, offset in offsets.items():
                    before = self._marks.get(key)
                    if again or before is None or not before.is_at(offset):
                        to_send = offset.assumed_in(self._topic_ids.get(key[0], NO_TOPIC_ID))
                        self._marks[key] = OffsetMark.after(before, to_send)
            self._wake()
            return accepted

    def _wake(self) -> None:
        """Start the thread, or wake it if a mark is not committed. The caller holds the lock."""
        if self._thread is None and not self._closed:
            self._start()
        if [mark for mark in self._marks.values() if mark.completed_at_s is None]:
            self._changed.notify_all()

    def _update_topic_ids(self, topics: Collection[str]) -> None:
        topics_by_name = {name: self._client.remembered_topic(name) for name in topics}
        self._topic_ids.update((name, topic.topic_id) for name, topic in topics_by_name.items() if topic is not None)

    def uncommitted(self, at_s: float = math.inf) -> dict[TopicPartition, CommittedOffset]:
        """Return the staged offsets that were not committed at this time: in flight, being retried, or refused."""
        with self._changed:
            return {key: mark.offset for key, mark in self._marks.items() if not mark.was_committed(at_s)}

    def failure(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> KafkaError | None:
        """Return the reason why some of these offsets are not committed; None if all are.

        `DeadlineExceeded` means that a commit is in flight, being retried, or waits for `set_member` after a stale
        generation. `UsageError` means that a partition was revoked.
        """
        with self._changed:
            marks = {key: self._marks.get(key) for key in offsets}
            for (topic, partition), mark in marks.items():
                if mark is None and self._committed_before_drop.get((topic, partition)) == offsets[topic, partition]:
                    continue
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
            True if all are committed; False also if some were dropped meanwhile, as their partitions were lost.
        """

        def committing(mark: OffsetMark) -> bool:
            if mark.completed_at_s is not None or mark.last_error is None or mark.failing_since_s is None:
                return mark.completed_at_s is None
            return self._client.clock.now_s() - mark.failing_since_s < partition_timeout_s

        with self._changed:
            self._wake()  # the process may have had too many threads before
            staged = self._marks_of(partitions)
            while any(committing(mark) for mark in self._marks_of(partitions).values()):
                if deadline.passed or self._closed:
                    return False
                self._changed.wait(min(deadline.remaining_s(), partition_timeout_s, 0.5))
            return all(mark.was_committed(math.inf) for mark in {**staged, **self._marks_of(partitions)}.values())

    def _marks_of(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, OffsetMark]:
        keys = self._marks if partitions is None else partitions
        return {key: self._marks[key] for key in keys if key in self._marks}

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
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:
            self._record_result(error)  # the process has too many threads: the next call of `stage` or `flush` retries

    def _due_marks(self) -> dict[TopicPartition, OffsetMark]:
        """Return marks that are not committed, and those committed longer than `refresh_ms` ago."""
        now_s, member = self._client.clock.now_s(), self._member
        return {key: mark for key, mark in self._marks.items() if mark.due_at_s(member, self._refresh_s) <= now_s}

    def _committed_marks(self) -> dict[TopicPartition, OffsetMark]:
        """Return the marks to compare with the group's offsets every `compare_ms`."""
        if self._member != NO_MEMBER:
            return {}
        return {key: mark for key, mark in self._marks.items() if mark.was_committed(math.inf)}

    def _idle_s(self) -> float:
        """Return the time until a mark is due or to be compared."""
        times_s = [mark.due_at_s(self._member, self._refresh_s) for mark in self._marks.values()]
        if self._committed_marks():
            times_s.append(self._compared_at_s + self._compare_s)
        return max(0.0, min(60.0, min(times_s, default=math.inf) - self._client.clock.now_s()))

    def _run(self) -> None:
        backoff = Backoff(RETRY_INITIAL_MS, RETRY_MAXIMUM_MS)
        while True:
            with self._changed:
                while not self._closed and (idle_s := self._idle_s()) > 0:
                    self._changed.wait(idle_s)
                if self._closed:
                    return
                due, committed, member = self._due_marks(), self._committed_marks(), self._member
            try:
                if not due:
                    self._compare(committed)
                    continue
                if self._commit(due, member):
                    backoff.reset()
                    continue
            except Exception as error:  # including bugs: the thread must not end
                with self._changed:
                    self._record_result(error)
            with self._changed:
                # New marks do not shorten the back-off.
                wait_until = Deadline.after_ms(backoff.next_s() * 1000, self._client.clock)
                while not self._closed and not wait_until.passed:
                    self._changed.wait(wait_until.remaining_s())

    def _compare(self, committed: Mapping[TopicPartition, OffsetMark]) -> None:
        """Make marks due whose offsets another program has changed, and warn once."""
        deadline, in_transactions = Deadline.after_ms(COMMIT_TIMEOUT_MS, self._retry_clock), set[TopicPartition]()
        offsets = None
        try:
            offsets = fetch_offsets(self._client, self.group, committed, deadline, pending=in_transactions)
        except Exception as error:  # including bugs: the thread must not end
            log.debug("group %s: its offsets could not be compared: %s", self.group, error)
        with self._changed:
            self._compared_at_s = self._client.clock.now_s()
            if offsets is None:
                return
            foreign = []
            for key in committed.keys() - in_transactions:
                mark = committed[key]
                if self._marks.get(key) is mark and mark.reset_if_replaced(offsets.get(key)):
                    now = offsets[key].offset if key in offsets else "none"
                    foreign.append(f"{key[0]}-{key[1]} had {now}, gets {mark.offset.offset}")
            if foreign and not self._has_foreign_offsets:  # two readers of one group would warn each time
                log.warning(
                    "group %s: another program has changed committed offsets (a reset, or another reader of this "
                    "group); this process commits its own again: %s. To move its position, stop it first",
                    self.group, listed(sorted(foreign)),
                )  # fmt: skip
            self._has_foreign_offsets = bool(foreign)
            self._notify()

    def _commit(self, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> bool:
        """Send one request, or two halves if it is too large for the coordinator or cannot be encoded.

        Return false if the coordinator did not respond, or refused for a reason that concerns the group.
        """
        replies = self._send(due, member)
        for error in replies[CommitResult.REFUSED].values():
            if isinstance(error, BrokerError) and error.code in _MEMBER_ERRORS:
                self.on_member_refused(member, error)
                break
        if not self._apply(replies, due, member):
            return True
        keys = list(replies[CommitResult.TOO_LARGE])
        half = len(keys) // 2
        halves = [{key: due[key] for key in half_keys} for half_keys in (keys[:half], keys[half:]) if half_keys]
        # If the first half fails for another reason, the second half is not sent.
        return replies.failure is None and all(self._commit(offsets, member) for offsets in halves)

    def _send(self, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> CommitReplies:
        """Send the marks and return the replies, without changing the marks."""
        replies, failure = CommitReplies(member, retry_refused=self._retry_refused), None
        request_timeout_ms = self._client.config.request_timeout_ms
        try:
            commit_offsets(
                self._client,
                self.group,
                {key: mark.offset for key, mark in due.items()},
                Deadline.after_ms(COMMIT_TIMEOUT_MS, self._retry_clock),
                member,
                replies.add,
                reply_deadline=lambda: Deadline.after_ms(request_timeout_ms, self._retry_clock),
            )
        except Exception as error:  # including bugs: the thread must not end
            failure = error
        replies.complete(failure, () if self._client.closed else due)
        self._refuse_deleted_topics(due, replies)
        return replies

    def _refuse_deleted_topics(self, due: Mapping[TopicPartition, OffsetMark], replies: CommitReplies) -> None:
        """Make UNKNOWN_TOPIC_ID final for topics that were recreated.

        Others are retried: the coordinator may not know the new topic yet. The ids are those of several brokers, since
        one may lag behind.
        """
        unknown = [
            key
            for key, error in replies[CommitResult.PARTITION_FAILED].items()
            if isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_TOPIC_ID
        ]
        if not unknown:
            return
        deadline = Deadline.after_ms(_TOPIC_CHECK_MS, self._retry_clock)
        ids = self._client.ids_at_brokers({topic for topic, _ in unknown}, deadline)
        others = {key: ids[key[0]] - {NO_TOPIC_ID} for key in unknown}
        recreated = [key for key in unknown if others[key] and due[key].offset.topic_id not in others[key]]
        for key in recreated:
            replies.refuse(key)
        if recreated:
            with suppress(KafkaError):  # later offsets without an id get that of the new topic
                self._client.metadata({topic for topic, _ in recreated}, deadline)

    def _apply(self, replies: CommitReplies, due: Mapping[TopicPartition, OffsetMark], member: GroupMember) -> bool:
        """Record replies in the marks and counters. Return False after `close`, or if all these marks were dropped."""
        with self._changed:  # `flush` must see marks and counts change together
            now_s, failed = self._client.clock.now_s(), replies[CommitResult.PARTITION_FAILED]
            is_new = any(due[key].failing_since_s is None for key in failed)
            for key, error in list(failed.items()):
                if due[key].fail(error, now_s) >= TRANSIENT_UNKNOWN_MS / 1000 and not self._retry_refused:
                    replies.refuse(key)
            for result in CommitResult.COMMITTED, CommitResult.REFUSED:
                for key, error in replies[result].items():
                    due[key].complete(error, now_s)
            for key in replies[CommitResult.STALE_GENERATION]:
                due[key].refuse_generation(member, now_s)
            if self._closed or not self._member.keeps_assignment_of(member) or not due.keys() & self._marks.keys():
                return False
            if replies.failure is not None:
                for mark in self._marks.values():  # topics may have been created or deleted since the first error
                    mark.failing_since_s = None
            self._record_replies(replies, is_new_failure=is_new, is_present_member=self._member == member)
            self._notify()
        return True

    def _record_replies(self, replies: CommitReplies, *, is_new_failure: bool, is_present_member: bool) -> None:
        """Count and log the first error of each result. The caller holds the lock."""
        first = {result: next(iter(replies[result].values()), None) for result in CommitResult}
        refused, stale = first[CommitResult.REFUSED], first[CommitResult.STALE_GENERATION]
        partition_error = first[CommitResult.PARTITION_FAILED]
        if refused is not None:
            self._record_result(refused, "was refused and is not retried")
        if stale is not None and is_present_member:
            outcome = "has a stale generation, and is retried in the next one if the assignment is kept"
            self._record_result(stale, outcome, logging.INFO)
        if replies.failure is not None:
            self._record_result(replies.failure)
        elif partition_error is not None:
            level = logging.WARNING if is_new_failure else logging.DEBUG
            self._record_result(partition_error, "of some partitions failed and is retried", level)
        elif refused is None and replies[CommitResult.COMMITTED]:
            self._record_result(None)

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
