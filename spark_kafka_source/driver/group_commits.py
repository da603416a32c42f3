"""What a query commits for its group: marked as soon as it is complete, waited for before a trigger ends.

Runs on the driver. `OffsetManager` commits in the background, so a commit that fails never holds up a trigger.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from protocol.clock import Deadline
from protocol.group.committed_offsets import CommittedOffset
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.group.offset_manager import DELETED_TOPIC_S, OffsetManager
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition
from spark_kafka_source.clients import client_for
from spark_kafka_source.driver.group_checks import require_no_members
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.claims import Claims
from spark_kafka_source.plan.offsets import Offsets

log = logging.getLogger(__name__)

# A trigger waits this long for the commit it has sent, so that the group is up to date when it ends. A coordinator
# that is in trouble already is not waited for: the commit goes on in the background.
_AWAIT_COMMIT_MS = 1_000
# With nothing new to read, Spark may end the query right after (availableNow), and what is revoked goes to another
# member: then a commit gets more time.
_AWAIT_LAST_COMMIT_MS = 10_000


class GroupCommits:
    """Does nothing before `begin`, nor for a query that has no group or is not to commit."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._manager: OffsetManager | None = None

    @property
    def group(self) -> str | None:
        """The group that gets the commits; None before `begin`, and for a query that does not commit."""
        return None if self._manager is None else self._manager.group

    def begin(self, deadline: Deadline) -> None:
        """Raises `ConfigurationError` when the group has live members, and this query is not to be one of them."""
        group = self._options.consumer.group_id
        if group is not None and self._options.commits and self._manager is None:
            client = client_for(self._options.client)
            if not self._options.is_member:
                require_no_members(client, group, deadline)
            self._manager = OffsetManager(client, group)

    def join(self, member: GroupMember) -> None:
        """Who commits from now on. Called in the thread that sends heartbeats, too."""
        if self._manager is not None:
            self._manager.set_member(member)

    def mark(self, complete: Offsets, claims: Claims, member: GroupMember = NO_MEMBER) -> None:
        """`complete`, and where partitions are claimed, is to be committed: of what is owned, if it is the same topic.

        `member`: who had the `claims`; nothing is committed if it has lost them meanwhile.

        For a recreated topic they would be positions in a log that they say nothing of, and so for one that may be
        recreated before the commit gets through. What is revoked another member commits.
        """
        if self._manager is not None:
            ids, owned, epochs = complete.ids, claims.owned, claims.epochs(complete)
            offsets = {
                key: CommittedOffset(offset, epochs.get(key, NO_LEADER_EPOCH))
                for key, offset in claims.positions(complete).items()
                if key in owned and ids.get(key[0], owned[key]) == owned[key]
            }
            self._manager.retain(offsets)
            # A log that was truncated, or recreated, is read again from an earlier offset on.
            self._manager.reset(offsets, member)

    def keep(self, owned: Collection[TopicPartition]) -> None:
        """Nothing of the others is committed any more: what could not be by now would set another member back."""
        if self._manager is not None:
            self._manager.retain(owned)

    def wait(self) -> None:
        """Until what is marked is committed, but not for long."""
        if self._manager is not None:
            self._flush(self._manager, _AWAIT_COMMIT_MS if self._manager.healthy else 0)

    def wait_for_last(self, otherwise: str) -> None:
        """As `wait`, for longer, and with a warning if that was not enough. `otherwise`: what happens then."""
        if self._manager is not None and not self._flush(self._manager, _AWAIT_LAST_COMMIT_MS):
            log.warning(
                "group %s: the last commit could not be made in time; %s: %s",
                self._manager.group,
                otherwise,
                self._manager.counts.last_failure,
            )

    def _flush(self, manager: OffsetManager, timeout_ms: float) -> bool:
        """The other topics of the query do not wait for one that was deleted."""
        deadline = client_for(self._options.client).deadline(timeout_ms)
        return manager.flush(deadline, partition_timeout_s=DELETED_TOPIC_S)

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
