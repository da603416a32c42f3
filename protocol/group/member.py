"""Who commits offsets for a group: what requests say of a member, and how long its claims hold.

Immutable, so that it can travel with what a member has marked. Made by whoever joins the group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GroupMember:
    """As the coordinator knows it: with a generation (classic protocol), or with an epoch (KIP-848); -1 is none.

    `group_instance_id`: of a static member (KIP-345).
    """

    member_id: str = ""
    generation_id: int = -1
    member_epoch: int = -1
    group_instance_id: str | None = None

    @property
    def generation_id_or_member_epoch(self) -> int:
        return max(self.generation_id, self.member_epoch)

    def has_claims_of(self, other: GroupMember) -> bool:
        """A new generation ends what was claimed under an old one. A new epoch does not: what is revoked is named."""
        return self == replace(other, member_epoch=self.member_epoch)


NO_MEMBER = GroupMember()
"""May commit for a group that has no members."""
