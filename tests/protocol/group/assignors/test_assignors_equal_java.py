"""Random groups, passed to Kafka's own assignors as the bytes that this client writes: equal assignments."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest

from protocol.group.assignors.assignor import Assignor, GroupAssignment, Subscription
from protocol.group.assignors.range_assignor import RANGE
from protocol.group.assignors.strategies import ASSIGNORS, COOPERATIVE_STICKY, ROUNDROBIN, STICKY
from tests.protocol.group.assignors.java_assignors import JavaAssignors
from tests.protocol.group.assignors.random_groups import GROUPS, Group, random_group
from tests.support.soak import SOAK

pytestmark = [pytest.mark.soak, pytest.mark.kafka]  # uses Kafka's jars


@pytest.fixture(scope="module")
def java() -> Iterator[JavaAssignors]:
    with JavaAssignors() as running:
        yield running


@pytest.mark.parametrize("assignor", [RANGE, ROUNDROBIN], ids=lambda case: case.name)
def test_assignments_equal_javas(java: JavaAssignors, assignor: Assignor) -> None:
    for seed in range(GROUPS):
        group = random_group(assignor, random.Random(seed))
        assert group.assign() == java.assign(group), (seed, group)


@pytest.mark.parametrize("assignor", [STICKY, COOPERATIVE_STICKY], ids=lambda case: case.name)
def test_assignments_are_as_balanced_and_stable_as_javas(java: JavaAssignors, assignor: Assignor) -> None:
    """Assignments are equal if subscriptions are equal, and mostly otherwise."""
    outcomes: Counter[str] = Counter()
    for seed in range(GROUPS):
        group = random_group(assignor, random.Random(seed))
        ours, reference = group.assign(), java.assign(group)
        outcomes["equal" if ours == reference else "other"] += 1
        if ours != reference:
            assert not group.alike, (seed, group)
            assert group.moved(ours) <= group.moved(reference), (seed, group)
            # Partitions that a cooperative assignor withholds are not counted as load until the next rebalance.
            assert assignor.cooperative or unevenness(ours) <= unevenness(reference), (seed, group)
    print(f"{assignor.name}: {dict(outcomes)}")
    assert outcomes["equal"] > 10 * outcomes["other"]


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "differing"])
@pytest.mark.parametrize("name", ASSIGNORS)
def test_assignment_of_2000_partitions_to_200_members_takes_a_second_or_two(
    java: JavaAssignors, name: str, alike: bool
) -> None:
    """First with a new group, then without a tenth of its members."""
    rng = random.Random(7)
    topics = {f"topic-{number:03}": [frozenset[str]()] * 20 for number in range(100)}
    every = frozenset(topics)
    subscriptions = {
        f"member-{number:03}": Subscription(every if alike else frozenset(rng.sample(sorted(every), 30)))
        for number in range(200)
    }
    group = Group(ASSIGNORS[name], topics, subscriptions, dict.fromkeys(subscriptions, 3))
    assigned, first_s = timed(group)
    remainder = group.after(assigned)
    smaller = Group(remainder.assignor, topics, dict(list(remainder.subscriptions.items())[20:]), remainder.versions)
    _, second_s = timed(smaller)
    assert max(first_s, second_s) < 5
    if SOAK:
        java_first_s, java_second_s = java.timed(group)[1], java.timed(smaller)[1]
        print(f"{name} alike={alike}: {first_s:.2f} and {second_s:.2f} s, Java {java_first_s:.2f}, {java_second_s:.2f}")


def timed(group: Group) -> tuple[GroupAssignment, float]:
    members = group.members
    started_s = time.thread_time()
    return group.assignor.assign(members, group.topics), time.thread_time() - started_s


def unevenness(assignment: GroupAssignment) -> int:
    """Return Kafka's own measure: the sum of the differences between the loads of all pairs of members."""
    loads = [len(partitions) for partitions in assignment.values()]
    return sum(abs(first - second) for first, second in combinations(loads, 2))
