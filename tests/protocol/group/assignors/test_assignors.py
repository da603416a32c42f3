"""Rules that hold for every assignor and any metadata of members, and cases that Kafka's assignors do not define."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocol import TopicPartition
from protocol.config import ConsumerConfig
from protocol.errors import ConfigurationError
from protocol.group.assignors.assignor import Assignor, Subscription, Topics
from protocol.group.assignors.range_assignor import RANGE
from protocol.group.assignors.strategies import ASSIGNORS, COOPERATIVE_STICKY, STICKY, parse_strategy
from tests.protocol.group.assignors.random_groups import GROUPS, Group, random_group

pytestmark = pytest.mark.soak

EACH = pytest.mark.parametrize("assignor", ASSIGNORS.values(), ids=lambda case: case.name)
STICKY_ONES = pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE_STICKY], ids=lambda case: case.name)


def topics(**counts: int) -> Topics:
    return {name: [frozenset()] * count for name, count in counts.items()}


def owning(assignor: Assignor, *owned: TopicPartition, generation: int = 1) -> Subscription:
    every = frozenset(owned)
    return Subscription(frozenset({"t"}), every, generation, user_data=assignor.user_data(every, generation))


@EACH
def test_partitions_have_one_subscribed_member_each(assignor: Assignor) -> None:
    for seed in range(GROUPS):
        group = random_group(assignor, random.Random(seed))
        subscribed = {topic for member in group.subscriptions.values() for topic in member.topics}
        present = [(topic, number) for topic in subscribed for number in range(len(group.topics.get(topic, ())))]
        assigned = group.assign()
        assert assigned.keys() == group.subscriptions.keys()
        for name, partitions in assigned.items():
            assert {topic for topic, _ in partitions} <= group.subscriptions[name].topics
        given_out = sorted(partition for partitions in assigned.values() for partition in partitions)
        if assignor.cooperative:
            assert len(set(given_out)) == len(given_out)
            assert set(given_out) <= set(present)
        else:
            assert given_out == sorted(present), seed


def test_cooperative_assignment_is_the_sticky_one_without_partitions_owned_by_others() -> None:
    kept_back = 0
    for seed in range(GROUPS):
        eager, group = (random_group(assignor, random.Random(seed)) for assignor in (STICKY, COOPERATIVE_STICKY))
        versions = dict.fromkeys(group.subscriptions, 3)
        target, assigned = replace(eager, versions=versions).assign(), replace(group, versions=versions).assign()
        for name, partitions in target.items():
            own = group.subscriptions[name]
            elsewhere = {
                partition
                for other_name, other in group.subscriptions.items()
                if other_name != name
                for partition in other.owned
                if other.generation >= own.generation or partition not in own.owned
            }
            assert assigned[name] == [partition for partition in partitions if partition not in elsewhere], (seed, name)
            kept_back += len(partitions) - len(assigned[name])
    assert kept_back > GROUPS


@STICKY_ONES
def test_contested_partition_is_lost_by_both_members(assignor: Assignor) -> None:
    both = {"a": owning(assignor, ("t", 0), ("t", 1)), "b": owning(assignor, ("t", 0), ("t", 2))}
    assigned = assignor.assign(both, topics(t=4))
    assert ("t", 1) in assigned["a"]
    assert ("t", 2) in assigned["b"]
    everywhere = assigned["a"] + assigned["b"]
    assert (("t", 0) in everywhere) is not assignor.cooperative


@STICKY_ONES
def test_ownership_of_a_newer_generation_wins(assignor: Assignor) -> None:
    for generations in ((1, 2), (2, 1)):
        a, b = (owning(assignor, ("t", 0), ("t", 1), generation=generation) for generation in generations)
        assigned = assignor.assign({"a": a, "b": b, "c": owning(assignor)}, topics(t=3))
        newer, older = ("b", "a") if generations == (1, 2) else ("a", "b")
        assert assigned[newer] == [("t", 0)]
        assert ("t", 0) not in assigned[older]


def test_static_member_with_a_new_member_id_keeps_its_range() -> None:
    def assigned(member_id: str) -> list[TopicPartition]:
        subscription = Subscription(frozenset({"t"}), instance_id="first")
        members = {"m": Subscription(frozenset({"t"})), member_id: subscription}
        return RANGE.assign(members, topics(t=3))[member_id]

    assert assigned("a") == assigned("z") == [("t", 0), ("t", 1)]


# -- differing subscriptions ------------------------------------------------------------------------


def group_of(members: dict[str, Subscription], topics: Topics) -> Group:
    return Group(COOPERATIVE_STICKY, topics, members, dict.fromkeys(members, 3))


def test_member_with_an_exclusive_topic_releases_shared_topics() -> None:
    members = {
        "a": Subscription(frozenset({"own", "both"}), frozenset({("both", 0), ("both", 1)}), 1),
        "b": Subscription(frozenset({"both"})),
    }
    stable = group_of(members, topics(own=2, both=2)).stable()
    assert stable == {"a": [("own", 0), ("own", 1)], "b": [("both", 0), ("both", 1)]}


def test_members_do_not_swap_partitions_of_one_topic() -> None:
    """`b` gets `u`, so `b` first has one too many, and then takes one of `a`."""
    members = {
        "a": Subscription(frozenset({"t", "u"}), frozenset({("t", 1), ("t", 2), ("t", 3)}), 1),
        "b": Subscription(frozenset({"t", "u"}), frozenset({("t", 0)}), 1),
        "c": Subscription(frozenset({"t"})),
    }
    stable = group_of(members, topics(t=4, u=1)).stable()
    assert stable == {"a": [("t", 2), ("t", 3)], "b": [("t", 0), ("u", 0)], "c": [("t", 1)]}


def test_moved_partition_goes_to_an_earlier_owner() -> None:
    """An earlier owner, `b`, is preferred although `c` has fewer partitions."""
    members = {
        "a": Subscription(frozenset({"t", "u"}), frozenset(("t", number) for number in range(6)), 5),
        "b": Subscription(frozenset({"t", "u"}), frozenset({("t", 0), ("u", 0)}), 4),
        "c": Subscription(frozenset({"t"})),
    }
    assigned = replace(group_of(members, topics(t=6, u=1)), assignor=STICKY).assign()
    assert ("t", 0) in assigned["b"]
    assert [len(partitions) for partitions in assigned.values()] == [3, 2, 2]


def test_partitions_move_to_their_rack_if_loads_stay_balanced() -> None:
    racks = {"t": [frozenset({"west"}), frozenset({"east"})]}
    members = {
        "a": Subscription(frozenset({"t"}), frozenset({("t", 0)}), 1, "east"),
        "b": Subscription(frozenset({"t", "not-there"}), frozenset({("t", 1)}), 1, "west"),
    }
    assert group_of(members, racks).stable() == {"a": [("t", 1)], "b": [("t", 0)]}


def test_cooperative_rebalances_end_with_all_partitions_assigned() -> None:
    for seed in range(GROUPS):
        group = random_group(COOPERATIVE_STICKY, random.Random(seed))
        subscriptions = {name: replace(member, rack=None) for name, member in group.subscriptions.items()}
        stable = replace(group, subscriptions=subscriptions).stable()
        subscribed = {topic for member in subscriptions.values() for topic in member.topics}
        count = sum(len(partitions) for topic, partitions in group.topics.items() if topic in subscribed)
        assert sum(map(len, stable.values())) == count


@pytest.mark.parametrize("seed", [319, 1115, 1321])
def test_cooperative_rebalances_end_if_racks_are_full(seed: int) -> None:
    """In these groups, always reassigning partitions far from their owners would move them forever."""
    random_group(COOPERATIVE_STICKY, random.Random(seed)).stable()


def test_strategy_is_a_list_of_names_or_java_classes() -> None:
    names = [assignor.name for assignor in parse_strategy(" org.apache.kafka.clients.consumer.RangeAssignor, sticky")]
    assert names == ["range", "sticky"]
    default = ConsumerConfig().partition_assignment_strategy
    assert [assignor.name for assignor in parse_strategy(default)] == ["range", "cooperative-sticky"]
    for assignor in ASSIGNORS.values():
        assert parse_strategy(assignor.name) == parse_strategy(assignor.java_class) == (assignor,)


@pytest.mark.parametrize("text", ["", "range,", "Range", "com.example.Own", "range, range", "sticky,range,sticky"])
def test_unknown_or_repeated_strategy_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^partition\.assignment\.strategy is .*cooperative-sticky"):
        parse_strategy(text)
