"""Decide if racks matter, and which members are near which partitions (KIP-881)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.group.assignors.assignor import Members, Topics
from protocol.kafka_terms import TopicPartition


def rack_of_each(members: Members) -> dict[str, str]:
    """Return the racks of members that have one, by member id."""
    return {name: member.rack for name, member in members.items() if member.rack}


def racks_matter(of_members: Iterable[str], of_partitions: Collection[frozenset[str]]) -> bool:
    """Return False if all partitions have replicas in the same racks, or no member is in any of these racks."""
    everywhere = frozenset[str]().union(*of_partitions)
    return not everywhere.isdisjoint(of_members) and any(racks != everywhere for racks in of_partitions)


@dataclass(frozen=True)
class Racks:
    """Racks of members and replicas.

    `of_members` is empty if racks do not matter. A member without a rack is neither near nor far.
    """

    of_members: Mapping[str, str]
    topics: Topics

    @classmethod
    def of(cls, members: Members, topics: Topics) -> Racks:
        """Create from the members of a group and the topics to assign."""
        of_members = rack_of_each(members)
        of_partitions = [racks for partitions in topics.values() for racks in partitions]
        return cls(of_members if racks_matter(of_members.values(), of_partitions) else {}, topics)

    def of_replicas(self, partition: TopicPartition) -> frozenset[str]:
        """Return the racks of a partition's replicas."""
        topic, number = partition
        return self.topics[topic][number]

    def near(self, member: str, partition: TopicPartition) -> bool:
        """Return True if a replica of the partition is in the member's rack."""
        return self.of_members.get(member) in self.of_replicas(partition)

    def far(self, member: str, partition: TopicPartition) -> bool:
        """Return True if the member has a rack, and no replica of the partition is in it."""
        return member in self.of_members and not self.near(member, partition)
