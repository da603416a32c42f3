"""Ends of a session and their consequences: by each error and each timeout, with the reported cause."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import BrokerError, ConnectionLost, UnsupportedVersion, UsageError
from protocol.group.membership.assignment import EndReason
from protocol.group.membership.member_state import (
    CLASSIC_TRANSITIONS,
    CallAssignor,
    Lifecycle,
    MemberState,
    SendRequest,
)
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.wire.messages.m13_leave_group import LEAVE_GROUP
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.protocol.group.membership.simulated_group import (
    CLASSIC,
    CONSUMER,
    COOPERATIVE,
    SimulatedMember,
    act_for,
    heartbeat_reply,
    machine,
    member_of,
    next_request,
    until_stable,
)

EACH_PROTOCOL = pytest.mark.parametrize("options", [CLASSIC, CONSUMER], ids=["classic", "consumer"])


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
    member.own()
    assert [(revocation.lost, len(revocation.partitions)) for revocation in member.revoked] == [(True, 4)]
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
    member.own()
    assert [(revocation.lost, len(revocation.partitions)) for revocation in member.revoked] == [(True, 4)]
    until_stable(member)
    assert len(member.machine.owned) == 4


@EACH_PROTOCOL
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


@EACH_PROTOCOL
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


@EACH_PROTOCOL
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
    member.machine.on_response(request, {"error_code": 0, **heartbeat_reply(member)}, heard_s, heard_s)
    cluster.clock.advance(session_s - 0.1)  # type: ignore[attr-defined]
    assert member.machine.pending(member.now_s) is None
    member.advance(0.1)
    assert "no response of the coordinator" in str(member.machine.pending(member.now_s))
    assert member.assumed_owned == frozenset()


@pytest.mark.parametrize(("options", "api"), [(CLASSIC, LEAVE_GROUP), (CONSUMER, CONSUMER_GROUP_HEARTBEAT)])
def test_member_leaves_after_max_poll_interval(cluster: Cluster, options: dict[str, Any], api: object) -> None:
    member = member_of(cluster, **options)
    act_for(member, 59)
    member.machine.progress(member.now_s)
    act_for(member, 59)
    assert member.machine.pending(member.now_s) is None
    member.hang_up()
    member.advance(2)
    farewell = next_request(member)
    assert farewell.api is api
    assert "no poll of this member for 60 s, so it has left the group" in str(member.machine.pending(member.now_s))
    member.act()
    member.act()
    member.advance(100)
    assert not member.act(), "the member stays out until its owner polls again"
    member.own()
    if api is LEAVE_GROUP:
        assert next_request(member).body["member_id"] == "", "the former id would be refused"  # type: ignore[index]
    until_stable(member)
    assert [revocation.lost for revocation in member.revoked] == [True]


def test_static_member_over_max_poll_interval_stops_heartbeats_without_leaving(cluster: Cluster) -> None:
    member = member_of(cluster, **CLASSIC, group_instance_id="a")
    act_for(member, 60)
    assert "no poll of this member for 60 s, so it sends no heartbeats" in str(member.machine.pending(member.now_s))
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


@pytest.mark.parametrize("has_joined", [False, True], ids=["before it joined", "after only it noticed the end"])
def test_member_leaving_outside_of_its_session_notifies_the_coordinator(cluster: Cluster, has_joined: bool) -> None:
    """The coordinator may have added the member, and would otherwise wait until its session timeout."""
    member = SimulatedMember(cluster, machine(**CONSUMER))
    if has_joined:
        until_stable(member)
        member.advance(3_600)
        member.machine.tick(member.now_s)
    else:
        member.own()
        next_request(member)
    assert member.machine.state is not MemberState.STABLE
    member.machine.leave(for_good=None)
    step = member.machine.next_step(member.now_s)
    assert isinstance(step, SendRequest)
    assert step.body["member_epoch"] == -1  # type: ignore[index]


@pytest.mark.parametrize(
    ("end", "state"),
    [("fenced", MemberState.JOINING), ("timed out", MemberState.JOINING), ("closed", MemberState.LEAVING)],
)
def test_failure_of_an_assignor_is_dropped_after_its_session(cluster: Cluster, end: str, state: MemberState) -> None:
    member = SimulatedMember(cluster, machine(**CLASSIC))
    member.own()
    while member.machine.state is not MemberState.SYNCING:
        member.act()
    member.act()  # the leader gets metadata
    step = member.machine.next_step(member.now_s)
    assert isinstance(step, CallAssignor)
    if end == "closed":
        member.machine.leave(for_good=True)
    elif end == "fenced":
        error = broker_error(ErrorCode.UNKNOWN_MEMBER_ID, "as if")
        member.machine.on_member_refused(member.machine.member, error, member.now_s)
    else:
        member.advance(10)

    def failed() -> None:
        raise UsageError("as if")

    member.machine.on_assignor_result(step, failed, member.now_s)
    assert (member.machine.state, member.machine.error) == (state, None)
    if end != "closed":
        until_stable(member)


def test_state_transitions_are_those_of_the_table() -> None:
    life = Lifecycle("member", CLASSIC_TRANSITIONS)
    with pytest.raises(AssertionError, match="STABLE may not follow UNJOINED"):
        life.transition(MemberState.STABLE, EndReason("as if"))
    assert life.state is MemberState.UNJOINED
