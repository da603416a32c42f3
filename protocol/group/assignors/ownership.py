"""Find the owners of partitions before a rebalance. Members report ownership, which may be stale or contradictory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from protocol.group.assignors.assignor import NO_GENERATION, Topics
from protocol.kafka_terms import TopicPartition


class Ownership(NamedTuple):
    """The partitions that a member reports to own, and the generation of the report; -1 if unknown."""

    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION


Ownerships = Mapping[str, Ownership]
"""Ownership by member id."""


def current_owners(ownerships: Ownerships, topics: Topics) -> dict[TopicPartition, str | None]:
    """Return the owner of each partition: the member that reports it for the newest generation, or None if two do.

    Partitions that do not exist are left out.
    """
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, ownership in ownerships.items():
        for partition in _existing_partitions(ownership, topics):
            generation, _ = newest.get(partition, (None, None))
            if generation is None or ownership.generation > generation:
                newest[partition] = ownership.generation, member
            elif ownership.generation == generation:
                newest[partition] = ownership.generation, None
    return {partition: owner for partition, (_, owner) in newest.items()}


def earlier_owners(ownerships: Ownerships, topics: Topics) -> dict[TopicPartition, str]:
    """Return, for each partition, the member that reports it for the newest generation before the group's last one."""
    last = max((ownership.generation for ownership in ownerships.values()), default=NO_GENERATION)
    stale = sorted(((own.generation, name) for name, own in ownerships.items() if own.generation < last), reverse=True)
    found: dict[TopicPartition, str] = {}
    for _, member in stale:
        for partition in _existing_partitions(ownerships[member], topics):
            found.setdefault(partition, member)
    return found


def _existing_partitions(ownership: Ownership, topics: Topics) -> Iterator[TopicPartition]:
    """Yield the claimed partitions that exist, sorted: the order of a set differs between processes."""
    return (each for each in sorted(ownership.owned) if 0 <= each[1] < len(topics.get(each[0], ())))
