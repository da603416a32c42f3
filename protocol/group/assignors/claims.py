"""Find partition owners before a rebalance from the members' claims, which may be stale or contradictory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from protocol.group.assignors.assignor import NO_GENERATION, Topics
from protocol.kafka_terms import TopicPartition


class Claim(NamedTuple):
    """The partitions that a member claims to own, and the generation of the claim; -1 if unknown."""

    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION


Claims = Mapping[str, Claim]
"""Claims by member id."""


def owners(claims: Claims, topics: Topics) -> dict[TopicPartition, str | None]:
    """Return the owner of each partition: the claim of the newest generation, or None if two members have it.

    Partitions that do not exist are left out.
    """
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, claim in claims.items():
        for partition in _there(claim, topics):
            generation, _ = newest.get(partition, (None, None))
            if generation is None or claim.generation > generation:
                newest[partition] = claim.generation, member
            elif claim.generation == generation:
                newest[partition] = claim.generation, None
    return {partition: owner for partition, (_, owner) in newest.items()}


def earlier_owners(claims: Claims, topics: Topics) -> dict[TopicPartition, str]:
    """Return, for each partition, the member with the newest claim of a generation before the group's last one."""
    last = max((claim.generation for claim in claims.values()), default=NO_GENERATION)
    stale = sorted(((c.generation, member) for member, c in claims.items() if c.generation < last), reverse=True)
    found: dict[TopicPartition, str] = {}
    for _, member in stale:
        for partition in _there(claims[member], topics):
            found.setdefault(partition, member)
    return found


def _there(claim: Claim, topics: Topics) -> Iterator[TopicPartition]:
    """Yield the claimed partitions that exist, sorted: the order of a set differs between processes."""
    return (each for each in sorted(claim.owned) if 0 <= each[1] < len(topics.get(each[0], ())))
