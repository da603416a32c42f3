"""Random groups: stale and contradictory claims, differing subscriptions, racks, static members, old clients.

Member ids are single letters: Java keeps members in hash maps, and the hashes of letters are in their order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocol import TopicPartition
from protocol.group.assignors.assignor import Assignor, GroupAssignment, Members, Subscription, Topics
from protocol.group.assignors.sticky_balance import Ownership, current_owners
from protocol.group.assignors.subscription_codec import decode_subscription, encode_subscription
from tests.support.soak import scaled

GROUPS = scaled("GROUPS", 75, 2_000)
"""Number of groups per test."""

RACKS = ("east", "north", "west")
_GENERATION = 5
_MAX_REBALANCES = 20


@dataclass(frozen=True)
class Group:
    """A group: `subscriptions` are those of the members, `versions` the metadata version that each member writes."""

    assignor: Assignor
    topics: Topics
    subscriptions: Members
    versions: Mapping[str, int]

    @property
    def written(self) -> dict[str, bytes]:
        values_by_key = {}
        for name, member in self.subscriptions.items():
            sent = replace(member, user_data=self.assignor.user_data(member.owned, member.generation))
            values_by_key[name] = encode_subscription(sent, self.versions[name])
        return values_by_key

    @property
    def members(self) -> Members:
        """The subscriptions as the leader decodes them."""
        return {
            name: decode_subscription(data, self.subscriptions[name].instance_id) for name, data in self.written.items()
        }

    @property
    def alike(self) -> bool:
        """True if all members have subscribed to the same topics."""
        return len({member.topics for member in self.subscriptions.values()}) == 1

    def assign(self) -> GroupAssignment:
        return self.assignor.assign(self.members, self.topics)

    def moved(self, assigned: GroupAssignment) -> int:
        """Return the number of partitions that their owners lose."""
        before = current_owners(
            {name: Ownership(member.owned, member.generation) for name, member in self.subscriptions.items()},
            self.topics,
        )
        return sum(owner is not None and partition not in assigned[owner] for partition, owner in before.items())

    def after(self, assigned: GroupAssignment, generation: int = _GENERATION + 1) -> Group:
        """Return the group at its next rebalance: each member owns its assigned partitions."""
        subscriptions = {
            name: replace(member, owned=frozenset(assigned[name]), generation=generation)
            for name, member in self.subscriptions.items()
        }
        return replace(self, subscriptions=subscriptions, versions=dict.fromkeys(subscriptions, 3))

    def stable(self) -> GroupAssignment:
        """Return the assignment after as many rebalances as needed until no partition moves."""
        assigned = self.assign()
        for _ in range(_MAX_REBALANCES):
            before, assigned = assigned, self.after(assigned).assign()
            if assigned == before:
                return assigned
        raise AssertionError(f"partitions still move after {_MAX_REBALANCES} rebalances: {self}")


def random_group(assignor: Assignor, rng: random.Random) -> Group:
    topics = _topics(rng)
    names = [chr(ord("a") + number) for number in range(rng.choice([1, 2, 3, 5, 8, 12, 24]))]
    contested = rng.random() < 0.2
    subscriptions = _members(names, topics, contested, rng)
    # Kafka's assignors are wrong for contradictory claims of members that write versions without a generation.
    versions = {name: 3 if contested else rng.choice([0, 1, 2, 3, 3, 3, 3, 3]) for name in names}
    return Group(assignor, topics, subscriptions, versions)


def _topics(rng: random.Random) -> Topics:
    choice = rng.choice([(), RACKS[:1], RACKS, RACKS])
    everywhere, alike = rng.random() < 0.2, rng.random() < 0.3
    size = rng.randint(0, 12)
    return {
        f"topic-{number}": [
            frozenset(rng.sample(choice, len(choice) if everywhere else rng.randint(0, len(choice))))
            for _ in range(size if alike else rng.choice([0, 1, 2, 5, rng.randint(0, 30)]))
        ]
        for number in range(rng.randint(1, 6))
    }


def _members(names: list[str], topics: Topics, contested: bool, rng: random.Random) -> Members:
    owned = _owned(names, topics, contested, rng)
    every = [*topics, "not-there"]
    common = frozenset(rng.sample(every, rng.randint(1, len(every))))
    alike, racks, stale = rng.random() < 0.5, rng.random() < 0.6, rng.random() < 0.3
    members = {}
    for name in names:
        subscribed = common if alike else frozenset(rng.sample(every, rng.randint(0, len(every))))
        generation = rng.choice([-1, 3, 4, _GENERATION]) if stale else _GENERATION
        # They are also wrong if a member of an old generation claims a topic that it has not subscribed to.
        reported = [partition for partition in owned[name] if generation == _GENERATION or partition[0] in subscribed]
        rack = rng.choice([None, *RACKS]) if racks else None
        instance_id = f"static-{rng.random()}" if rng.random() < 0.2 else None
        members[name] = Subscription(subscribed, frozenset(reported), generation, rack, instance_id=instance_id)
    return members


def _owned(names: list[str], topics: Topics, contested: bool, rng: random.Random) -> dict[str, list[TopicPartition]]:
    """Return the owned partitions of a group that has lost a member, grown, or is new."""
    owned: dict[str, list[TopicPartition]] = {name: [] for name in names}
    before = rng.choice([[], names, names[: len(names) // 2 + 1], [*names, "gone"]])
    for topic, partitions in topics.items():
        for number in range(len(partitions)) if before else ():
            for _ in range(rng.choice([1, 1, 1, 2, 3]) if contested else 1):
                owner = rng.choice(before)
                if owner in owned and rng.random() < 0.9:
                    owned[owner].append((topic, number))
    return owned
