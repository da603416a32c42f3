"""The identity under which offsets of a group are committed.

Immutable, so that it can be stored with staged offsets. Created by members, see `protocol.group.membership`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.kafka_terms import TopicPartition


@dataclass(frozen=True)
class GroupMember:
    """A member as the coordinator knows it.

    Equal members have the same generation or epoch: a commit refused for a stale one is sent again as soon as the
    member differs. `keeps_assignment_of` compares only the assignment.

    Attributes
    ----------
    member_id : str
        Empty before the member has joined a group of the classic protocol.
    generation_id : int
        Generation of the classic protocol; -1 if none.
    member_epoch : int
        Epoch of the consumer protocol (KIP-848); -1 if none.
    group_instance_id : str or None
        Name of a static member (KIP-345).
    assigned_since : int or None
        First generation or epoch of the present assignment; later ones may extend it. None if unknown, and without a
        session: the assignment is then that of `generation_id` only.
    """

    member_id: str = ""
    generation_id: int = -1
    member_epoch: int = -1
    group_instance_id: str | None = None
    assigned_since: int | None = None

    @property
    def generation_id_or_member_epoch(self) -> int:
        """Return the generation or the epoch, as OffsetCommit has it; -1 if none."""
        return max(self.generation_id, self.member_epoch)

    @property
    def is_in_group(self) -> bool:
        """Return True if the member has a generation or an epoch."""
        return self.generation_id_or_member_epoch >= 0

    def keeps_assignment_of(self, former: GroupMember) -> bool:
        """Return True if this member still has the partitions that were assigned to `former`.

        A new generation ends an assignment, except in cooperative rebalances (KIP-429). A new epoch does not, since the
        coordinator revokes partitions by name.
        """
        return self._assignment_key == former._assignment_key

    def updated_to(self, current: GroupMember) -> GroupMember:
        """Return `current` if it has this member's assignment in a later generation or epoch; else this member.

        The coordinator refuses stale generations and epochs, but accepts commits without a member if the group is
        empty. Records fetched as a member must not be committed without one.
        """
        return current if current.keeps_assignment_of(self) else self

    @property
    def _assignment_key(self) -> tuple[str, str | None, int]:
        return (
            self.member_id,
            self.group_instance_id,
            self.generation_id if self.assigned_since is None else self.assigned_since,
        )


NO_MEMBER = GroupMember()
"""Commits for a group without members. Equals a member of the classic protocol without id and instance id."""


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """The member that has fetched records, for a transaction that sends their offsets (KIP-447).

    Attributes
    ----------
    topic_ids : mapping of (str, int) to bytes
        Ids of the topics of the records; the offsets of a deleted topic are refused then.
    """

    group_id: str
    member: GroupMember = NO_MEMBER
    topic_ids: Mapping[TopicPartition, bytes] = field(default_factory=dict, compare=False, repr=False)
