"""What a member's owner is told: what it has, and what it has to give up. Values, made by the member's machine."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.group.member import GroupMember
from protocol.group.membership.end_reason import EndReason
from protocol.kafka_terms import TopicPartition


@dataclass(frozen=True)
class Revocation:
    """Partitions that the owner has to give up now.

    `lost`: they may be another member's already, and nothing can be committed for them. Else the member has them until
    its owner has given them up, and what is complete is to be committed before.
    """

    partitions: frozenset[TopicPartition]
    lost: bool
    reason: EndReason


@dataclass(frozen=True)
class Assignment:
    """What the owner has from now on, also if that is nothing.

    `member`: who commits. `added`: those of `owned` that the owner did not have before. `joining`: None, or why more is
    still to come: other members have not joined, or the coordinator does not answer. It goes on without the owner.
    """

    member: GroupMember
    owned: frozenset[TopicPartition]
    added: frozenset[TopicPartition]
    joining: EndReason | None = None
