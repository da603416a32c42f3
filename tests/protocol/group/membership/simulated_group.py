"""Members without sockets or threads, against the model of a cluster, in one thread: a test can choose any order.

The test decides for each request when it is handled, and whether its reply is delivered or lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protocol import TopicPartition
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Metadata
from protocol.config import parse_client, parse_consumer
from protocol.errors import ConnectionLost
from protocol.group.membership.assignment import Revocation, TopicSubscription
from protocol.group.membership.classic_member import ClassicMember
from protocol.group.membership.consumer_member import ConsumerMember
from protocol.group.membership.machine import MemberMachine
from protocol.group.membership.member_state import CallAssignor, MemberState, RefreshMetadata, SendRequest, Wait
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.requests import Pending, Request
from protocol.wire.messages.m03_metadata import METADATA

GROUP = "etl"
ORDERS = TopicSubscription(frozenset({"orders"}))
CLASSIC = {"protocol": "classic", "session_timeout_ms": 10_000, "max_poll_interval_ms": 60_000}
COOPERATIVE = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
CONSUMER = {"protocol": "consumer", "max_poll_interval_ms": 60_000}
CLIENT = parse_client({"bootstrap.servers": "127.0.0.1:9092", "retry.backoff.ms": 10, "metadata.max.age.ms": 1_000})


def machine(protocol: str, now_s: float = 0.0, *, subscription: TopicSubscription = ORDERS, **inputs: Any) -> Any:
    """Return a state machine of one group protocol; `inputs` are properties with _ for dots."""
    properties = {name.replace("_", "."): value for name, value in inputs.items()}
    config = parse_consumer({"group.id": GROUP, "group.protocol": protocol, **properties})
    kind: type[MemberMachine] = {"classic": ClassicMember, "consumer": ConsumerMember}[protocol]
    return kind(CLIENT, config, subscription, now_s)


@dataclass
class SimulatedMember:
    """One member, its owner, and the request in flight."""

    cluster: Cluster
    machine: MemberMachine
    revoked: list[Revocation] = field(default_factory=list)
    sent: list[SendRequest] = field(default_factory=list)
    revoking: Revocation | None = None
    _in_flight: tuple[SendRequest, float, Pending | dict[str, Any]] | None = None

    @property
    def now_s(self) -> float:
        return self.cluster.clock.now_s()

    def advance(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)  # type: ignore[attr-defined]

    def act(self, *, lose: bool = False, refuse: ErrorCode | None = None) -> bool:
        """Run one step of the member's thread; return whether there was any. `lose`: the request is handled, the
        reply is lost."""
        if self._in_flight is not None:
            return self._take_answer(lose)
        step = self.machine.next_step(self.now_s)
        if isinstance(step, Wait):
            assert step.until_s > self.now_s, "the state machine must not spin"
            return False
        if isinstance(step, RefreshMetadata):
            names = None if step.topics is None else [{"name": name} for name in sorted(step.topics)]
            reply = self.cluster.ask(1, METADATA, {"topics": names, "allow_auto_topic_creation": False})
            self.machine.on_metadata(Metadata.from_reply(reply), self.now_s)
            return True
        if isinstance(step, CallAssignor):
            self.machine.on_assignor_result(step, step.call, self.now_s)
            return True
        if refuse is not None:
            self.machine.on_failure(step, broker_error(refuse, step.api.name), self.now_s)
            return True
        self.sent.append(step)
        fields = step.body(step.api.last) if callable(step.body) else step.body
        complete = {field.name: field.default_value() for field in step.api.request.fields} | fields
        self._in_flight = step, self.now_s, self.cluster.handle(1, Request(step.api, step.api.last, complete, "member"))
        return True

    def _take_answer(self, lose: bool) -> bool:
        assert self._in_flight is not None
        request, since_s, inputs = self._in_flight
        reply = self.cluster.look(inputs) if callable(inputs) else inputs
        if reply is None and not lose:
            if request.held:
                self.machine.extend_session(request, since_s, self.now_s)
                self._in_flight = request, self.now_s, inputs
            return False
        self._in_flight = None
        if reply is None or lose:
            self.machine.on_failure(request, ConnectionLost("as if"), self.now_s)
        else:
            complete = {field.name: field.default_value() for field in request.api.response.fields} | reply
            self._deliver(request, request.response_in(complete), since_s)
        return True

    def _deliver(self, request: SendRequest, reply: dict[str, Any], since_s: float) -> None:
        code = reply["error_code"]
        if code in request.accept:
            self.machine.on_response(request, reply, since_s, self.now_s)
        else:
            self.machine.on_failure(request, broker_error(code, request.api.name), self.now_s)

    def hang_up(self) -> None:
        """Fail the request in flight."""
        if self._in_flight is not None:
            request, self._in_flight = self._in_flight[0], None
            self.machine.on_failure(request, ConnectionLost("as if"), self.now_s)

    def own(self) -> frozenset[TopicPartition]:
        """Do the owner's part of `poll_rebalance`, as far as possible without waiting; return the owned partitions."""
        while self.begin_revocation():
            assert self.revoking is not None
            self.revoked.append(self.revoking)
            self.machine.complete_revocation(self.revoking, self.now_s)
            self.revoking = None
        self.machine.accept_assignment(self.now_s)
        return self.machine.owned

    def begin_revocation(self) -> bool:
        """Pass a pending revocation to the owner, which commits; `own` continues with it. Return False if there is
        none."""
        self.machine.progress(self.now_s)
        self.revoking = self.revoking or self.machine.revocation(self.now_s)
        return self.revoking is not None

    @property
    def assumed_owned(self) -> frozenset[TopicPartition]:
        """Return the partitions that the owner may assume to own: none after the session timeout by its own clock."""
        self.machine.tick(self.now_s)
        return frozenset() if self.machine.state is MemberState.LOST else self.machine.owned


def until_stable(
    *members: SimulatedMember, partitions: int = 4, is_complete: Callable[[], bool] | None = None, rounds: int = 400
) -> None:
    """Let members and owners act in turn until no event is left and each partition has one owner.

    Parameters
    ----------
    partitions : int
        Number of partitions of the only topic.
    is_complete : callable, optional
        Returns True if the members own what they should, instead of these partitions.
    """

    def each_has_one_owner() -> bool:
        return sorted(number for member in members for _, number in member.machine.owned) == list(range(partitions))

    for _ in range(rounds):
        moved = [member.act() for member in members]
        for member in members:
            if member.machine.pending(member.now_s):
                before = member.machine.state, member.machine.owned
                member.own()
                moved.append((member.machine.state, member.machine.owned) != before)
        if not any(moved):
            complete = (is_complete or each_has_one_owner)()
            if complete and all(member.machine.is_reconciled for member in members):
                return
            members[0].advance(0.5)
    raise AssertionError(
        [(member.machine.state, str(member.machine.reason), member.machine.owned) for member in members]
    )


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
        if isinstance(step, (RefreshMetadata, CallAssignor)):
            member.act()
        else:
            member.advance(step.until_s - member.now_s)


def act_for(member: SimulatedMember, seconds: float) -> None:
    """Let the member act every half second."""
    end_s = member.now_s + seconds
    while member.now_s < end_s:
        member.advance(0.5)
        member.act()


def heartbeat_reply(member: SimulatedMember) -> dict[str, Any]:
    """Return a reply of the consumer protocol in the present epoch, without another assignment."""
    return {"member_epoch": member.machine.member.member_epoch, "heartbeat_interval_ms": 5_000, "assignment": None}
