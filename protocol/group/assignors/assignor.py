"""What a leader assigns by, and to whom: members and topics in, partitions of each member out.

Pure: called by the member that leads a group of the classic protocol, with what the others said in JoinGroup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.kafka_terms import TopicPartition

NO_GENERATION = -1


@dataclass(frozen=True)
class Subscription:
    """What a member said of itself.

    `owned` are the partitions that it had in `generation` and still holds; an eager member holds none when it joins.
    `rack` is where it is (KIP-881), `user_data` what an assignor of its own name wrote. `instance_id` is that of a
    static member (KIP-345): JoinGroup has it beside these bytes.
    """

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str | None = None
    user_data: bytes | None = None
    instance_id: str | None = None


Members = Mapping[str, Subscription]
"""By member id."""

Topics = Mapping[str, Sequence[frozenset[str]]]
"""By name: for each partition, from 0 on, the racks of its replicas; empty sets where they are not known."""

Assignment = dict[str, list[TopicPartition]]
"""By member id."""

UserData = Callable[[Iterable[TopicPartition], int], bytes | None]


def no_user_data(owned: Iterable[TopicPartition], generation: int) -> None:
    return None


@dataclass(frozen=True)
class Assignor:
    """`place` is given topics that have partitions and a subscriber, by name in order; it may leave out members.

    cooperative : members keep what they own while they join (KIP-429); a group does so if all of its assignors allow it
    user_data   : what a member sends along, from what it was last assigned and in which generation
    """

    name: str
    java_class: str
    place: Callable[[Members, Topics], Mapping[str, Iterable[TopicPartition]]]
    cooperative: bool = False
    user_data: UserData = no_user_data

    def assign(self, members: Members, topics: Topics) -> Assignment:
        """What each member gets, sorted. Topics that are not in `topics`, or without partitions, are nobody's."""
        subscribed = frozenset[str]().union(*(member.topics for member in members.values()))
        placed = self.place(members, {name: topics[name] for name in sorted(subscribed) if topics.get(name)})
        return {member: sorted(placed.get(member, ())) for member in members}


def in_order(members: Members) -> list[str]:
    """Static members first, by instance id, which outlives a restart; the others by member id."""

    def place(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, instance_id or member

    return sorted(members, key=place)
