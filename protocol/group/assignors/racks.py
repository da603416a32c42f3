"""Whether racks decide anything, and which members are near which partitions (KIP-881)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.group.assignors.assignor import Members, Topics
from protocol.kafka_terms import TopicPartition


def rack_of_each(members: Members) -> dict[str, str]:
    """Of those that have one."""
    return {name: member.rack for name, member in members.items() if member.rack}


def racks_matter(of_members: Iterable[str], of_partitions: Collection[frozenset[str]]) -> bool:
    """Not if all partitions are in the same racks, or no member is in one of these."""
    everywhere = frozenset[str]().union(*of_partitions)
    return not everywhere.isdisjoint(of_members) and any(racks != everywhere for racks in of_partitions)


@dataclass(frozen=True)
class Racks:
    """`of_members` is empty where racks do not matter. A member without a rack is neither near nor far."""

    of_members: Mapping[str, str]
    topics: Topics

    @classmethod
    def of(cls, members: Members, topics: Topics) -> Racks:
        of_members = rack_of_each(members)
        of_partitions = [racks for partitions in topics.values() for racks in partitions]
        return cls(of_members if racks_matter(of_members.values(), of_partitions) else {}, topics)

    def of_replicas(self, partition: TopicPartition) -> frozenset[str]:
        topic, number = partition
        return self.topics[topic][number]

    def near(self, member: str, partition: TopicPartition) -> bool:
        return self.of_members.get(member) in self.of_replicas(partition)

    def far(self, member: str, partition: TopicPartition) -> bool:
        return member in self.of_members and not self.near(member, partition)
