"""Who commits offsets for a group: what requests say of a member, and how long its claims hold.

Immutable, so that it can travel with what a member has marked. Made by whoever joins the group.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupMember:
    """As the coordinator knows it: with a generation (classic protocol), or with an epoch (KIP-848); -1 is none.

    `group_instance_id`: of a static member (KIP-345).
    `claimed_in`: the generation or epoch since which it has kept claims without a break; None: the present one.
    """

    member_id: str = ""
    generation_id: int = -1
    member_epoch: int = -1
    group_instance_id: str | None = None
    claimed_in: int | None = None

    @property
    def generation_id_or_member_epoch(self) -> int:
        return max(self.generation_id, self.member_epoch)

    def has_claims_of(self, other: GroupMember) -> bool:
        """A new generation ends what was claimed under an old one, unless rebalancing is cooperative (KIP-429).

        A new epoch does not, either: what is revoked is named.
        """
        return self._claims == other._claims

    @property
    def _claims(self) -> tuple[str, str | None, int]:
        return (
            self.member_id,
            self.group_instance_id,
            self.generation_id if self.claimed_in is None else self.claimed_in,
        )


NO_MEMBER = GroupMember()
"""May commit for a group that has no members."""


@dataclass(frozen=True)
class ConsumerGroupMetadata:
    """Who would commit now, for a transaction that sends offsets (KIP-447)."""

    group_id: str
    member: GroupMember = NO_MEMBER
