"""Sticky assignment for differing subscriptions: the member with the fewest partitions gets the next one.

Members keep what they own. A partition without an owner goes to its least loaded subscriber, topics with few
subscribers first. Then partitions move, one by one, from a member to a subscriber that has at least two fewer, until no
such pair remains. Every move makes loads more equal, so the algorithm terminates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from protocol.group.assignors.assignor import GroupAssignment, Members, Topics
from protocol.group.assignors.ownership import Ownerships, current_owners, earlier_owners
from protocol.group.assignors.racks import Racks
from protocol.kafka_terms import TopicPartition


class _LoadSearch:
    """An assignment in progress: `holder` by partition, `load` by member; `kept` is the initial assignment."""

    def __init__(self, subscribers: Mapping[str, list[str]], racks: Racks, kept: Mapping[TopicPartition, str]) -> None:
        self._subscribers = subscribers
        self._racks = racks
        self._kept = kept
        self.holder = dict(kept)
        self.load = Counter(kept.values())

    def cost(self, owned: Mapping[TopicPartition, str]) -> tuple[int, int, int]:
        """Return the imbalance of loads, the number of partitions far from their member, and the number moved."""
        far = sum(self._racks.far(member, partition) for partition, member in self.holder.items())
        moved = sum(self.holder[partition] != member for partition, member in owned.items())
        return sum(load * load for load in self.load.values()), far, moved

    def give_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions without an owner, first those with a subscriber that is not far."""
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
        """Move partitions to members with a lower load, preferably to an earlier owner."""
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

    def undo_equivalent_moves(self) -> None:
        """Return partitions to their owners: a member that lost one and got another of the same topic swaps back."""
        moved_in: dict[tuple[str, str], set[TopicPartition]] = defaultdict(set)
        for partition, member in self.holder.items():
            if self._kept.get(partition) != member:
                moved_in[partition[0], member].add(partition)
        for partition, owner in self._kept.items():
            topic, now = partition[0], self.holder[partition]
            if now == owner or not moved_in[topic, owner]:
                continue
            other = min(moved_in[topic, owner], key=lambda each: (self._racks.far(now, each), each))
            moved_in[topic, owner].remove(other)
            moved_in[topic, now].remove(partition)
            if self._kept.get(other) != now:
                moved_in[topic, now].add(other)
            self.holder[partition], self.holder[other] = owner, now

    def _give(self, partition: TopicPartition, member: str) -> None:
        if partition in self.holder:
            self.load[self.holder[partition]] -= 1
        self.holder[partition] = member
        self.load[member] += 1

    def _least(self, candidates: Iterable[str]) -> str:
        return min(candidates, key=lambda member: (self.load[member], member))

    def _is_lighter(self, member: str, than: str) -> bool:
        """Return True if the difference exceeds one, so that a move improves the balance."""
        return self.load[member] + 1 < self.load[than]


def least_loaded(members: Members, topics: Topics, ownerships: Ownerships) -> GroupAssignment:
    """Return the assignment by the rules of this module.

    Partitions far from their owner (KIP-881) are either all kept or all reassigned: the variant with the lower cost, or
    keeping if equal. Reassigning in any case would move partitions back and forth without end if the near members are
    full.
    """
    racks = Racks.of(members, topics)
    subscribers = {topic: [name for name, member in members.items() if topic in member.topics] for topic in topics}
    scarce_first = sorted(topics, key=lambda topic: (len(subscribers[topic]), topic))
    every = [(topic, number) for topic in scarce_first for number in range(len(topics[topic]))]
    owned = {each: member for each, member in current_owners(ownerships, topics).items() if member is not None}
    wanted = {each: member for each, member in owned.items() if each[0] in members[member].topics}
    near = {each: member for each, member in wanted.items() if not racks.far(member, each)}
    earlier = earlier_owners(ownerships, topics)

    found = []
    for kept in [wanted] if near == wanted else [wanted, near]:
        new = [partition for partition in every if partition not in kept]
        search = _LoadSearch(subscribers, racks, kept)
        search.give_new(new)
        if kept == owned:  # otherwise partitions are revoked anyway
            search.even_out(new, earlier)
        search.even_out(every, earlier)
        search.undo_equivalent_moves()
        found.append(search)

    placed: GroupAssignment = defaultdict(list)
    for partition, member in min(found, key=lambda search: search.cost(owned)).holder.items():
        placed[member].append(partition)
    return placed
