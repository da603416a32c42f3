"""Balance loads, then move as few partitions as possible: the common algorithm of both sticky assignors.

Members report the partitions that they own; reports may be stale or contradictory. Equal subscriptions are assigned by
`equal_shares` in linear time, differing ones by `least_loaded`, which searches.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from protocol.group.assignors.assignor import NO_GENERATION, GroupAssignment, Members, Racks, Topics
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
    stale = sorted(
        ((ownership.generation, name) for name, ownership in ownerships.items() if ownership.generation < last),
        reverse=True,
    )
    owners: dict[TopicPartition, str] = {}
    for _, member in stale:
        for partition in _existing_partitions(ownerships[member], topics):
            owners.setdefault(partition, member)
    return owners


def _existing_partitions(ownership: Ownership, topics: Topics) -> Iterator[TopicPartition]:
    """Yield the reported partitions that exist, sorted: the order of a set differs between processes."""
    return (partition for partition in sorted(ownership.owned) if 0 <= partition[1] < len(topics.get(partition[0], ())))


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
        """Assign one partition per member in turn: members below their share first, in the order of their ids."""
        self.below_share = deque(sorted(self.below_share))
        for partition in partitions:
            self.place((self.below_share or self.at_share).popleft(), [partition])


def equal_shares(members: Members, topics: Topics, ownerships: Ownerships) -> GroupAssignment:
    """Assign partitions to members with equal subscriptions; loads differ by at most one partition.

    A member keeps what it owns, up to its share. The rest is dealt in turns, first to members in the same rack if racks
    matter. All members subscribe to all topics, so one pass in linear time suffices.
    """
    every = [(topic, number) for topic, partitions in topics.items() for number in range(len(partitions))]
    racks = Racks.of(members, topics)
    owner = current_owners(ownerships, topics)
    owned: GroupAssignment = {member: [] for member in sorted(members)}
    for partition in sorted(every, key=lambda key: (key[1], key[0])):
        member = owner.get(partition)
        if member is not None and not racks.far(member, partition):
            owned[member].append(partition)

    shares = _Shares(owned, len(every))
    for member, partitions in owned.items():
        shares.keep(member, partitions)
    placed = {partition for partitions in shares.placed.values() for partition in partitions}
    unplaced = [partition for partition in every if partition not in placed]
    if racks.member_racks:
        # Partitions with the fewest members in their racks first.
        members_in = Counter(racks.member_racks.values())
        unplaced.sort(key=lambda partition: sum(members_in[rack] for rack in racks.of_replicas(partition)))
        unplaced = [partition for partition in unplaced if not shares.place_nearby(partition, racks)]
    shares.place_rest(unplaced)
    return shares.placed


class _LoadSearch:
    """An assignment in progress: `holder` by partition, `load` by member; `kept` is the initial assignment."""

    def __init__(
        self, subscribers: Mapping[str, list[str]], racks: Racks, owners: Mapping[TopicPartition, str]
    ) -> None:
        self._subscribers = subscribers
        self._racks = racks
        self._kept = owners
        self.holder = dict(owners)
        self.load = Counter(owners.values())

    def cost(self, owned: Mapping[TopicPartition, str]) -> tuple[int, int, int]:
        """Return the imbalance of loads, the number of partitions far from their member, and the number moved."""
        far = sum(self._racks.far(member, partition) for partition, member in self.holder.items())
        moved = sum(self.holder[partition] != member for partition, member in owned.items())
        return sum(load * load for load in self.load.values()), far, moved

    def give_new(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions without an owner, first those with a subscriber that is not far."""
        without_near_subscriber = []
        for partition in partitions:
            candidates = self._subscribers[partition[0]]
            if nearby := [member for member in candidates if not self._racks.far(member, partition)]:
                self._give(partition, self._least(nearby))
            else:
                without_near_subscriber.append(partition)
        for partition in without_near_subscriber:
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
            partner = min(moved_in[topic, owner], key=lambda key: (self._racks.far(now, key), key))
            moved_in[topic, owner].remove(partner)
            moved_in[topic, now].remove(partition)
            if self._kept.get(partner) != now:
                moved_in[topic, now].add(partner)
            self.holder[partition], self.holder[partner] = owner, now

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
    """Assign partitions to members with differing subscriptions: the one with the fewest gets the next partition.

    Members keep what they own. A partition without an owner goes to its least loaded subscriber, topics with few
    subscribers first. Then partitions move, one by one, from a member to a subscriber that has at least two fewer,
    until no such pair remains. Every move makes loads more equal, so the algorithm terminates.

    Partitions far from their owner (KIP-881) are either all kept or all reassigned: the variant with the lower cost, or
    keeping if equal. Reassigning in any case would move partitions back and forth without end if the near members are
    full.
    """
    racks = Racks.of(members, topics)
    subscribers = {topic: [name for name, member in members.items() if topic in member.topics] for topic in topics}
    scarce_first = sorted(topics, key=lambda topic: (len(subscribers[topic]), topic))
    every = [(topic, number) for topic in scarce_first for number in range(len(topics[topic]))]
    owned = {
        partition: member for partition, member in current_owners(ownerships, topics).items() if member is not None
    }
    subscribed = {partition: member for partition, member in owned.items() if partition[0] in members[member].topics}
    near = {partition: member for partition, member in subscribed.items() if not racks.far(member, partition)}
    earlier = earlier_owners(ownerships, topics)

    searches = []
    for retained in [subscribed] if near == subscribed else [subscribed, near]:
        new = [partition for partition in every if partition not in retained]
        search = _LoadSearch(subscribers, racks, retained)
        search.give_new(new)
        if retained == owned:  # otherwise partitions are revoked anyway
            search.even_out(new, earlier)
        search.even_out(every, earlier)
        search.undo_equivalent_moves()
        searches.append(search)

    placed: GroupAssignment = defaultdict(list)
    for partition, member in min(searches, key=lambda search: search.cost(owned)).holder.items():
        placed[member].append(partition)
    return placed


def balanced(members: Members, topics: Topics, ownerships: Ownerships) -> GroupAssignment:
    """Return a balanced assignment that, with second priority, keeps the partitions in `ownerships`."""
    alike = len({member.topics for member in members.values()}) == 1
    place = equal_shares if alike else least_loaded
    return place(members, topics, ownerships)
