"""Who commits offsets for a group: what requests say of a member, and how long its claims hold.

Immutable, so that it can travel with what a member has marked. Made by whoever joins the group.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupMember:
    """As the coordinator knows it: with a generation (classic protocol), or with an epoch (KIP-848); -1 is none.

    `group_instance_id`: of a static member (KIP-345).
    `assigned_since`: the generation or epoch since which it has kept claims without a break; None: the present one.
    """

    member_id: str = ""
    generation_id: int = -1
    member_epoch: int = -1
    group_instance_id: str | None = None
    assigned_since: int | None = None

    @property
    def generation_id_or_member_epoch(self) -> int:
        return max(self.generation_id, self.member_epoch)

    @property
    def is_in_group(self) -> bool:
        """Whether it has joined: it has a generation or an epoch."""
        return self.generation_id_or_member_epoch >= 0

    def keeps_assignment_of(self, other: GroupMember) -> bool:
        """A new generation ends what was claimed under an old one, unless rebalancing is cooperative (KIP-429).

        A new epoch does not, either: what is revoked is named.
        """
        return self._assignment_key == other._assignment_key

    def updated_to(self, now: GroupMember) -> GroupMember:
        """Return `now`, the same member in a later generation or epoch, if it still has these claims; else this one.

        The coordinator refuses a generation or epoch that has passed, but not a member without one if the group is
        empty: records that were fetched as a member must not be committed as no member.
        """
        return now if now.keeps_assignment_of(self) else self

    @property
    def _assignment_key(self) -> tuple[str, str | None, int]:
        return (
            self.member_id,
            self.group_instance_id,
            self.generation_id if self.assigned_since is None else self.assigned_since,
        )


NO_MEMBER = GroupMember()
"""May commit for a group that has no members."""


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """The member that has fetched records, for a transaction that sends their offsets (KIP-447)."""

    group_id: str
    member: GroupMember = NO_MEMBER
