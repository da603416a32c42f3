"""The input and output of assignors: members, topics with their racks, and the partitions of each member.

Pure functions, called by the leader of a group of the classic protocol with the subscriptions from JoinGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.group.member import ConsumerGroupMetadata
from protocol.kafka_terms import TopicPartition

NO_GENERATION = -1


@dataclass(frozen=True)
class Subscription:
    """The consumer protocol metadata of a member.

    `topics`: names of subscribed topics.
    `owned`: partitions that the member owned in `generation` and still owns; empty for an eager member, which revokes
    all before it joins.
    `generation`: the generation of `owned`; -1 if unknown.
    `rack`: rack of the member (KIP-881).
    `user_data`: bytes that the assignor of the same name has written.
    `instance_id`: group instance id of a static member (KIP-345); JoinGroup has it beside the metadata.
    """

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes | None = None
    instance_id: str | None = None


Members = Mapping[str, Subscription]
"""Subscriptions by member id."""

Topics = Mapping[str, Sequence[frozenset[str]]]
"""Partitions by topic name: for each partition, from 0 on, the racks of its replicas; empty if unknown."""

GroupAssignment = dict[str, list[TopicPartition]]
"""Partitions by member id."""


class MemberAssignment(NamedTuple):
    """The partitions of a member.

    Attributes
    ----------
    partitions : iterable of (str, int)
    user_data : bytes or None
        Passed to `PartitionAssignor.on_assignment` of this member.
    """

    partitions: Iterable[TopicPartition]
    user_data: bytes | None = None


UserData = Callable[[Iterable[TopicPartition], int], bytes | None]


def no_user_data(owned: Iterable[TopicPartition], generation: int) -> None:
    """Return None: the assignor needs no user data."""
    return None


@dataclass(frozen=True)
class Assignor:
    """An assignor: its names, and the function that assigns partitions.

    `name`: the name in JoinGroup.
    `java_class`: Java's class of the assignor.
    `place`: assigns partitions. Receives topics sorted by name, each with partitions and a subscriber. The result may
    omit members.
    `cooperative`: members keep their partitions while they join (KIP-429). A group does so if all of its assignors
    allow it.
    `user_data`: returns a member's user data from its last assignment and generation.
    """

    name: str
    java_class: str
    place: Callable[[Members, Topics], Mapping[str, Iterable[TopicPartition]]]
    cooperative: bool = False
    user_data: UserData = no_user_data

    def assign(self, members: Members, topics: Topics) -> GroupAssignment:
        """Return each member's partitions, sorted; topics missing in `topics`, or without partitions, are ignored."""
        subscribed = frozenset[str]().union(*(member.topics for member in members.values()))
        placed = self.place(members, {name: topics[name] for name in sorted(subscribed) if topics.get(name)})
        return {member: sorted(placed.get(member, ())) for member in members}

    # -- as a member and a leader call it -----------------------------------------------------

    def join_data(self, topics: frozenset[str], last: Iterable[TopicPartition], generation: int) -> bytes | None:
        """Return the user data for JoinGroup: of subscribed topics, and of the last assignment and its generation."""
        return self.user_data(last, generation)

    def assign_with_data(self, members: Members, topics: Topics) -> dict[str, MemberAssignment]:
        """Return each member's assignment for SyncGroup, as `assign`."""
        return {name: MemberAssignment(partitions) for name, partitions in self.assign(members, topics).items()}

    def on_assignment(self, assignment: MemberAssignment, metadata: ConsumerGroupMetadata) -> None:
        """Handle the assignment of this member in a new generation."""


def in_order(members: Members) -> list[str]:
    """Sort members: static ones first by instance id, which survives restarts, then the others by member id."""

    def order(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, instance_id or member

    return sorted(members, key=order)


def racks_by_member(members: Members) -> dict[str, str]:
    """Return the racks of members that have one, by member id."""
    return {name: member.rack for name, member in members.items() if member.rack}


def racks_matter(member_racks: Iterable[str], partition_racks: Collection[frozenset[str]]) -> bool:
    """Return False if all partitions have replicas in the same racks, or no member is in any of these racks."""
    everywhere = frozenset[str]().union(*partition_racks)
    return not everywhere.isdisjoint(member_racks) and any(racks != everywhere for racks in partition_racks)


@dataclass(frozen=True)
class Racks:
    """Racks of members and replicas.

    `member_racks` is empty if racks do not matter. A member without a rack is neither near nor far.
    """

    member_racks: Mapping[str, str]
    topics: Topics

    @classmethod
    def of(cls, members: Members, topics: Topics) -> Racks:
        """Create from the members of a group and the topics to assign."""
        member_racks = racks_by_member(members)
        partition_racks = [racks for partitions in topics.values() for racks in partitions]
        return cls(member_racks if racks_matter(member_racks.values(), partition_racks) else {}, topics)

    def of_replicas(self, partition: TopicPartition) -> frozenset[str]:
        """Return the racks of a partition's replicas."""
        topic, number = partition
        return self.topics[topic][number]

    def near(self, member: str, partition: TopicPartition) -> bool:
        """Return True if a replica of the partition is in the member's rack."""
        return self.member_racks.get(member) in self.of_replicas(partition)

    def far(self, member: str, partition: TopicPartition) -> bool:
        """Return True if the member has a rack, and no replica of the partition is in it."""
        return member in self.member_racks and not self.near(member, partition)
