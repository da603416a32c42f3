"""A streaming query as a member of its group: its assigned partitions, and their start offsets.

Runs on the driver, in the process of one query. The first trigger joins the group; a thread of
`protocol.group.membership` sends heartbeats. Rebalances are handled between two batches only. At SIGTERM the query
leaves the group, if possible after its last commit.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FrameType

from protocol.admin.groups import describe_group
from protocol.base.clock import Deadline
from protocol.errors import DeadlineExceeded, KafkaError
from protocol.group.member import NO_MEMBER
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import NO_TOPIC_ID, TopicIds, TopicPartition
from protocol.position import Position
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.start_offsets import group_offsets
from spark_kafka_source.error_messages import with_option_names
from spark_kafka_source.options.partitions import partition_names
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.process_state import PROCESS

log = logging.getLogger(__name__)

# Maximum wait of a trigger for a rebalance. Longer without any assigned partition: brokers delay the first rebalance of
# a group by 3 s by default (group.initial.rebalance.delay.ms).
_AWAIT_ASSIGNMENT_MS = 5_000
_AWAIT_FIRST_ASSIGNMENT_MS = 15_000
_POLL_INTERVAL_S = 0.2
# Limit for the last commit, half of it, and for leaving the group at SIGTERM: Spark kills the process soon afterwards.
_MAX_CLOSE_S = 2.0


@dataclass(frozen=True)
class _AssignedPartition:
    """An assigned partition.

    `start` is the group's position at the assignment, None without one. The next batch that contains the partition
    begins at `start`, or before it if the log was truncated. Once that batch is complete, `start` no longer applies.
    """

    topic_id: bytes
    start: Position | None


class QueryMembership:
    """The membership of one query. The constructor opens no connection.

    `member`: the member that has the assignment returned last.
    """

    def __init__(self, options: SourceOptions, commits: GroupCommits) -> None:
        self._options = options
        self._commits = commits
        self.membership: Membership | None = None
        """The query's member; None before it joins."""
        self._topics: frozenset[str] = frozenset()
        # The resolved `startingOffsets` of the topics that existed when the query began.
        self._starting: dict[TopicPartition, Position] = {}
        self._assigned: dict[TopicPartition, _AssignedPartition] = {}
        # With which the last batch was planned.
        self._last_assignment = QueryAssignment({})
        self._completed = Offsets({})
        self.member = NO_MEMBER

    def keep_starting_offsets(self, starting: Offsets) -> None:
        """Keep the starts of the first batch until they are read: a partition may be assigned later."""
        self._starting = {**starting.positions, **self._starting}

    def poll_assignment(
        self, existing: TopicIds, completed: Offsets, *, available_now: bool, deadline: Deadline
    ) -> dict[TopicPartition, bytes]:
        """Handle rebalances, and return the partitions of this member, with the topic ids that the group has assigned.

        The ids are zeros if it assigns names.

        `existing`: all partitions of the subscribed topics.
        `completed`: end of the last complete batch; committed before a partition is revoked.
        `available_now`: True for a run that ends with the current backlog: it waits for its assignment until the
        deadline.
        Raises `KafkaError`: the query cannot be a member.
        """
        self._drop_passed_starts(completed)
        membership = self._subscribe(existing)
        membership.progress()
        if membership.rebalance_pending is not None:
            pending_reason = self._poll_rebalance(
                membership, existing, completed, deadline if available_now else self._rebalance_deadline(deadline)
            )
            while available_now and (pending := pending_reason or self._pending_reason(membership, existing, deadline)):
                if deadline.passed:
                    raise DeadlineExceeded(f"the group has not assigned its partitions to this query yet: {pending}")
                deadline.clock.sleep_s(_POLL_INTERVAL_S)
                pending_reason = self._poll_rebalance(membership, existing, completed, deadline)
        if (refusal := membership.take_authorization_error()) is not None:
            log.warning("%s", with_option_names(refusal))
        assigned_ids = membership.topic_ids
        return {key: assigned_ids.get(key, NO_TOPIC_ID) for key in membership.owned}

    def fetch_start_positions(
        self, assignment: QueryAssignment, assigned_ids: TopicIds, completed: Offsets, deadline: Deadline
    ) -> QueryAssignment:
        """Return the assignment with the start positions of its partitions.

        A new partition starts at the group's offset. Without one, an unread partition starts at its offset in
        `keep_starting_offsets`, or else at its log start offset.

        `assigned_ids`: the result of `poll_assignment`.
        Raises as `start_offsets` for group offsets that are not in the log.
        """
        self._add_assigned(assignment, assigned_ids, completed, deadline)
        starts = {
            key: partition.start
            for key, partition in self._assigned.items()
            if partition.start is not None and partition.topic_id == assignment.readable.get(key)
        }
        self._last_assignment = replace(assignment, starts=starts)
        return self._last_assignment

    @property
    def assignment_lost(self) -> bool:
        """True if the assignment returned last is lost, or may be."""
        return self.membership is not None and self.membership.assignment_lost is not None

    def close(self) -> None:
        """Leave the group at once; a static member (`group.instance.id`) stays until its session times out."""
        if self.membership is not None:
            self.membership.close()

    def _close_after_last_commit(self) -> None:
        """Leave the group, if possible after the last commit: the interrupted main thread may hold a lock it needs."""
        awaiting = threading.Thread(target=self._commits.await_commit_before_leaving, name="last-commit", daemon=True)
        awaiting.start()
        awaiting.join(_MAX_CLOSE_S / 2)
        self.close()

    # -- membership -----------------------------------------------------------------------------

    def _subscribe(self, existing: TopicIds) -> Membership:
        topics = frozenset(self._options.subscribe or {topic for topic, _ in existing})
        if self.membership is None:
            self.membership = Membership(
                PROCESS.client(self._options.client),
                self._options.consumer,
                TopicSubscription(topics),
                on_member=self._commits.set_member,
            )
            self._commits.report_refusals_to(self.membership)
            at_sigterm(self._close_after_last_commit)
        elif topics != self._topics:
            self.membership.subscribe(TopicSubscription(topics))
        self._topics = topics
        return self.membership

    def _rebalance_deadline(self, deadline: Deadline) -> Deadline:
        return deadline.at_most_ms(_AWAIT_ASSIGNMENT_MS if self._assigned else _AWAIT_FIRST_ASSIGNMENT_MS)

    def _pending_reason(self, membership: Membership, existing: TopicIds, deadline: Deadline) -> str | None:
        """Return why more partitions will be assigned, from the coordinator; None if none will."""
        if (reason := membership.rebalance_pending) is not None:
            return str(reason)
        group = str(self._options.consumer.group_id)
        try:
            members = describe_group(PROCESS.client(self._options.client), group, deadline).members
        except KafkaError as error:
            log.info(
                "group %s: cannot tell whether other members still have to revoke partitions: %s",
                group,
                with_option_names(error),
            )
            return None
        targets = {member.member_id: member.target for member in members}
        unrevoked = targets.get(membership.member.member_id, frozenset()) - membership.owned
        if not membership.owned:
            # In a classic cooperative rebalance, moved partitions have no owner for one generation.
            unrevoked |= existing.keys() - frozenset[TopicPartition]().union(*targets.values())
        return f"other members still have to revoke {partition_names(sorted(unrevoked))}" if unrevoked else None

    def _poll_rebalance(
        self, membership: Membership, existing: TopicIds, completed: Offsets, deadline: Deadline
    ) -> EndReason | None:
        """Revoke and accept partitions; return why more will be assigned, None if the assignment is final."""
        group = self._options.consumer.group_id

        def before_revoke(revocation: Revocation) -> None:
            """Commit, then drop the partitions. One poll may call it several times, with the former `self.member`."""
            if not revocation.lost:
                # Offsets of a recreated topic belong to the old one.
                same_topics = dict(self._last_assignment.readable.items() & existing.items())
                self._commits.mark(completed, replace(self._last_assignment, readable=same_topics), self.member)
                self._commits.await_last_commit(
                    "the new owner of the partitions reads the last records of this query again"
                )
            log.info(
                "group %s: %s %s: %s",
                group,
                "lost" if revocation.lost else "revoked",
                partition_names(sorted(revocation.partitions)),
                with_option_names(revocation.reason.error),
            )
            self._commits.retain(membership.owned - revocation.partitions)
            # A later revocation in the same call must not commit them again: they have another owner by then.
            self._last_assignment = self._last_assignment.without(revocation.partitions)
            for key in revocation.partitions:
                self._assigned.pop(key, None)

        assignment = membership.poll_rebalance(deadline, before_revoke)
        self.member = assignment.member
        if assignment.added:
            log.info("group %s: assigned %s", group, partition_names(sorted(assignment.added)))
        if assignment.pending_reason is not None:
            log.info("group %s: the assignment is not final yet: %s", group, assignment.pending_reason)
        return assignment.pending_reason

    # -- start offsets --------------------------------------------------------------------------

    def _drop_passed_starts(self, completed: Offsets) -> None:
        """Drop starts that no longer apply, before a revocation commits `completed`.

        After a truncation, the end of a batch may be lower than the group's offset, or the same as before.
        """
        is_complete = completed != self._completed
        self._completed = completed
        for key, assigned in self._assigned.items():
            reached, start = completed.positions.get(key), assigned.start
            if start is None or reached is None or not reached.is_in(assigned.topic_id):
                continue
            if reached.offset >= start.offset or (is_complete and key in self._last_assignment.readable):
                self._assigned[key] = replace(assigned, start=None)
        # Also without topic ids, they do not apply to a topic that is created again.
        self._starting = {key: start for key, start in self._starting.items() if key not in completed.ends}
        passed = {key for key, assigned in self._assigned.items() if assigned.start is None}
        self._last_assignment = self._last_assignment.without_starts(passed)

    def _add_assigned(
        self, assignment: QueryAssignment, assigned_ids: TopicIds, completed: Offsets, deadline: Deadline
    ) -> None:
        """Fetch the group's offsets of new partitions. They apply as `_AssignedPartition` says.

        A group that assigns names may still have offsets of a deleted topic that the query has read: not fetched.
        """
        # A partition that seemed deleted, and was forgotten, is new when it comes back. An awaited one keeps its start.
        last = self._last_assignment
        forgotten = {
            key
            for key in assignment.readable.keys() - last.readable.keys() - set(last.kept) - completed.ends.keys()
            if key in self._assigned and self._assigned[key].topic_id == assignment.readable[key] != NO_TOPIC_ID
        }
        new = {
            key: topic_id
            for key, topic_id in assignment.readable.items()
            if key not in self._assigned or key in forgotten
        }
        if not new:
            return
        client, options = PROCESS.client(self._options.client), self._options
        recreated, read = assignment.recreated(completed), assignment.positions(completed)
        partitions = {
            key: topic_id
            for key, topic_id in new.items()
            if assigned_ids[key] != NO_TOPIC_ID or key[0] not in recreated
        }
        after = {key: position.offset for key, position in read.items()}
        offsets = group_offsets(client, options, partitions, deadline, after=after)
        starts = {key: start for key, start in self._starting.items() if key in new and start.is_in(new[key])}
        starts.update(offsets)
        self._assigned.update({key: _AssignedPartition(topic_id, starts.get(key)) for key, topic_id in new.items()})
        if ahead := [key for key in offsets if key in read]:
            log.warning(
                "group %s is ahead of the checkpoint, since other members have read further: resuming at its offsets "
                "in %s",
                options.consumer.group_id,
                partition_names(ahead),
            )


def at_sigterm(close: Callable[[], None]) -> None:
    """Call `close` before SIGTERM ends this process. Has no effect outside of the main thread.

    Spark stops a query's process this way, without a call of the reader's `stop()`.
    `close` runs in a separate thread: the interrupted main thread may hold a lock that `close` needs.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # Spark sends it twice
        closing = threading.Thread(target=close, name="at-sigterm", daemon=True)
        closing.start()
        closing.join(_MAX_CLOSE_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
