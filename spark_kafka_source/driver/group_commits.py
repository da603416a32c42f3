"""Commit the offsets of complete batches to the group, and check the group when a query starts. Runs on the driver.

`OffsetManager` commits in the background: a failing commit never delays a trigger by more than a second.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from protocol.admin.groups import describe_group
from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.cluster.client import Client
from protocol.errors import ConfigurationError, KafkaError
from protocol.group.commits.committed_offsets import fetch_offsets, to_commit
from protocol.group.commits.offset_manager import DELETED_TOPIC_S, OffsetManager
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.group.membership.membership import Membership
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.error_messages import with_option_names
from spark_kafka_source.options.partitions import partition_name
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.process_state import PROCESS

log = logging.getLogger(__name__)

# A trigger waits this long for its commit, so that the group is up to date when it ends. If commits fail already, the
# trigger does not wait.
_AWAIT_COMMIT_MS = 1_000
# Limit for a last commit, after which Spark may end the query (availableNow) or a partition is revoked.
AWAIT_LAST_COMMIT_MS = 10_000
# A running query notices a reset of its group within this time.
_COMPARE_MS = 60_000
# Limit of each request about the group when a query starts.
_CHECK_MS = 15_000


class GroupCommits:
    """The commits of one query. Has no effect before `start`, and for a query without a group or commits."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.manager: OffsetManager | None = None
        """Commits in the background; None while no group is set."""
        self._logged: Mapping[TopicPartition, int] = {}

    @property
    def group(self) -> str | None:
        """The group; None before `start`, and for a query that does not commit."""
        return None if self.manager is None else self.manager.group

    def start(self, deadline: Deadline) -> None:
        """Start. Raises `ConfigurationError` if the group has live members and this query is not a member itself."""
        group = self._options.consumer.group_id
        if group is not None and self._options.commits and self.manager is None:
            client = PROCESS.client(self._options.client)
            if not self._options.is_member:
                require_no_members(client, group, deadline)
            self.manager = OffsetManager(client, group, compare_ms=_COMPARE_MS)

    def report_refusals_to(self, membership: Membership) -> None:
        """Tell the membership if a commit shows that the coordinator has removed its member."""
        if self.manager is not None:
            self.manager.on_member_refused = membership.on_member_refused

    def set_member(self, member: GroupMember) -> None:
        """Set the member that commits. Also called in the heartbeat thread."""
        if self.manager is not None:
            self.manager.set_member(member)

    def mark(self, completed: Offsets, assignment: QueryAssignment, member: GroupMember = NO_MEMBER) -> None:
        """Mark the positions of readable partitions for the commit. `completed` is the end of a complete batch.

        Other partitions are committed by their owner, or not at all while brokers disagree about the topic. `member`
        had the assignment; nothing is staged if it has lost it since.
        """
        if self.manager is not None:
            readable = assignment.readable
            offsets = {
                key: to_commit(position.assumed_in(readable[key]))
                for key, position in assignment.positions(completed).items()
                if key in readable
            }
            if log.isEnabledFor(logging.INFO):
                self._log(self.manager.group, {key: offset.offset for key, offset in offsets.items()})
            self.manager.retain(offsets)  # first: a commit sends all staged offsets
            self.manager.stage(offsets, member)

    def _log(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Log the offsets that have changed since the last call: once for each batch."""
        changed = sorted(key for key, offset in offsets.items() if self._logged.get(key) != offset)
        self._logged = offsets
        if changed:
            ends = listed([f"{partition_name(key)} {offsets[key]}" for key in changed])
            log.info("group %s: committing what is complete: %s", group, ends)

    def retain(self, owned: Collection[TopicPartition]) -> None:
        """Drop marked offsets of all other partitions: a late commit would reset their new owner's offset."""
        if self.manager is not None:
            self.manager.retain(owned)

    def await_commit(self) -> None:
        """Wait up to 1 s for the commit of marked offsets."""
        if self.manager is not None:
            self._flush(self.manager, _AWAIT_COMMIT_MS if self.manager.healthy else 0)

    def await_last_commit(self, consequence: str) -> None:
        """Wait up to 10 s for the commit; log a warning after that. `consequence` is for the warning."""
        if self.manager is not None and not self._flush(self.manager, AWAIT_LAST_COMMIT_MS):
            log.warning(
                "group %s: the last commit did not complete in time; %s: %s",
                self.manager.group,
                consequence,
                self.manager.counts.last_failure,
            )

    def _flush(self, manager: OffsetManager, timeout_ms: float) -> bool:
        """Flush; a deleted topic does not delay the others."""
        deadline = PROCESS.client(self._options.client).deadline(timeout_ms)
        return manager.flush(deadline, partition_timeout_s=DELETED_TOPIC_S)

    def await_commit_before_leaving(self) -> None:
        """Wait up to 1 s for the commit, also if commits fail: a retry may be due."""
        if self.manager is not None:
            self._flush(self.manager, _AWAIT_COMMIT_MS)

    def close(self) -> None:
        """Stop committing."""
        if self.manager is not None:
            self.manager.close()


def require_no_members(client: Client, group: str, deadline: Deadline) -> None:
    """Raise `ConfigurationError` if the group has live members: Kafka then refuses commits of non-members."""
    try:
        description = describe_group(client, group, deadline.at_most_ms(_CHECK_MS))
    except KafkaError as error:
        # Continue: a refused commit is reported later.
        log.warning("group %s: cannot tell whether it has live members: %s", group, with_option_names(error))
        return
    if description.members:
        members = listed([f"{member.client_id} at {member.client_host}" for member in description.members])
        raise ConfigurationError(
            f"group {group} has {len(description.members)} live member(s) ({members}): Kafka would refuse this query's "
            "commits. Set another kafka.group.id, stop those members, or set commitOffsets=false to read without "
            "committing"
        )


def warn_if_offsets_differ(client: Client, options: SourceOptions, checkpoint: Offsets, deadline: Deadline) -> None:
    """Log once after a restart that the query resumes from the checkpoint, and how the group's offsets differ."""
    group = options.consumer.group_id
    if group is None or not options.commits:
        log.info("resuming from the checkpoint (%s)", "no kafka.group.id" if group is None else "commitOffsets=false")
        return
    try:
        committed = fetch_offsets(client, group, checkpoint.ends, deadline.at_most_ms(_CHECK_MS))
    except KafkaError as error:
        log.warning("resuming from the checkpoint; group %s could not be compared: %s", group, with_option_names(error))
        return
    behind, ahead = [], []
    for key, offset in sorted(checkpoint.ends.items()):
        position = committed.get(key)
        if position is None or position.offset < offset:
            in_group = position.offset if position else "none"
            behind.append(f"{partition_name(key)}: group {in_group}, checkpoint {offset}")
        elif position.offset > offset:
            ahead.append(f"{partition_name(key)}: group {position.offset}, checkpoint {offset}")
    if ahead:
        log.warning(
            "resuming from the checkpoint; group %s is ahead of it in %d partition(s) (was it reset, or used by "
            "another query?): %s. The query commits the checkpoint's offsets. To start from the group's offsets, use a "
            "new checkpointLocation",
            group,
            len(ahead),
            listed(ahead, separator="; "),
        )
    elif behind:
        log.warning(
            "resuming from the checkpoint; group %s is behind it in %d partition(s), as after a stop "
            "before the last commit, or after batches of another connector: %s",
            group,
            len(behind),
            listed(behind, separator="; "),
        )
    else:
        log.info("resuming from the checkpoint; group %s has the same offsets", group)
