"""Cooperative-sticky (KIP-429): sticky, but a partition that another member still owns is not assigned.

Members keep their partitions while they join. So a partition that moves is left out of this assignment: its owner
revokes it and rejoins, and the next assignment gives it to the new owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from protocol.errors import Truncated
from protocol.group.assignors.assignor import NO_GENERATION, Assignor, GroupAssignment, Members, Subscription, Topics
from protocol.group.assignors.balance import balanced
from protocol.group.assignors.ownership import Ownership, current_owners
from protocol.kafka_terms import TopicPartition
from protocol.wire.primitives import Reader, Writer


def _generation_user_data(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return the generation, for leaders that do not know the subscription's field for it (version 2)."""
    writer = Writer()
    writer.int32(generation)
    return b"".join(writer.parts())


def _reported_ownership(member: Subscription) -> Ownership:
    generation = member.generation
    if generation == NO_GENERATION:
        with suppress(Truncated):
            generation = Reader(member.user_data or b"").int32()
    return Ownership(member.owned, generation)


def _assign_cooperative(members: Members, topics: Topics) -> GroupAssignment:
    ownerships = {name: _reported_ownership(member) for name, member in members.items()}
    owner = current_owners(ownerships, topics)
    return {
        member: [each for each in partitions if owner.get(each, member) == member]
        for member, partitions in balanced(members, topics, ownerships).items()
    }


COOPERATIVE_STICKY = Assignor(
    "cooperative-sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    _assign_cooperative,
    cooperative=True,
    user_data=_generation_user_data,
)
