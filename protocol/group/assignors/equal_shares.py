"""Sticky among members that have subscribed alike: they get equally many partitions, some of them one more.

Each keeps what it owns, up to its share; what is left is dealt out in turns, where racks matter first to members that
are near. Any partition suits any member, so the first attempt is final, and takes time in proportion to its size.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from protocol.group.assignors.assignor import Assignment, Members, Topics
from protocol.group.assignors.claims import Claims, owners
from protocol.group.assignors.racks import Racks
from protocol.kafka_terms import TopicPartition


class _Shares:
    """`share` is the least that each gets, `longer` how many may still get one more.

    Members wait for more in two queues: those that are `short` of a share, and those that have just that (`even`).
    """

    def __init__(self, members: Iterable[str], partition_count: int) -> None:
        self.placed: Assignment = {member: [] for member in members}
        self.share, self.longer = divmod(partition_count, len(self.placed))
        self.short: deque[str] = deque()
        self.even: deque[str] = deque()

    def place(self, member: str, partitions: Iterable[TopicPartition]) -> None:
        """`member` waits in neither queue."""
        placed = self.placed[member]
        placed += partitions
        if len(placed) < self.share:
            self.short.append(member)
        elif len(placed) == self.share:
            self.even.append(member)
        else:
            self.longer -= 1

    def keep(self, member: str, owned: list[TopicPartition]) -> None:
        self.place(member, owned[: self.share + (self.longer > 0)])

    def place_nearby(self, partition: TopicPartition, racks: Racks) -> bool:
        """To the next member that is near, if there is one."""
        for place, member in enumerate(self.short):
            if racks.near(member, partition):
                self.short.rotate(-place)
                self.place(self.short.popleft(), [partition])
                return True
        nearby = (member for member in self.even if racks.near(member, partition))
        member = next(nearby, "") if self.longer else ""
        if member:
            self.even.remove(member)
            self.place(member, [partition])
        return bool(member)

    def place_rest(self, partitions: Iterable[TopicPartition]) -> None:
        self.short = deque(sorted(self.short))
        for partition in partitions:
            self.place((self.short or self.even).popleft(), [partition])


def equal_shares(members: Members, topics: Topics, claims: Claims) -> Assignment:
    every = [(topic, number) for topic, partitions in topics.items() for number in range(len(partitions))]
    racks = Racks.of(members, topics)
    owner = owners(claims, topics)
    owned: Assignment = {member: [] for member in sorted(members)}
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
        # First those that have the fewest members to go to.
        members_in = Counter(racks.of_members.values())
        left.sort(key=lambda partition: sum(members_in[rack] for rack in racks.of_replicas(partition)))
        left = [partition for partition in left if not shares.place_nearby(partition, racks)]
    shares.place_rest(left)
    return shares.placed
