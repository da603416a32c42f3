"""Random sequences of events: no partition ever has two owners, and finally each has one."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Metadata
from protocol.group.membership.assignment import TopicSubscription
from protocol.group.membership.member_state import MemberState
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.group.membership.simulated_group import SimulatedMember, machine, new_cluster, until_stable

pytestmark = pytest.mark.soak

_REFUSALS = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_MEMBER_ID,
)
_OF_CLASSIC = (ErrorCode.ILLEGAL_GENERATION,)
_OF_CONSUMER = (ErrorCode.FENCED_MEMBER_EPOCH,)
EVENTS = {"act": 40, "own": 20, "begin": 10, "lose": 5, "refuse": 4, "wait": 20, "sleep": 2, "leave": 1, "die": 1}
"""How often each, in relation to the others."""

KINDS = {
    "eager": {"protocol": "classic"},
    "cooperative": {"protocol": "classic", "partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"protocol": "consumer"},
}


def happen(
    event: str,
    member: SimulatedMember,
    members: list[SimulatedMember],
    rng: random.Random,
    refusals: tuple[ErrorCode, ...],
) -> None:
    """Let an event happen to a member, or to all of them."""
    clock = cast(ManualClock, member.cluster.clock)
    match event:
        case "act":
            member.act()
        case "own":
            member.own()
        case "begin":
            member.begin_revocation()
        case "lose":
            member.act(lose=True)
        case "refuse":
            member.act(refuse=rng.choice(refusals))
        case "wait":
            clock.advance(rng.random() * 2)
            for each in members:
                each.act()
        case "sleep":
            clock.advance(rng.choice((5, 30, 100)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2 * settings.default.max_examples)
@given(seed=st.integers(0, 2**32))
@example(seed=82581)  # a LeaveGroup is retried after the owner exceeded max.poll.interval.ms
@example(seed=3369576723)  # the group rebalances again while an owner revokes partitions
@example(seed=3388)  # a repeated JoinGroup is answered, and starts no session
@example(seed=5289)  # SyncGroup answered by a stable group starts no session
def test_partitions_have_at_most_one_owner_and_finally_exactly_one(kind: str, seed: int) -> None:
    rng, cluster = random.Random(seed), new_cluster(partitions=5)
    options = {"session_timeout_ms": 10_000, "max_poll_interval_ms": 60_000} if kind != "consumer" else {}
    protocol = KINDS[kind]["protocol"]
    refusals = _REFUSALS + (_OF_CONSUMER if protocol == "consumer" else _OF_CLASSIC)

    def new() -> SimulatedMember:
        return SimulatedMember(cluster, machine(now_s=cluster.clock.now_s(), **KINDS[kind], **options))

    members = [new() for _ in range(3)]
    deleted: list[SimulatedMember] = []
    for _ in range(150):
        member = rng.choice(members)
        match event := rng.choices(list(EVENTS), list(EVENTS.values()))[0]:
            case "leave":
                member.machine.leave(for_good=None)
                member.hang_up()
                while member.act():
                    pass
                assert member.machine.state in (MemberState.LEFT, MemberState.LEAVING)
                members[members.index(member)] = new()
            case "die":
                deleted.append(member)
                members[members.index(member)] = new()
            case _:
                happen(event, member, members, rng, refusals)
        cluster.advance()
        owners = Counter(key for member in members + deleted for key in member.assumed_owned)
        assert max(owners.values(), default=0) <= 1, owners
        for each in members:
            assert each.machine.state is not MemberState.FAILED, each.machine.error
            assert each.may_commit, (each.machine.state, str(each.machine.reason), each.revoking)
    until_stable(*members, partitions=5)


NAMES = [
    TopicSubscription(frozenset(names)) for names in ({"orders"}, {"payments"}, {"orders", "payments"}, {"refunds"})
]
PATTERNS = [TopicSubscription(pattern=re.compile(text)) for text in ("o.*", ".*s", "p.*|r.*")]
BY_BROKERS = [
    TopicSubscription(pattern=subscription.pattern, re2=subscription.pattern.pattern)
    for subscription in PATTERNS
    if subscription.pattern
]
SUBSCRIPTIONS = [*NAMES, TopicSubscription(), *PATTERNS, *BY_BROKERS]
TOPICS = {"orders": 3, "payments": 2, "refunds": 1}
RESUBSCRIBE = {"act": 40, "own": 20, "begin": 8, "lose": 5, "refuse": 4, "wait": 18, "sleep": 1, "subscribe": 12}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=settings.default.max_examples)
@given(seed=st.integers(0, 2**32))
def test_members_own_what_they_have_subscribed_last(kind: str, seed: int) -> None:
    rng, cluster = random.Random(seed), new_cluster(partitions=TOPICS["orders"])
    for name, partitions in TOPICS.items():
        if name != "orders":
            cluster.create_topic(name, partitions)
    clock, options = cast(ManualClock, cluster.clock), {"max_poll_interval_ms": 60_000}

    def new() -> SimulatedMember:
        return SimulatedMember(cluster, machine(subscription=rng.choice(SUBSCRIPTIONS), **KINDS[kind], **options))

    members = [new() for _ in range(rng.randint(1, 3))]
    for _ in range(rng.choice((15, 40, 120))):
        member = rng.choice(members)
        event = rng.choices(list(RESUBSCRIBE), list(RESUBSCRIBE.values()))[0]
        if event == "subscribe":
            member.machine.subscribe(rng.choice(SUBSCRIPTIONS), clock.now_s())
        else:
            happen(event, member, members, rng, _REFUSALS)
        cluster.advance()
        owners = Counter(key for member in members for key in member.assumed_owned)
        assert max(owners.values(), default=0) <= 1, owners
    metadata = Metadata.from_reply(cluster.ask(1, METADATA, {"topics": None}))
    wanted = [member.machine.subscription.topics(metadata) & TOPICS.keys() for member in members]
    expected = {(name, number) for name in frozenset().union(*wanted) for number in range(TOPICS[name])}

    def is_complete() -> bool:
        fits = all(
            {name for name, _ in member.machine.owned} <= names for member, names in zip(members, wanted, strict=True)
        )
        return fits and sorted(key for member in members for key in member.machine.owned) == sorted(expected)

    until_stable(*members, is_complete=is_complete)
