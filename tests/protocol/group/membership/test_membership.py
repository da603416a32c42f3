"""The thread of a member and its owner's calls, against the model behind sockets: waits between the two."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from protocol import Client
from protocol.broker_errors import ErrorCode
from protocol.cluster.metadata import Broker
from protocol.config import parse_consumer
from protocol.errors import BrokerError, ProtocolError, UsageError
from protocol.group.assignors.assignor import Assignor
from protocol.group.membership import membership
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.machine import MemberMachine
from protocol.group.membership.membership import Membership
from protocol.testing import FakeKafka, ManualClock
from protocol.testing.fake_kafka import consumer_group
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.contract.members import GroupMember as GroupMemberByHand
from tests.contract.members import subscription
from tests.protocol.fetch.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, Owner, rebalance
from tests.support.internals import clock_checked_s
from tests.support.wait_until import comes_true, wait_until


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKafka]:
    monkeypatch.setattr(consumer_group, "HEARTBEAT_INTERVAL_MS", 50)
    with FakeKafka(3) as kafka:
        kafka.create_topic("orders", 4)
        yield kafka


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake.bootstrap_servers) as client:
        yield client


@pytest.fixture
def joined(client: Client, new_member: NewMember) -> Callable[..., Owner]:
    """Return `joined(**properties)`, which creates a member with all partitions and frequent heartbeats."""

    def join(**properties: object) -> Owner:
        owner = new_member(client, "orders", **properties)
        owner.poll_rebalance(10_000)
        return owner

    return join


@pytest.mark.parametrize("protocol", ["classic"])
def test_joining_member_reports_its_wait_and_joins_when_others_rejoin(
    client: Client, joined: Callable[..., Owner], new_member: NewMember
) -> None:
    """Both members use one client: the JoinGroup of one must not delay the heartbeats of the other."""
    owner, two = joined(), new_member(client, "orders")
    began_s = time.monotonic()
    assignment = two.poll_rebalance(200)
    assert 0.2 <= time.monotonic() - began_s < 15
    assert (assignment.owned, str(assignment.pending_reason)) == (frozenset(), "first join of this member")
    assert two.membership.rebalance_pending is None, "no rebalance is pending yet"
    wait_until(lambda: owner.membership.rebalance_pending)
    owner.poll_rebalance()
    wait_until(lambda: two.membership.rebalance_pending)
    assert len(two.poll_rebalance().added) == 2


@pytest.mark.parametrize("protocol", ["classic"])
def test_close_during_join_leaves_at_once(
    fake: FakeKafka, client: Client, joined: Callable[..., Owner], new_member: NewMember, group: str
) -> None:
    joined()
    two = new_member(client, "orders")
    two.poll_rebalance(100)
    wait_until(lambda: len(fake.groups.groups[group].members) == 2)
    began_s = time.monotonic()
    two.membership.close(timeout_ms=30_000)
    assert time.monotonic() - began_s < 15
    assert len(fake.groups.groups[group].members) == 1


@pytest.mark.parametrize("protocol", ["consumer"])
@pytest.mark.parametrize("reply", ["late", "lost"])
def test_close_during_the_first_heartbeat_leaves_no_member(
    fake: FakeKafka, client: Client, new_member: NewMember, group: str, reply: str
) -> None:
    """A heartbeat that arrives after the leave request would make a member of it."""
    event, closing = threading.Event(), threading.Event()

    def first(body: Any) -> None:
        if body["member_epoch"] == 0 and not event.is_set():
            event.set()
            assert closing.wait(20)
            comes_true(lambda: fake.request_bodies(CONSUMER_GROUP_HEARTBEAT)[1:], 0.2)  # a leave request overtakes it

    if reply == "lost":
        fake.lose_replies(CONSUMER_GROUP_HEARTBEAT, 1)
    fake.before[CONSUMER_GROUP_HEARTBEAT] = first
    owner = new_member(client, "orders")
    owner.poll_rebalance()
    assert event.wait(20)
    with ThreadPoolExecutor(1) as executor:
        closed = executor.submit(owner.membership.close, timeout_ms=20_000)
        closing.set()
        closed.result(20)
    assert [body["member_epoch"] for body in fake.request_bodies(CONSUMER_GROUP_HEARTBEAT)][-1] == -1
    assert not comes_true(lambda: fake.groups.consumer_groups[group].members, 0.3)


def test_closed_member_does_not_join_when_the_coordinator_is_found_at_last(
    fake: FakeKafka, client: Client, new_member: NewMember, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """The client stays open, since others use it."""
    event, result = threading.Event(), threading.Event()
    coordinator = client.coordinator

    def find(*arguments: Any) -> Broker:
        event.set()
        assert result.wait(20)
        return coordinator(*arguments)

    monkeypatch.setattr(client, "coordinator", find)
    owner = new_member(client, "orders")
    owner.poll_rebalance()
    assert event.wait(20)
    for _ in range(2):
        owner.membership.close(timeout_ms=100)
    with pytest.raises(UsageError, match="was closed"):
        owner.poll_rebalance()
    result.set()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.endswith(f"of {group}")])
    assert not fake.request_bodies("JoinGroup")
    assert not fake.request_bodies(CONSUMER_GROUP_HEARTBEAT)


def test_failed_join_is_raised_with_its_code_though_an_owner_has_taken_it(
    fake: FakeKafka, client: Client, group: str
) -> None:
    fake.refuse("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ALWAYS)
    config = parse_consumer({"group.id": group, "group.protocol": "classic"})
    with Membership(client, config, TopicSubscription(frozenset({"orders"})), join_retries=2) as member:
        member.poll_rebalance(client.deadline(0))
        wait_until(lambda: member.rebalance_pending)
        assert member.take_join_error() is not None
        with pytest.raises(BrokerError, match="attempts to join have failed") as raised:
            member.poll_rebalance(client.deadline(0))
    assert raised.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_error_of_the_owners_callback_is_raised_without_revocation(
    client: Client, joined: Callable[..., Owner], new_member: NewMember
) -> None:
    owner = joined()
    two = new_member(client, "orders")
    two.poll_rebalance(50)
    wait_until(lambda: owner.membership.rebalance_pending)

    def cannot(revocation: Revocation) -> None:
        raise ZeroDivisionError("as if")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            owner.membership.poll_rebalance(client.deadline(1_000), cannot)
        assert owner.numbers == [0, 1, 2, 3]
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)


def test_refusal_is_raised_once_and_the_next_call_joins_again(fake: FakeKafka, joined: Callable[..., Owner]) -> None:
    owner = joined()
    for api in (HEARTBEAT, CONSUMER_GROUP_HEARTBEAT):
        fake.refuse(api, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    wait_until(lambda: owner.membership.rebalance_pending)
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        owner.poll_rebalance()
    rebalance(owner, until=lambda: len(owner.numbers) == 4)
    assert [(revocation.lost, len(revocation.partitions)) for revocation in owner.revoked] == [(True, 4)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_unreachable_brokers_are_logged_once(
    fake: FakeKafka,
    client: Client,
    joined: Callable[..., Owner],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
) -> None:
    """An owner that waits for its partitions would otherwise only see that none are assigned."""
    monkeypatch.setattr(membership, "WARN_AFTER_S", 0.3)
    joined(**{"group.protocol": protocol})
    for broker in (1, 2, 3):
        fake.stop(broker)
    wait_until(lambda: "requests of this member fail and are retried" in caplog.text)
    retrying = Mock(wraps=client.retrying)
    monkeypatch.setattr(client, "retrying", retrying)
    wait_until(lambda: retrying.call_count > 2)
    for broker in (1, 2, 3):
        fake.start(broker)
    wait_until(lambda: "requests of this member succeed again" in caplog.text)
    assert caplog.text.count("are retried") == 1


@pytest.mark.parametrize("lookup", ["metadata", "coordinator"])
def test_suspension_is_noticed_during_a_lookup_that_is_none(
    fake: FakeKafka, new_member: NewMember, monkeypatch: pytest.MonkeyPatch, lookup: str
) -> None:
    """A broker may need 15 s for metadata, and a connection 10 s: a suspected loss would withhold valid records."""
    monkeypatch.setattr(membership, "TICK_S", 0.01)
    clock, is_requested, is_answered = ManualClock(), threading.Event(), threading.Event()
    with Client({"bootstrap.servers": fake.bootstrap_servers}, clock) as client:
        owner = new_member(client, "orders")
        owner.poll_rebalance(10_000)
        look_up = getattr(client, lookup)

        def answer_late(*arguments: Any, **options: Any) -> object:
            is_requested.set()
            assert is_answered.wait(20)
            return look_up(*arguments, **options)

        monkeypatch.setattr(client, lookup, answer_late)
        if lookup == "metadata":
            owner.membership.subscribe(TopicSubscription(pattern=re.compile("orders")))
        else:
            clock.advance(1)
        assert is_requested.wait(20)
        for _ in range(5):
            clock.advance(2)
            wait_until(lambda: clock_checked_s(owner.membership) == clock.now_s())
        assert owner.membership.assignment_lost is None
        with owner.membership.changed:
            clock.advance(10)
            assert "suspended for 10 s" in str(owner.membership.assignment_lost)
        is_answered.set()
        owner.membership.close(timeout_ms=1_000)


def test_member_waits_and_calls_the_assignor_without_its_lock(
    client: Client, new_member: NewMember, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = set[tuple[str, bool]]()

    def observe(target: object, name: str) -> None:
        method = getattr(target, name)

        def call(*arguments: Any, **options: Any) -> Any:
            condition: Any = owner.membership.changed
            calls.add((name, condition._is_owned()))
            return method(*arguments, **options)

        monkeypatch.setattr(target, name, call)

    owner = new_member(client, "orders")
    for name in ("coordinator", "send", "metadata"):
        observe(client, name)
    for name in ("join_data", "assign_with_data", "on_assignment"):
        observe(Assignor, name)
    rebalance(owner, until=lambda: len(owner.numbers) == 4)
    expected = {"coordinator", "send", "metadata"}
    if protocol == "classic":
        expected |= {"join_data", "assign_with_data", "on_assignment"}
    assert calls == {(name, False) for name in expected}


def test_member_joins_in_a_process_with_too_many_threads(
    client: Client, new_member: NewMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, list[str]()

    def cannot(thread: threading.Thread) -> None:
        if thread.name.endswith("metadata"):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", cannot)
    owner = new_member(client, "orders")
    rebalance(owner, until=lambda: len(owner.numbers) == 4)
    assert refused


@pytest.mark.parametrize("protocol", ["classic"])
@pytest.mark.parametrize("nonsense", [b"", b"\x00\x01", b"\x00\x03\x7f\xff\xff\xff", b"\xff" * 40])
def test_leader_names_the_member_with_invalid_metadata_and_joins_again(
    client: Client, new_member: NewMember, group: str, nonsense: bytes
) -> None:
    owner = new_member(client, "orders", partition_assignment_strategy="range")
    owner.poll_rebalance(10_000)
    member = GroupMemberByHand(client, group, protocols={"range": nonsense})
    member.begin()
    wait_until(lambda: owner.membership.rebalance_pending)
    with pytest.raises(ProtocolError, match=f"invalid subscription of member {member.member_id}"):
        owner.poll_rebalance(10_000)
    member.leave()
    rebalance(owner, until=lambda: len(owner.numbers) == 4)


@pytest.mark.parametrize("method", ["next_step", "on_response"])
def test_bug_is_raised_to_the_owner_and_the_member_leaves_if_its_thread_still_can(
    fake: FakeKafka, joined: Callable[..., Owner], monkeypatch: pytest.MonkeyPatch, group: str, method: str
) -> None:
    owner = joined()
    with monkeypatch.context() as broken:
        broken.setattr(MemberMachine, method, lambda *arguments: 1 / 0)
        wait_until(lambda: owner.membership.rebalance_pending)
    for _ in range(2):
        with pytest.raises(UsageError, match="ZeroDivisionError"):
            owner.poll_rebalance()
    owner.membership.close()
    groups: dict[str, Any] = {**fake.groups.groups, **fake.groups.consumer_groups}
    assert bool(groups[group].members) == (method == "next_step")


@pytest.mark.parametrize("protocol", ["classic"])
def test_member_waiting_long_in_a_cooperative_rebalance_keeps_its_partitions(
    fake: FakeKafka, client: Client, new_member: NewMember, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cooperative. While the coordinator delays JoinGroup, neither it nor the member counts the session timeout."""
    monkeypatch.setattr(membership, "TICK_S", 0.05)
    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    owner = new_member(client, "orders", session_timeout_ms=2_500, **strategy)
    owner.poll_rebalance(10_000)
    slow = GroupMemberByHand(client, group, protocols={"cooperative-sticky": subscription()})
    reply = slow.begin()
    slow.end(reply)
    wait_until(lambda: owner.membership.member.generation_id == 2)
    fake.rebalance(group)
    wait_until(lambda: fake.groups.groups[group].members[owner.membership.member.member_id].joining)
    assert not comes_true(lambda: owner.membership.rebalance_pending, 3)
    slow.leave()
    wait_until(lambda: owner.membership.member.generation_id == 3)
    assert (owner.numbers, owner.revoked) == ([0, 1, 2, 3], [])
