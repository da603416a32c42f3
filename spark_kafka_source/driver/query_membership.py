"""A streaming query as one member of its group: which partitions it may read, and where it begins in those it gains.

Runs on the driver, in the process of one query: the first trigger joins, a thread of `protocol.group.membership` sends
heartbeats, and executors know nothing of it. What happens in the group is taken up between two batches only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocol.admin.groups import describe_group
from protocol.clock import Deadline
from protocol.errors import DeadlineExceeded, KafkaError
from protocol.group.member import NO_MEMBER
from protocol.group.membership.assignment import EndReason, Revocation, TopicSubscription
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.driver.at_sigterm import at_sigterm
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.start_offsets import group_offsets
from spark_kafka_source.options.partitions import listed
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.claims import Claims
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.remedies import in_options

log = logging.getLogger(__name__)

# A trigger waits this long for the others in the group. With nothing to read it waits longer: a broker puts off the
# first assignment of a group for 3 s by default (group.initial.rebalance.delay.ms).
_AWAIT_ASSIGNMENT_MS = 5_000
_AWAIT_FIRST_ASSIGNMENT_MS = 15_000
_LOOK_AGAIN_S = 0.2


@dataclass(frozen=True)
class _Claim:
    """`offset`: where the group was when the partition was claimed; None: nobody has read it for the group."""

    topic_id: bytes
    offset: int | None


class QueryMembership:
    """Opens nothing when it is made.

    `commits`: who is told which member commits. `member`: who has the claims that were given out last.
    """

    def __init__(self, options: SourceOptions, commits: GroupCommits) -> None:
        self._options = options
        self._commits = commits
        self._membership: Membership | None = None
        self._topics: frozenset[str] = frozenset()
        # Where `startingOffsets` were when the query began, of the topics that there were then.
        self._starting: dict[TopicPartition, _Claim] = {}
        self._claimed: dict[TopicPartition, _Claim] = {}
        self._before = Claims({})
        self.member = NO_MEMBER

    def claims(self, there: Claims, read: Offsets, *, ends_soon: bool, deadline: Deadline) -> Claims:
        """Takes up what has happened in the group; `there`, less what is not this member's.

        A partition that is gained begins at the group's offset; where there is none, and nothing was read, where
        `there.added` had it when the query began, and if it was not there then, at the beginning of its log.
        `read` is complete: it is committed before a partition goes to another member. `ends_soon`: a run that reads
        what is there and ends, so it waits for its assignment as long as it may. Raises `KafkaError` for what cannot be
        a member, and what `start_offsets` raises for offsets of the group that are not in the log.
        """
        for key, offset in there.added.items():
            if key in there.owned:
                self._starting.setdefault(key, _Claim(there.owned[key], offset))
        membership = self._subscribed(there)
        membership.progress()
        if membership.rebalance_pending is not None:
            joining = self._poll_rebalance(membership, there, read, deadline if ends_soon else self._patience(deadline))
            while ends_soon and (missing := joining or self._missing(membership, there, deadline)):
                if deadline.passed:
                    raise DeadlineExceeded(f"the group has not assigned its partitions to this query yet: {missing}")
                deadline.clock.sleep_s(_LOOK_AGAIN_S)
                joining = self._poll_rebalance(membership, there, read, deadline)
        if (refusal := membership.take_authorization_error()) is not None:
            log.warning("%s", in_options(refusal))
        owned = {key: topic_id for key, topic_id in there.owned.items() if key in membership.owned}
        self._claim(owned, read, deadline)
        added = {
            key: claim.offset
            for key, claim in self._claimed.items()
            if claim.offset is not None and claim.topic_id == owned.get(key)
        }
        self._before = replace(there, owned=owned, added=added, revoked=there.owned.keys() - owned.keys())
        return self._before

    @property
    def has_lost(self) -> bool:
        """Whether what `claims` gave out last has ended since, or may have."""
        return self._membership is not None and self._membership.assignment_lost is not None

    def close(self) -> None:
        """Leaves the group at once; with `group.instance.id` it is to come back, and stays."""
        if self._membership is not None:
            self._membership.close()

    # -- what happens in the group ------------------------------------------------------------

    def _subscribed(self, there: Claims) -> Membership:
        topics = frozenset(self._options.subscribe or {topic for topic, _ in there.owned})
        if self._membership is None:
            self._membership = Membership(
                client_for(self._options.client),
                self._options.consumer,
                TopicSubscription(topics),
                on_member=self._commits.join,
            )
            at_sigterm(self.close)
        elif topics != self._topics:
            self._membership.subscribe(TopicSubscription(topics))
        self._topics = topics
        return self._membership

    def _patience(self, deadline: Deadline) -> Deadline:
        return deadline.at_most_ms(_AWAIT_ASSIGNMENT_MS if self._claimed else _AWAIT_FIRST_ASSIGNMENT_MS)

    def _missing(self, membership: Membership, there: Claims, deadline: Deadline) -> str | None:
        """Why more is to come of what this member is to have: only the coordinator knows what others hold yet."""
        if (reason := membership.rebalance_pending) is not None:
            return str(reason)
        group = str(self._options.consumer.group_id)
        try:
            members = describe_group(client_for(self._options.client), group, deadline).members
        except KafkaError as error:
            log.info(
                "group %s: cannot tell whether others have yet to give up partitions: %s", group, in_options(error)
            )
            return None
        targets = {member.member_id: member.target for member in members}
        due = targets.get(membership.member.member_id, frozenset()) - membership.owned
        if not membership.owned:
            # In a cooperative rebalance of a classic group, what changes hands is nobody's for one generation.
            due |= there.owned.keys() - frozenset[TopicPartition]().union(*targets.values())
        return f"other members have yet to give up {listed(sorted(due))}" if due else None

    def _poll_rebalance(
        self, membership: Membership, there: Claims, read: Offsets, deadline: Deadline
    ) -> EndReason | None:
        """Gives up and takes what the group says; why more is still to come, None when that is all."""
        group = self._options.consumer.group_id

        def before_revoke(revocation: Revocation) -> None:
            if not revocation.lost:
                # A topic that was recreated since has other records at these offsets.
                same_topics = dict(self._before.owned.items() & there.owned.items())
                self._commits.mark(read, replace(self._before, owned=same_topics), self.member)
                self._commits.wait_for_last("whoever gets the partitions reads again what this query has read last")
            log.info(
                "group %s: %s %s: %s",
                group,
                "lost" if revocation.lost else "revoked",
                listed(sorted(revocation.partitions)),
                in_options(revocation.reason.error),
            )
            self._commits.keep(membership.owned - revocation.partitions)
            for key in revocation.partitions:
                self._claimed.pop(key, None)

        assignment = membership.poll_rebalance(deadline, before_revoke)
        self.member = assignment.member
        if assignment.added:
            log.info("group %s: assigned %s", group, listed(sorted(assignment.added)))
        if assignment.pending_reason is not None:
            log.info("group %s: what else this query is to read is not known yet: %s", group, assignment.pending_reason)
        return assignment.pending_reason

    # -- where it begins ----------------------------------------------------------------------

    def _claim(self, owned: Mapping[TopicPartition, bytes], read: Offsets, deadline: Deadline) -> None:
        """Looks up where the group is in what this member has gained. Once it has read on from there, `read` counts."""
        for key, claim in self._claimed.items():
            if claim.offset is not None and claim.offset <= read.ends.get(key, -1):
                self._claimed[key] = replace(claim, offset=None)
        gained = {key: topic_id for key, topic_id in owned.items() if key not in self._claimed}
        if not gained:
            return
        client, options = client_for(self._options.client), self._options
        offsets = group_offsets(client, options, gained, deadline, after=read.ends)
        unread = gained.items() & {(key, start.topic_id) for key, start in self._starting.items()}
        begins = {key: self._starting[key].offset for key, _ in unread if key not in read.ends}
        begins.update(offsets)
        self._claimed.update({key: _Claim(topic_id, begins.get(key)) for key, topic_id in gained.items()})
        if ahead := [key for key in gained if key in read.ends and key in offsets]:
            log.warning(
                "group %s is ahead of the checkpoint, since others have read on: goes on at the group's offsets in %s",
                options.consumer.group_id,
                listed(ahead),
            )
