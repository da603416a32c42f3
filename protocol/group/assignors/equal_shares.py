"""Sticky assignment for equal subscriptions: member loads differ by at most one partition.

A member keeps what it owns, up to its share. The rest is dealt in turns, first to members in the same rack if racks
matter. Every member can have every partition, so the first attempt is final, and takes linear time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from protocol.group.assignors.assignor import GroupAssignment, Members, Topics
from protocol.group.assignors.ownership import Ownerships, current_owners
from protocol.group.assignors.racks import Racks
from protocol.kafka_terms import TopicPartition


class _Shares:
    """The shares of members.

    `share` is the minimum per member, `extra_shares` the number of members that may still get one more. Members that
    accept more wait in two queues: `below_share` and `at_share` (exactly a share).
    """

    def __init__(self, members: Iterable[str], partition_count: int) -> None:
        self.placed: GroupAssignment = {member: [] for member in members}
        self.share, self.extra_shares = divmod(partition_count, len(self.placed))
        self.below_share: deque[str] = deque()
        self.at_share: deque[str] = deque()

    def place(self, member: str, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions to a member that is in neither queue, and queue it."""
        placed = self.placed[member]
        placed += partitions
        if len(placed) < self.share:
            self.below_share.append(member)
        elif len(placed) == self.share:
            self.at_share.append(member)
        else:
            self.extra_shares -= 1

    def keep(self, member: str, owned: list[TopicPartition]) -> None:
        """Assign the partitions that a member owns, up to its share."""
        self.place(member, owned[: self.share + (self.extra_shares > 0)])

    def place_nearby(self, partition: TopicPartition, racks: Racks) -> bool:
        """Assign to the next member in the same rack; return False if there is none."""
        for place, member in enumerate(self.below_share):
            if racks.near(member, partition):
                self.below_share.rotate(-place)
                self.place(self.below_share.popleft(), [partition])
                return True
        nearby = (member for member in self.at_share if racks.near(member, partition))
        member = next(nearby, "") if self.extra_shares else ""
        if member:
            self.at_share.remove(member)
            self.place(member, [partition])
        return bool(member)

    def place_rest(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign in turns, by member id first for those below their share."""
        self.below_share = deque(sorted(self.below_share))
        for partition in partitions:
            self.place((self.below_share or self.at_share).popleft(), [partition])


def equal_shares(members: Members, topics: Topics, ownerships: Ownerships) -> GroupAssignment:
    """Return the assignment by the rules of this module."""
    every = [(topic, number) for topic, partitions in topics.items() for number in range(len(partitions))]
    racks = Racks.of(members, topics)
    owner = current_owners(ownerships, topics)
    owned: GroupAssignment = {member: [] for member in sorted(members)}
    for partition in sorted(every, key=lambda each: (each[1], each[0])):
        member = owner.get(partition)
        if member is not None and not racks.far(member, partition):
            owned[member].append(partition)

    shares = _Shares(owned, len(every))
    for member, partitions in owned.items():
        shares.keep(member, partitions)
    kept = {partition for partitions in shares.placed.values() for partition in partitions}
    left = [partition for partition in every if partition not in kept]
    if racks.of_members:
        # Partitions with the fewest members in their racks first.
        members_in = Counter(racks.of_members.values())
        left.sort(key=lambda partition: sum(members_in[rack] for rack in racks.of_replicas(partition)))
        left = [partition for partition in left if not shares.place_nearby(partition, racks)]
    shares.place_rest(left)
    return shares.placed
