"""Several revocations in one call: each partition is committed by its owner only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import pytest

from protocol import TopicPartition
from protocol.base.clock import Deadline
from protocol.group.member import NO_MEMBER, GroupMember
from protocol.group.membership.assignment import Assignment, EndReason, Revocation
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position
from spark_kafka_source.driver import query_membership
from spark_kafka_source.driver.group_commits import GroupCommits
from spark_kafka_source.driver.query_membership import QueryMembership
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.assignment import query_assignment
from spark_kafka_source.plan.offsets import Offsets
from tests.driver.changing_logs import Marks

A, B = ("t", 0), ("t", 1)
TOPIC_ID = b"0123456789abcdef"
OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "subscribe": "t",
    "kafka.group.id": "g",
    "kafka.group.protocol": "consumer",
}


class Membership:
    """Owns two partitions; the second call of `poll_rebalance` revokes them one after the other."""

    def __init__(self, *_: object, **__: object) -> None:
        self.owned = frozenset[TopicPartition]()
        self.member = NO_MEMBER
        self.rebalance_pending: EndReason | None = EndReason("as if")
        self.assignment_lost = None
        self.topic_ids = dict.fromkeys((A, B), TOPIC_ID)

    def progress(self) -> None: ...

    def take_authorization_error(self) -> None: ...

    def on_member_refused(self, member: GroupMember) -> None: ...

    def poll_rebalance(self, deadline: Deadline, before_revoke: Callable[[Revocation], None]) -> Assignment:
        if not self.owned:
            self.owned = frozenset({A, B})
            return Assignment(NO_MEMBER, self.owned, self.owned)
        for key in (A, B):
            before_revoke(Revocation(frozenset({key}), lost=False, reason=EndReason("as if")))
            self.owned -= {key}
        return Assignment(NO_MEMBER, self.owned, frozenset())


def test_partition_revoked_first_is_not_committed_again_with_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_offsets(*_: object, after: Collection[TopicPartition], **__: object) -> dict[TopicPartition, Position]:
        return {}

    monkeypatch.setattr(query_membership, "Membership", Membership)
    monkeypatch.setattr(query_membership, "group_offsets", no_offsets)
    options = parse_source_options(OPTIONS, streaming=True)
    commits, marks = GroupCommits(options), Marks()
    commits.manager = cast("Any", marks)
    membership = QueryMembership(options, commits)
    existing = dict.fromkeys((A, B), TOPIC_ID)
    completed = Offsets.at({key: Position(5, topic_id=TOPIC_ID) for key in (A, B)})
    deadline = Deadline.after_ms(1_000)
    for _ in range(2):
        assigned = membership.poll_assignment(existing, completed, available_now=False, deadline=deadline)
        assignment = query_assignment(existing, assigned, completed, {})
        assert membership.fetch_start_positions(assignment, assigned, completed, deadline).readable == assigned
    assert marks.marked == [{A: 5, B: 5}, {B: 5}]
    assert not assigned


def test_start_applies_until_a_batch_contains_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers disagree about the topic after its partition was assigned, and a batch of another one is complete."""
    start = Position(30, topic_id=TOPIC_ID)
    monkeypatch.setattr(query_membership, "Membership", Membership)
    monkeypatch.setattr(query_membership, "group_offsets", lambda *_, **__: {A: start})
    options = parse_source_options(OPTIONS, streaming=True)
    membership, deadline = QueryMembership(options, GroupCommits(options)), Deadline.after_ms(1_000)
    existing = dict.fromkeys((A, B), TOPIC_ID)

    def trigger(completed: Offsets, assigned_ids: dict[TopicPartition, bytes]) -> Mapping[TopicPartition, Position]:
        membership.poll_assignment(existing, completed, available_now=False, deadline=deadline)
        cast("Any", membership.membership).rebalance_pending = None
        assignment = query_assignment(existing, assigned_ids, completed, {})
        return membership.fetch_start_positions(assignment, assigned_ids, completed, deadline).starts

    first, second, third = (
        Offsets.at({A: Position(a, topic_id=TOPIC_ID), B: Position(b, topic_id=TOPIC_ID)})
        for a, b in ((10, 5), (10, 6), (20, 7))
    )
    assert trigger(first, existing) == {A: start}
    assert trigger(first, {B: TOPIC_ID}) == {}
    assert trigger(second, existing) == {A: start}
    assert trigger(third, existing) == {}


def test_starting_offset_applies_until_the_partition_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without topic ids (Kafka before 2.8), a topic that is deleted and created again looks the same."""
    monkeypatch.setattr(query_membership, "Membership", Membership)
    monkeypatch.setattr(query_membership, "group_offsets", lambda *_, **__: {})
    options = parse_source_options(OPTIONS, streaming=True)
    membership, deadline = QueryMembership(options, GroupCommits(options)), Deadline.after_ms(1_000)
    start = Position(30)

    def trigger(completed: Offsets, existing: dict[TopicPartition, bytes]) -> Mapping[TopicPartition, Position]:
        membership.poll_assignment(existing, completed, available_now=False, deadline=deadline)
        cast("Any", membership.membership).rebalance_pending = None
        assignment = query_assignment(existing, existing, completed, {})
        return membership.fetch_start_positions(assignment, existing, completed, deadline).starts

    membership.keep_starting_offsets(Offsets({A: start}))
    exists, deleted, no_batch = {A: NO_TOPIC_ID}, dict[TopicPartition, bytes](), Offsets({})
    assert trigger(no_batch, exists) == {A: start}
    assert trigger(no_batch, deleted) == {}
    assert trigger(no_batch, exists) == {A: start}
    assert trigger(Offsets({A: Position(40)}), exists) == {}
    assert trigger(no_batch, deleted) == {}
    membership._assigned.clear()  # as by a revocation
    assert trigger(no_batch, exists) == {}
