"""Changes of topics, subscriptions and generations, and the requests and assignments that follow."""

from __future__ import annotations

import re
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Metadata
from protocol.errors import ConnectionLost
from protocol.group.membership.assignment import TopicSubscription
from protocol.group.membership.member_state import MemberState, SendRequest
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m11_join_group import JOIN_GROUP
from protocol.wire.messages.m12_heartbeat import HEARTBEAT
from protocol.wire.messages.m14_sync_group import SYNC_GROUP
from tests.protocol.group.membership.simulated_group import (
    CLASSIC,
    CONSUMER,
    COOPERATIVE,
    ORDERS,
    SimulatedMember,
    heartbeat_reply,
    machine,
    member_of,
    next_request,
    until_stable,
)

EACH_KIND = pytest.mark.parametrize("options", [CLASSIC, COOPERATIVE, CONSUMER], ids=["eager", "cooperative", "kip848"])


def test_recreated_topic_is_revoked_and_assigned_again(cluster: Cluster) -> None:
    member = member_of(cluster, **CONSUMER)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 4)
    while not member.revoked:
        member.advance(1)
        until_stable(member)
    assert [(len(revocation.partitions), revocation.lost) for revocation in member.revoked] == [(4, False)]
    (row,) = member.sent[-1].body["topic_partitions"]  # type: ignore[index]
    assert row == {"topic_id": cluster.controller.topic("orders").topic_id, "partitions": [0, 1, 2, 3]}


def test_recreated_topic_that_is_assigned_at_once_is_revoked_first(cluster: Cluster) -> None:
    """The owner has partitions of the same names and numbers, in the deleted topic."""
    member = member_of(cluster, **CONSUMER)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 4)
    new_id = cluster.controller.topic("orders").topic_id
    kip848, assigned = member.machine, {"topic_partitions": [{"topic_id": new_id, "partitions": [0, 1, 2]}]}
    before = kip848.owned_topic_ids
    reply = {**heartbeat_reply(member), "member_epoch": kip848.member.member_epoch + 1, "assignment": assigned}
    kip848.on_response(next_request(member), reply, member.now_s, member.now_s)
    member.act()  # metadata with the name of the new topic
    assert member.begin_revocation()
    assert kip848.owned_topic_ids == before
    member.own()
    assert [(len(revocation.partitions), revocation.lost) for revocation in member.revoked] == [(4, False)]
    assert kip848.owned_topic_ids == {("orders", number): new_id for number in range(3)}


def test_partition_assigned_again_while_it_is_released_is_accepted_at_once(cluster: Cluster) -> None:
    member = member_of(cluster, **CONSUMER)
    topic_id = cluster.controller.topic("orders").topic_id

    def assign(*numbers: int) -> None:
        assignment = {"topic_partitions": [{"topic_id": topic_id, "partitions": list(numbers)}]}
        epoch = member.machine.member.member_epoch + 1
        reply = {**heartbeat_reply(member), "member_epoch": epoch, "assignment": assignment}
        member.machine.on_response(next_request(member), reply, member.now_s, member.now_s)

    assign(0, 1, 2)
    assert member.begin_revocation()
    assign(0, 1, 2, 3)
    member.own()
    assert [(len(revocation.partitions), revocation.lost) for revocation in member.revoked] == [(1, False)]
    assert len(member.machine.owned) == 4


@pytest.mark.parametrize("created", ["afterwards", "meanwhile"])
def test_restarted_static_leader_keeps_the_assignment_and_assigns_new_partitions(
    cluster: Cluster, created: str
) -> None:
    """KIP-814. It knows no partitions of the assignment that it keeps: those created meanwhile are not assigned."""
    first, member = (
        SimulatedMember(cluster, machine(**CLASSIC, group_instance_id=instance_id)) for instance_id in "ab"
    )
    until_stable(first, member)
    had = first.machine.owned
    first.machine.leave(for_good=None)
    if created == "meanwhile":
        cluster.create_partitions("orders", 6)
    again = SimulatedMember(cluster, machine(now_s=first.now_s, **CLASSIC, group_instance_id="a"))
    if created == "afterwards":
        until_stable(again, member)
        assert again.machine.owned == had
        cluster.create_partitions("orders", 6)
    until_stable(again, member, partitions=6)
    assert next(request.body["assignments"] for request in again.sent if request.api is SYNC_GROUP) == []  # type: ignore[index]


class TestRequests:
    """Bodies and timeouts of requests."""

    def test_join_alone_waits_for_the_rebalance_timeout(self, cluster: Cluster) -> None:
        """As in Java: a SyncGroup without a reply is repeated after `request.timeout.ms`."""
        member = member_of(cluster, **CLASSIC)
        member.advance(5)
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
    while len(second.sent) < 2:  # KIP-394: it joins again with the member id of the first reply
        second.act()
    while first.machine.state is not MemberState.SYNCING:
        first.act()
        first.own()
        first.advance(0.5)
    assert second.sent[-1].api is JOIN_GROUP
    second.act(lose=True)
    while first.machine.state is MemberState.SYNCING:
        first.act()
    sent = len(second.sent)
    while second.machine.state is not MemberState.RECONCILING and second.machine.state is not MemberState.STABLE:
        first.advance(0.1)
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


@EACH_KIND
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


@EACH_KIND
def test_pattern_is_not_matched_with_metadata_of_the_former_topics(cluster: Cluster, options: dict[str, Any]) -> None:
    cluster.create_topic("payments", 4)
    member = member_of(cluster, **options)
    member.machine.subscribe(BOTH_TOPICS, member.now_s)
    former = Metadata.from_reply(cluster.ask(1, METADATA, {"topics": [{"name": "orders"}]}))
    member.machine.subscribe(TopicSubscription(pattern=re.compile(".*s")), member.now_s)
    member.machine.on_metadata(former, member.now_s)  # requested before
    before_s = member.now_s
    until_stable(member, is_complete=lambda: True)
    assert {topic for topic, _ in member.machine.owned} == {"orders", "payments"}
    assert member.now_s - before_s < 1, "before metadata.max.age.ms"
