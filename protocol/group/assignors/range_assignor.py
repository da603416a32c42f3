"""Range: each topic's partitions are split into consecutive ranges, one per subscriber; the first are longer by one.

Topics with the same subscribers and the same partition count are split alike, so that a member gets the same partition
numbers of each (co-partitioning). If racks matter, nearby partitions are assigned first (KIP-881), in the same amounts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from protocol.group.assignors.assignor import (
    Assignor,
    GroupAssignment,
    Members,
    Topics,
    in_order,
    racks_by_member,
    racks_matter,
)


class _Topic:
    """A topic's unassigned partitions, and the remaining room of its subscribers (`members`, in order)."""

    def __init__(self, name: str, partitions: Sequence[frozenset[str]], members: list[str], racks: dict[str, str]):
        self.name = name
        self.members = members
        self.placed: dict[str, list[int]] = {member: [] for member in members}
        self._partitions = partitions
        self._unplaced = dict.fromkeys(range(len(partitions)))
        self._share, self._extra_shares = divmod(len(partitions), len(members))
        self._racks = {member: racks[member] for member in members if member in racks}
        self.racks_matter = racks_matter(self._racks.values(), partitions)

    @property
    def split_key(self) -> tuple[tuple[str, ...], int]:
        """Equal for topics that are split alike."""
        return tuple(self.members), len(self._partitions)

    @property
    def knows_racks(self) -> bool:
        """True if a subscriber has a rack."""
        return bool(self._racks)

    def room(self, member: str) -> int:
        """Return the number of partitions that the member may still get."""
        return max(0, self._share + (self._extra_shares > 0) - len(self.placed[member]))

    def suits(self, member: str, number: int) -> bool:
        """Return True if the member has no rack, or a replica of the partition is in its rack."""
        rack = self._racks.get(member)
        return rack is None or rack in self._partitions[number]

    def place(self, member: str, numbers: Collection[int]) -> None:
        """Assign partitions to a member."""
        self.placed[member] += numbers
        self._extra_shares -= len(self.placed[member]) > self._share and len(numbers) > 0
        for number in numbers:
            del self._unplaced[number]

    def place_runs(self, suits: Callable[[str, int], bool]) -> None:
        """Assign to each member in order the first unassigned partitions that `suits` allows, up to its room."""
        for member in self.members:
            suitable = [number for number in self._unplaced if suits(member, number)]
            self.place(member, suitable[: self.room(member)])


def _assign_ranges(members: Members, topics: Topics) -> GroupAssignment:
    ordered, racks = in_order(members), racks_by_member(members)
    states = [
        _Topic(name, partitions, [member for member in ordered if name in members[member].topics], racks)
        for name, partitions in topics.items()
    ]
    if any(state.racks_matter for state in states):
        _place_nearby(states)
    placed: GroupAssignment = defaultdict(list)
    for state in states:
        state.place_runs(lambda member, number: True)
        for member, numbers in state.placed.items():
            placed[member] += [(state.name, number) for number in numbers]
    return placed


def _place_nearby(states: list[_Topic]) -> None:
    alike: dict[object, list[_Topic]] = defaultdict(list)
    for state in states:
        if state.knows_racks:
            alike[state.split_key].append(state)
    for together in alike.values():
        if len(together) > 1:
            _place_together(together)
        elif together[0].racks_matter:
            together[0].place_runs(together[0].suits)


def _place_together(states: list[_Topic]) -> None:
    """Assign the same partition number of all topics to a member that is near all of them."""
    members, count = states[0].split_key
    for number in range(count):
        for member in members:
            if all(state.suits(member, number) and state.room(member) for state in states):
                for state in states:
                    state.place(member, [number])
                break


RANGE = Assignor("range", "org.apache.kafka.clients.consumer.RangeAssignor", _assign_ranges)
