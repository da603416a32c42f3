"""Ends of a session and their consequences: by each error and each timeout, with the reported cause."""

from __future__ import annotations

import re
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Metadata
from protocol.errors import BrokerError, ConnectionLost, UnsupportedVersion
from protocol.group.membership.assignment import EndReason, TopicSubscription
from protocol.group.membership.member_state import (
    CLASSIC_TRANSITIONS,
    Lifecycle,
    MemberState,
    RefreshMetadata,
    SendRequest,
)
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m14_sync_group import SYNC_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.group.membership.simulated_group import ORDERS, SimulatedMember, machine, new_cluster, until_stable

CLASSIC = {"protocol": "classic", "session_timeout_ms": 10_000, "max_poll_interval_ms": 60_000}
COOPERATIVE = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
CONSUMER = {"protocol": "consumer", "max_poll_interval_ms": 60_000}


@pytest.fixture
def cluster() -> Cluster:
    return new_cluster()


def member_of(cluster: Cluster, **arguments: Any) -> SimulatedMember:
    """Return a member that owns all four partitions."""
    member = SimulatedMember(cluster, machine(now_s=cluster.clock.now_s(), **arguments))
    until_stable(member)
    return member


def next_request(member: SimulatedMember) -> SendRequest:
    """Return the next request, sent when it is due."""
    while True:
        step = member.machine.next_step(member.now_s)
        if isinstance(step, SendRequest):
            return step
        if isinstance(step, RefreshMetadata):
            member.act()
        else:
            member.cluster.clock.advance(step.until_s - member.now_s)  # type: ignore[attr-defined]


def refused(member: SimulatedMember, code: ErrorCode) -> str:
    """Refuse the next request with this code; return the message for the owner."""
    member.machine.on_failure(next_request(member), broker_error(code, "as if"), member.now_s)
    return str(member.machine.pending(member.now_s))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (CLASSIC, ErrorCode.UNKNOWN_MEMBER_ID),
        (CLASSIC, ErrorCode.ILLEGAL_GENERATION),
        (COOPERATIVE, ErrorCode.UNKNOWN_MEMBER_ID),
        (CONSUMER, ErrorCode.UNKNOWN_MEMBER_ID),
        (CONSUMER, ErrorCode.FENCED_MEMBER_EPOCH),
        (CONSUMER, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_error_that_ends_the_session_loses_partitions_and_rejoins(
    cluster: Cluster, options: dict[str, Any], code: ErrorCode
) -> None:
    member = member_of(cluster, **options)
    before = member.machine.member
    assert code.name in refused(member, code)
    assert member.machine.member.generation_id_or_member_epoch == -1
    assert not member.machine.member.keeps_assignment_of(before)
    revocation = member.machine.revocation(member.now_s)
    assert revocation is not None
    assert (revocation.lost, len(revocation.partitions)) == (True, 4)
    member.own()
    assert member.machine.owned == frozenset()
    remembered = member.machine.member.member_id
    assert (remembered == "") == (options["protocol"] == "classic" and code == ErrorCode.UNKNOWN_MEMBER_ID)
    until_stable(member)


@pytest.mark.parametrize(
    ("options", "code", "setting"),
    [
        (CLASSIC, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "partition.assignment.strategy"),
        (CLASSIC, ErrorCode.INVALID_SESSION_TIMEOUT, "session.timeout.ms"),
        (CLASSIC, ErrorCode.GROUP_MAX_SIZE_REACHED, "group.id"),
        (CLASSIC, ErrorCode.GROUP_AUTHORIZATION_FAILED, ""),
        (CLASSIC, ErrorCode.INVALID_GROUP_ID, ""),
        (CONSUMER, ErrorCode.UNSUPPORTED_ASSIGNOR, "group.remote.assignor"),
        (CONSUMER, ErrorCode.UNSUPPORTED_VERSION, "group.protocol"),
        (CONSUMER, ErrorCode.GROUP_AUTHORIZATION_FAILED, ""),
        (CONSUMER, ErrorCode.INVALID_REGULAR_EXPRESSION, "the pattern"),
    ],
)
def test_refused_member_joins_again_after_its_owner_got_the_error(
    cluster: Cluster, options: dict[str, Any], code: ErrorCode, setting: str
) -> None:
    member = member_of(cluster, **options)
    assert code.name in refused(member, code)
    assert not member.act(), "no further request is sent"
    error = member.machine.take_error()
    assert isinstance(error, BrokerError)
    assert setting in str(error)
    assert error.settings == ({setting} if setting else set())
    assert member.machine.take_error() is None
    revocation = member.machine.revocation(member.now_s)
    assert revocation is not None
    assert (revocation.lost, len(revocation.partitions)) == (True, 4)
    member.own()
    until_stable(member)
    assert len(member.machine.owned) == 4


@pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_refused_joins_are_repeated_with_growing_intervals(cluster: Cluster, options: dict[str, Any]) -> None:
    """An owner that ignores the errors would otherwise send requests without a pause."""
    member = SimulatedMember(cluster, machine(**options))
    attempts_s = []
    for _ in range(8):
        member.own()
        refused(member, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        attempts_s.append(member.now_s)
        assert member.machine.take_error() is not None
    assert attempts_s[-1] - attempts_s[-2] > 0.5


@pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_member_with_a_taken_instance_id_fails_for_good(cluster: Cluster, options: dict[str, Any]) -> None:
    """A join would fence the newer member, which would fence this one."""
    member = member_of(cluster, **options)
    assert "FENCED_INSTANCE_ID" in refused(member, ErrorCode.FENCED_INSTANCE_ID)
    assert member.machine.state is MemberState.FAILED
    for _ in range(2):
        error = member.machine.take_error()
        assert error is not None
        assert error.settings == {"group.instance.id"}
        member.own()
        assert not member.act(), "no further request is sent"
    member.machine.leave(for_good=True)
    assert member.machine.state is MemberState.LEFT


def test_instance_id_never_released_is_an_error_after_a_minute(cluster: Cluster) -> None:
    member = SimulatedMember(cluster, machine(**CONSUMER, group_instance_id="a"))
    while (error := member.machine.take_error()) is None:
        assert member.now_s < 61
        member.own()
        refused(member, ErrorCode.UNRELEASED_INSTANCE_ID)
        assert "UNRELEASED_INSTANCE_ID" in str(member.machine.reason)
    assert member.now_s >= 60
    assert error.settings == {"group.instance.id"}


def test_unsupported_group_protocol_is_an_error_with_a_remedy(cluster: Cluster) -> None:
    member = SimulatedMember(cluster, machine(**CONSUMER))
    member.own()
    member.machine.on_failure(next_request(member), UnsupportedVersion("the broker does not know it"), 0.0)
    assert isinstance(member.machine.error, UnsupportedVersion)
    assert "group.protocol: the consumer protocol needs Kafka 4.0 or later; use classic" in str(member.machine.error)
    assert member.machine.error.settings == {"group.protocol"}


@pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
@pytest.mark.parametrize(
    "error",
    [ConnectionLost("as if"), *(broker_error(code, "") for code in (14, 15, 16))],
    ids=["connection", "loading", "not available", "not coordinator"],
)
def test_transient_error_is_retried_after_the_back_off_without_loss(
    cluster: Cluster, options: dict[str, Any], error: Any
) -> None:
    member = member_of(cluster, **options)
    for _ in range(3):
        member.machine.on_failure(next_request(member), error, member.now_s)
        assert member.machine.next_step(member.now_s).until_s > member.now_s  # type: ignore[union-attr]
        assert member.machine.pending(member.now_s) is None
    until_stable(member)
    assert member.revoked == []


@pytest.mark.parametrize(("options", "session_s"), [(CLASSIC, 10), (COOPERATIVE, 10), (CONSUMER, 45)])
def test_silent_coordinator_ends_the_session_by_the_members_clock(
    cluster: Cluster, options: dict[str, Any], session_s: float
) -> None:
    member = member_of(cluster, **options)
    request = next_request(member)
    heard_s = member.now_s
    member.machine.on_response(request, {"error_code": 0, **_epoch(member)}, heard_s, heard_s)
    cluster.clock.advance(session_s - 0.1)  # type: ignore[attr-defined]
    assert member.machine.pending(member.now_s) is None
    cluster.clock.advance(0.1)  # type: ignore[attr-defined]
    assert "no response of the coordinator" in str(member.machine.pending(member.now_s))
    assert member.assumed_owned == frozenset()


@pytest.mark.parametrize(("options", "api"), [(CLASSIC, LEAVE_GROUP), (CONSUMER, CONSUMER_GROUP_HEARTBEAT)])
def test_member_leaves_after_max_poll_interval(cluster: Cluster, options: dict[str, Any], api: object) -> None:
    member = member_of(cluster, **options)
    began_s = member.now_s
    while member.now_s < began_s + 59:
        cluster.clock.advance(0.5)  # type: ignore[attr-defined]
        member.act()
    member.machine.progress(member.now_s)
    while member.now_s < began_s + 118:
        cluster.clock.advance(0.5)  # type: ignore[attr-defined]
        member.act()
    assert member.machine.pending(member.now_s) is None
    member.hang_up()
    cluster.clock.advance(2)  # type: ignore[attr-defined]
    farewell = next_request(member)
    assert farewell.api is api
    assert "max.poll.interval.ms" in str(member.machine.pending(member.now_s))
    member.act()
    member.act()
    cluster.clock.advance(100)  # type: ignore[attr-defined]
    assert not member.act(), "the member stays out until its owner polls again"
    member.own()
    if api is LEAVE_GROUP:
        assert next_request(member).body["member_id"] == "", "the former id would be refused"  # type: ignore[index]
    until_stable(member)
    assert [revocation.lost for revocation in member.revoked] == [True]


def test_static_member_over_max_poll_interval_stops_heartbeats_without_leaving(cluster: Cluster) -> None:
    member = member_of(cluster, **CLASSIC, group_instance_id="a")
    began_s = member.now_s
    while member.now_s < began_s + 60:
        cluster.clock.advance(1)  # type: ignore[attr-defined]
        member.act()
    assert "max.poll.interval.ms" in str(member.machine.pending(member.now_s))
    member.hang_up()
    assert not member.act()


@pytest.mark.parametrize(
    ("options", "leave", "leave_epoch"),
    [
        (CLASSIC, None, True),
        (CLASSIC, False, False),
        ({**CLASSIC, "group_instance_id": "a"}, None, False),
        ({**CLASSIC, "group_instance_id": "a"}, True, True),
        (CONSUMER, None, -1),
        (CONSUMER, False, None),
        ({**CONSUMER, "group_instance_id": "a"}, None, -2),
        ({**CONSUMER, "group_instance_id": "a"}, False, -2),
        ({**CONSUMER, "group_instance_id": "a"}, True, -1),
    ],
)
def test_leaving_member_notifies_the_coordinator_unless_it_may_return(
    cluster: Cluster, options: dict[str, Any], leave: bool | None, leave_epoch: Any
) -> None:
    member = member_of(cluster, **options)
    member.machine.leave(for_good=leave)
    step = member.machine.next_step(member.now_s)
    if not leave_epoch:
        assert member.machine.state is MemberState.LEFT
        assert not isinstance(step, SendRequest)
        return
    assert isinstance(step, SendRequest)
    assert callable(step.body) or step.body["member_epoch"] == leave_epoch
    member.act()
    member.act()
    assert member.machine.state is MemberState.LEFT


def test_member_leaving_before_it_joined_notifies_the_coordinator(cluster: Cluster) -> None:
    """The coordinator may have added the member, and would otherwise wait until its session timeout."""
    member = SimulatedMember(cluster, machine(**CONSUMER))
    member.own()
    next_request(member)
    member.machine.leave(for_good=None)
    step = member.machine.next_step(member.now_s)
    assert isinstance(step, SendRequest)
    assert step.body["member_epoch"] == -1  # type: ignore[index]


def test_member_leaving_after_only_it_noticed_the_end_of_its_session_notifies_the_coordinator(cluster: Cluster) -> None:
    member = member_of(cluster, **CONSUMER)
    member.machine.tick(member.now_s + 3_600)
    assert member.machine.state is not MemberState.STABLE
    member.machine.leave(for_good=None)
    step = member.machine.next_step(member.now_s + 3_600)
    assert isinstance(step, SendRequest)
    assert step.body["member_epoch"] == -1  # type: ignore[index]


def test_state_transitions_are_those_of_the_table() -> None:
    life = Lifecycle("member", CLASSIC_TRANSITIONS)
    with pytest.raises(AssertionError, match="STABLE may not follow UNJOINED"):
        life.transition(MemberState.STABLE, EndReason("as if"))
    assert life.state is MemberState.UNJOINED


def _epoch(member: SimulatedMember, epoch: int | None = None) -> dict[str, Any]:
    epoch = member.machine.member.member_epoch if epoch is None else epoch
    return {"member_epoch": epoch, "heartbeat_interval_ms": 5_000, "assignment": None}


def test_recreated_topic_is_revoked_and_assigned_again(cluster: Cluster) -> None:
    """The recreated topic has the same name and partition numbers."""
    member = member_of(cluster, **CONSUMER)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 4)
    while not member.revoked:
        cluster.clock.advance(1)  # type: ignore[attr-defined]
        until_stable(member)
    assert [(len(revocation.partitions), revocation.lost) for revocation in member.revoked] == [(4, False)]
    (row,) = member.sent[-1].body["topic_partitions"]  # type: ignore[index]
    assert row == {"topic_id": cluster.controller.topic("orders").topic_id, "partitions": [0, 1, 2, 3]}


def test_partition_assigned_again_while_it_is_released_is_accepted_at_once(cluster: Cluster) -> None:
    member = member_of(cluster, **CONSUMER)
    topic_id = cluster.controller.topic("orders").topic_id

    def assign(*numbers: int) -> None:
        assignment = {"topic_partitions": [{"topic_id": topic_id, "partitions": list(numbers)}]}
        reply = {**_epoch(member, member.machine.member.member_epoch + 1), "assignment": assignment}
        member.machine.on_response(next_request(member), reply, member.now_s, member.now_s)

    assign(0, 1, 2)
    assert member.begin_revocation()
    assign(0, 1, 2, 3)
    member.own()
    assert [(len(revocation.partitions), revocation.lost) for revocation in member.revoked] == [(1, False)]
    assert len(member.machine.owned) == 4


def test_restarted_static_leader_keeps_the_assignment_and_leads(cluster: Cluster) -> None:
    """KIP-814."""
    first, member = (
        SimulatedMember(cluster, machine(**CLASSIC, group_instance_id=instance_id)) for instance_id in "ab"
    )
    until_stable(first, member)
    had = first.machine.owned
    first.machine.leave(for_good=None)
    again = SimulatedMember(cluster, machine(now_s=first.now_s, **CLASSIC, group_instance_id="a"))
    until_stable(again, member)
    assert again.machine.owned == had
    assert [request.body["assignments"] for request in again.sent if request.api is SYNC_GROUP] == [[]]  # type: ignore[index]
    cluster.create_partitions("orders", 6)
    until_stable(again, member, partitions=6)


class TestRequests:
    """Bodies and timeouts of requests."""

    def test_join_alone_waits_for_the_rebalance_timeout(self, cluster: Cluster) -> None:
        """As in Java: a SyncGroup without a reply is repeated after `request.timeout.ms`."""
        member = member_of(cluster, **CLASSIC)
        cluster.clock.advance(5)  # type: ignore[attr-defined]
        member.act()
        observed = {request.api: (request.held, request.timeout_ms) for request in member.sent}
        assert observed[JOIN_GROUP] == (True, 65_000)
        assert observed[SYNC_GROUP] == (True, 30_000)
        pending, timeout_ms = observed[HEARTBEAT]
        assert not pending
        assert timeout_ms < 10_000 / 2, "time remains to find another coordinator"

    def test_consumer_heartbeat_repeats_only_changed_or_unacknowledged_fields(self, cluster: Cluster) -> None:
        member = member_of(cluster, **CONSUMER)
        always = {"group_id", "member_id", "instance_id", "member_epoch"}
        request = next_request(member)
        assert request.body.keys() == always  # type: ignore[union-attr]
        member.machine.on_failure(request, ConnectionLost("as if"), member.now_s)
        again = {"subscribed_topic_names", "rebalance_timeout_ms", "topic_partitions"}
        assert next_request(member).body.keys() == always | again  # type: ignore[union-attr]


@pytest.mark.parametrize("inputs", [CLASSIC, COOPERATIVE], ids=["eager", "cooperative"])
def test_repeated_join_gives_no_partitions_before_a_heartbeat(cluster: Cluster, inputs: dict[str, Any]) -> None:
    """The coordinator repeats the lost reply without restarting the session timeout, and may remove the member soon."""
    first = member_of(cluster, **inputs)
    second = SimulatedMember(cluster, machine(now_s=cluster.clock.now_s(), **inputs))
    second.own()
    for _ in range(3):  # KIP-394: it joins again with the member id of the first reply
        second.act()
    while first.machine.state is not MemberState.SYNCING:
        first.act()
        first.own()
        cluster.clock.advance(0.5)  # type: ignore[attr-defined]
    assert second.sent[-1].api is JOIN_GROUP
    second.act(lose=True)
    while first.machine.state is MemberState.SYNCING:
        first.act()
    sent = len(second.sent)
    while second.machine.state is not MemberState.RECONCILING and second.machine.state is not MemberState.STABLE:
        cluster.clock.advance(0.1)  # type: ignore[attr-defined]
        second.act()
    assert [request.api for request in second.sent[sent:]] == [JOIN_GROUP, SYNC_GROUP]
    assert second.own() == frozenset()
    assert "JoinGroup was lost" in str(second.machine.assignment_lost(second.now_s))
    second.act()
    assert second.sent[-1].api is HEARTBEAT
    second.act()
    assert second.machine.assignment_lost(second.now_s) is None
    until_stable(first, second)


BOTH_TOPICS = TopicSubscription(frozenset({"orders", "payments"}))
PAYMENTS = TopicSubscription(frozenset({"payments"}))


@pytest.mark.parametrize("options", [CLASSIC, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "kip848"])
@pytest.mark.parametrize(
    "subscription", [PAYMENTS, TopicSubscription(pattern=re.compile("pay.*"))], ids=["name", "pattern"]
)
def test_member_is_not_reconciled_before_its_new_topics_are_assigned(
    cluster: Cluster, options: dict[str, Any], subscription: TopicSubscription
) -> None:
    cluster.create_topic("payments", 4)
    member = member_of(cluster, **options)
    member.machine.subscribe(subscription, member.now_s)
    assert not member.machine.is_reconciled
    assert "subscription has changed" in str(member.machine.pending(member.now_s))
    until_stable(member)
    assert {topic for topic, _ in member.machine.owned} == {"payments"}


def test_member_rejoins_if_it_subscribes_again_to_topics_that_it_was_to_revoke(cluster: Cluster) -> None:
    cluster.create_topic("payments", 4)
    cluster.create_topic("refunds", 1)
    member = SimulatedMember(cluster, machine(subscription=BOTH_TOPICS, **COOPERATIVE))
    until_stable(member, is_complete=lambda: True)
    member.machine.subscribe(ORDERS, member.now_s)
    assert not isinstance(member.machine.next_step(member.now_s), SendRequest)
    assert member.machine.state is MemberState.REBALANCING
    member.machine.subscribe(TopicSubscription(frozenset({"orders", "payments", "refunds"})), member.now_s)
    until_stable(member, is_complete=lambda: True)
    assert {topic for topic, _ in member.machine.owned} == {"orders", "payments", "refunds"}


@pytest.mark.parametrize("ends_session", [False, True], ids=["reply lost", "session lost"])
def test_pattern_of_brokers_is_removed_after_a_failed_heartbeat(cluster: Cluster, ends_session: bool) -> None:
    cluster.create_topic("payments", 4)
    by_brokers = TopicSubscription(pattern=re.compile("ord.*"), re2="ord.*")
    member = SimulatedMember(cluster, machine(subscription=by_brokers, **CONSUMER))
    until_stable(member)
    lost = broker_error(ErrorCode.UNKNOWN_MEMBER_ID, "as if") if ends_session else ConnectionLost("as if")
    member.machine.on_failure(next_request(member), lost, member.now_s)
    member.machine.subscribe(PAYMENTS, member.now_s)
    until_stable(member)
    assert {topic for topic, _ in member.machine.owned} == {"payments"}


@pytest.mark.parametrize("inputs", [CLASSIC, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "kip848"])
def test_pattern_is_not_matched_with_metadata_of_the_former_topics(cluster: Cluster, inputs: dict[str, Any]) -> None:
    cluster.create_topic("payments", 4)
    member = member_of(cluster, **inputs)
    member.machine.subscribe(BOTH_TOPICS, member.now_s)
    former = Metadata.from_reply(cluster.ask(1, METADATA, {"topics": [{"name": "orders"}]}))
    member.machine.subscribe(TopicSubscription(pattern=re.compile(".*s")), member.now_s)
    member.machine.on_metadata(former, member.now_s)  # requested before
    before_s = member.now_s
    until_stable(member, is_complete=lambda: True)
    assert {topic for topic, _ in member.machine.owned} == {"orders", "payments"}
    assert member.now_s - before_s < 1, "before metadata.max.age.ms"
