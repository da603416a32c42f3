"""Sticky among members that have not all subscribed to the same topics: who has least gets the next partition.

Members keep what they own. What is nobody's goes to the least loaded of those that may have it, topics with few
subscribers first. Then partitions move, one by one, from members that have at least two more than another one that may
have it, until there is none; each move makes loads more alike, so this ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from protocol.group.assignors.assignor import Assignment, Members, Topics
from protocol.group.assignors.claims import Claims, earlier_owners, owners
from protocol.group.assignors.racks import Racks
from protocol.kafka_terms import TopicPartition


class _Search:
    """`holder` is who gets a partition so far, `load` how many a member gets; `kept` is what they began with."""

    def __init__(self, subscribers: Mapping[str, list[str]], racks: Racks, kept: Mapping[TopicPartition, str]) -> None:
        self._subscribers = subscribers
        self._racks = racks
        self._kept = kept
        self.holder = dict(kept)
        self.load = Counter(kept.values())

    def cost(self, owned: Mapping[TopicPartition, str]) -> tuple[int, int, int]:
        """How unlike loads are, then how many partitions are far from who has them, then how many have moved."""
        far = sum(self._racks.far(member, partition) for partition, member in self.holder.items())
        moved = sum(self.holder[partition] != member for partition, member in owned.items())
        return sum(load * load for load in self.load.values()), far, moved

    def give_new(self, partitions: Iterable[TopicPartition]) -> None:
        elsewhere = []
        for partition in partitions:
            candidates = self._subscribers[partition[0]]
            if nearby := [member for member in candidates if not self._racks.far(member, partition)]:
                self._give(partition, self._least(nearby))
            else:
                elsewhere.append(partition)
        for partition in elsewhere:
            self._give(partition, self._least(self._subscribers[partition[0]]))

    def even_out(self, partitions: Iterable[TopicPartition], earlier: Mapping[TopicPartition, str]) -> None:
        """Moves what can go to a lighter member, best of all to one that had it earlier."""
        moved = True
        while moved:
            moved = False
            for partition in partitions:
                holder, candidates = self.holder[partition], self._subscribers[partition[0]]
                target = earlier.get(partition, holder)
                if target not in candidates or not self._is_lighter(target, holder):
                    target = self._least(candidates)
                if self._is_lighter(target, holder):
                    self._give(partition, target)
                    moved = True

    def swap_back(self) -> None:
        """Partitions of a topic weigh the same: who has lost one and got another of it gets its own one back."""
        strange: dict[tuple[str, str], set[TopicPartition]] = defaultdict(set)
        for partition, member in self.holder.items():
            if self._kept.get(partition) != member:
                strange[partition[0], member].add(partition)
        for partition, owner in self._kept.items():
            topic, now = partition[0], self.holder[partition]
            if now == owner or not strange[topic, owner]:
                continue
            other = min(strange[topic, owner], key=lambda each: (self._racks.far(now, each), each))
            strange[topic, owner].remove(other)
            strange[topic, now].remove(partition)
            if self._kept.get(other) != now:
                strange[topic, now].add(other)
            self.holder[partition], self.holder[other] = owner, now

    def _give(self, partition: TopicPartition, member: str) -> None:
        if partition in self.holder:
            self.load[self.holder[partition]] -= 1
        self.holder[partition] = member
        self.load[member] += 1

    def _least(self, candidates: Iterable[str]) -> str:
        return min(candidates, key=lambda member: (self.load[member], member))

    def _is_lighter(self, member: str, than: str) -> bool:
        """By more than one, so that a partition that moves makes it better."""
        return self.load[member] + 1 < self.load[than]


def least_loaded(members: Members, topics: Topics, claims: Claims) -> Assignment:
    """What is far from its owner is kept or given anew, all of it, whichever costs less; if it is the same, kept.

    To give it anew in any case would have some go to and fro for ever, where who is near has too much already.
    """
    racks = Racks.of(members, topics)
    subscribers = {topic: [name for name, member in members.items() if topic in member.topics] for topic in topics}
    scarce_first = sorted(topics, key=lambda topic: (len(subscribers[topic]), topic))
    every = [(topic, number) for topic in scarce_first for number in range(len(topics[topic]))]
    owned = {each: member for each, member in owners(claims, topics).items() if member is not None}
    wanted = {each: member for each, member in owned.items() if each[0] in members[member].topics}
    near = {each: member for each, member in wanted.items() if not racks.far(member, each)}
    earlier = earlier_owners(claims, topics)

    found = []
    for kept in [wanted] if near == wanted else [wanted, near]:
        new = [partition for partition in every if partition not in kept]
        search = _Search(subscribers, racks, kept)
        search.give_new(new)
        if kept == owned:  # else something is revoked anyway
            search.even_out(new, earlier)
        search.even_out(every, earlier)
        search.swap_back()
        found.append(search)

    placed: Assignment = defaultdict(list)
    for partition, member in min(found, key=lambda search: search.cost(owned)).holder.items():
        placed[member].append(partition)
    return placed
