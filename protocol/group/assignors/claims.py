"""Who owns what before a rebalance, by what members say of themselves, which may be old or contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from protocol.group.assignors.assignor import NO_GENERATION, Topics
from protocol.kafka_terms import TopicPartition


class Claim(NamedTuple):
    """What a member says that it has, and since which generation: -1 if it does not say."""

    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION


Claims = Mapping[str, Claim]
"""By member id."""


def owners(claims: Claims, topics: Topics) -> dict[TopicPartition, str | None]:
    """By the newest generation; None where two members claim a partition in the same one.

    Partitions that are not there are left out.
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
    """Of each partition, who claims it by the newest generation but the group's last one."""
    last = max((claim.generation for claim in claims.values()), default=NO_GENERATION)
    stale = sorted(((c.generation, member) for member, c in claims.items() if c.generation < last), reverse=True)
    found: dict[TopicPartition, str] = {}
    for _, member in stale:
        for partition in _there(claims[member], topics):
            found.setdefault(partition, member)
    return found


def _there(claim: Claim, topics: Topics) -> Iterator[TopicPartition]:
    """In order, since a set has another one in each process."""
    return (each for each in sorted(claim.owned) if 0 <= each[1] < len(topics.get(each[0], ())))
