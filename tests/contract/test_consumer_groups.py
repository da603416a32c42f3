"""Groups of the consumer protocol (KIP-848): epochs, and partitions that move one by one."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.wire.messages.m68_consumer_group_heartbeat import CONSUMER_GROUP_HEARTBEAT
from tests.contract.conftest import NewTopic
from tests.contract.members import ask_coordinator, commit, new_group
from tests.contract.raw_requests import Row
from tests.support.wait_until import wait_until

JOINS = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}


@dataclass
class Member:
    """A member that sends raw requests and subscribes to one topic; `assigned` is its last assignment."""

    client: Client
    group: str
    topic: str
    instance_id: str | None = None
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    assigned: list[int] = field(default_factory=list)

    def beat(self, **fields: object) -> int:
        """Send a heartbeat and return the error code of the reply."""
        who = {"group_id": self.group, "member_id": self.member_id, "instance_id": self.instance_id}
        body = {**who, "member_epoch": self.epoch, **fields}
        self.reply: Row = ask_coordinator(self.client, self.group, CONSUMER_GROUP_HEARTBEAT, body)
        if not self.reply["error_code"]:
            self.epoch = self.reply["member_epoch"]
            if self.reply["assignment"] is not None:
                rows = self.reply["assignment"]["topic_partitions"]
                self.assigned = sorted(number for row in rows for number in row["partitions"])
        return int(self.reply["error_code"])

    def join(self, **fields: object) -> int:
        self.epoch = 0
        return self.beat(**{"subscribed_topic_names": [self.topic], **JOINS, **fields})

    def own(self, *numbers: int) -> int:
        """Report these partitions as owned, and return the error code."""
        rows = [{"topic_id": self.client.topic(self.topic).topic_id, "partitions": list(numbers)}] if numbers else []
        return self.beat(topic_partitions=rows)

    def beat_until(self, *numbers: int) -> None:
        """Send heartbeats until these partitions are assigned."""

        def assigned() -> bool:
            assert self.assigned == list(numbers) or self.beat() == 0
            return self.assigned == list(numbers)

        wait_until(assigned, every_s=0.02)


@pytest.fixture
def two_partitions(new_topic: NewTopic) -> str:
    """Return the name of a topic. A fixture `topic` would mark its tests as those of a real broker."""
    return new_topic(2)


@pytest.fixture
def member(client: Client, two_partitions: str) -> Member:
    """Return a member that has both partitions."""
    first = Member(client, new_group(), two_partitions)
    assert first.join() == 0
    assert first.own(*first.assigned) == 0
    first.beat_until(0, 1)
    assert first.own(0, 1) == 0
    return first


def join_second_member(member: Member, **arguments: str) -> Member:
    return Member(member.client, member.group, member.topic, **arguments)


def test_short_heartbeat_reply_omits_unchanged_assignment(member: Member) -> None:
    assert member.epoch > 0
    assert member.reply["heartbeat_interval_ms"] > 0
    assert member.beat() == 0
    assert member.reply["assignment"] is None
    assert member.beat(subscribed_topic_names=[member.topic], rebalance_timeout_ms=60_000, topic_partitions=[]) == 0
    assert member.reply["assignment"] is not None, "a full heartbeat gets a full reply"


def test_partition_is_assigned_to_another_member_after_its_revocation(member: Member) -> None:
    second = join_second_member(member)
    assert second.join() == 0
    assert (second.assigned, second.epoch) == ([], member.epoch + 1)
    assert member.beat() == 0
    (retained,) = member.assigned
    assert member.epoch == second.epoch - 1
    assert second.beat() == 0
    assert second.assigned == []
    assert member.own(retained) == 0
    assert member.epoch == second.epoch
    second.beat_until(1 - retained)


def test_member_after_leaving_is_unknown_and_owns_nothing(member: Member) -> None:
    second = join_second_member(member)
    second.join()
    assert member.beat(member_epoch=-1) == 0
    assert member.reply["member_epoch"] == -1
    second.beat_until(0, 1)
    member.epoch = 5
    assert member.beat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_with_wrong_member_epoch_is_fenced(member: Member) -> None:
    assert member.beat(member_epoch=member.epoch + 1) == ErrorCode.FENCED_MEMBER_EPOCH
    assert member.beat() == 0


def test_commit_with_another_member_epoch_or_id_is_refused(member: Member) -> None:
    def code(**fields: object) -> int:
        return commit(member.client, member.group, member.topic, 5, **fields)

    epoch = member.epoch
    assert code(member_id=member.member_id, generation_id_or_member_epoch=epoch) == 0
    assert code(member_id=member.member_id, generation_id_or_member_epoch=epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert code(member_id="nobody", generation_id_or_member_epoch=epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code() == ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_rejoining_with_new_id_keeps_its_assignment(client: Client, two_partitions: str) -> None:
    first = Member(client, new_group(), two_partitions, instance_id="a")
    first.join()
    first.beat_until(0, 1)
    first.own(0, 1)
    epoch, again = first.epoch, join_second_member(first, instance_id="a")
    assert again.join() == ErrorCode.UNRELEASED_INSTANCE_ID
    assert first.beat(member_epoch=-2) == 0
    second = join_second_member(first)
    assert second.join() == 0
    assert again.join() == 0
    again.beat_until(*again.assigned)
    assert len(again.assigned) >= 1
    first.epoch = epoch
    assert first.beat() == ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 3}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_join_with_invalid_fields_is_refused(
    client: Client, two_partitions: str, fields: dict[str, object], code: ErrorCode
) -> None:
    refused = Member(client, new_group(), two_partitions)
    options = {"subscribed_topic_names": [two_partitions], **JOINS, **fields}
    assert refused.beat(**options) == code


def test_member_subscribed_by_pattern_gets_partitions_of_matching_topics(client: Client, two_partitions: str) -> None:
    member = Member(client, new_group(), two_partitions)
    assert member.beat(subscribed_topic_names=[], subscribed_topic_regex=f"{two_partitions}.*", **JOINS) == 0
    member.beat_until(0, 1)


@pytest.mark.parametrize("pattern", ["(?!never)", "(?<=a)b", "("])
def test_pattern_that_re2_lacks_is_refused(client: Client, two_partitions: str, pattern: str) -> None:
    member = Member(client, new_group(), two_partitions)
    assert member.join(subscribed_topic_names=None, subscribed_topic_regex=pattern) == (
        ErrorCode.INVALID_REGULAR_EXPRESSION
    )


def test_older_member_keeps_its_first_partition(client: Client, member: Member) -> None:
    second = Member(client, member.group, member.topic)
    assert second.join() == 0
    assert member.own(0, 1) == 0
    assert member.assigned == [0]
