"""Members of groups that a real broker coordinates, by both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.cluster.client import Client
from protocol.group.offset_manager import OffsetManager
from protocol.group.offsets import CommittedOffset, fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.consumer.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, settle


@pytest.fixture
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1) as client:
        yield client


def test_one_member_has_all_and_commits_as_the_one_it_is(
    client: Client, kafka1: LocalKafka, topic1: TopicFactory, group: str, new_member: NewMember
) -> None:
    name, one = topic1(3), None
    one = new_member(client, name)
    assert "has not joined" in str(one.membership.rebalance_pending)
    assignment = one.take_up(20_000)
    assert assignment.owned == assignment.added == {(name, number) for number in range(3)}
    assert (assignment.joining, one.membership.rebalance_pending, one.revoked) == (None, None, [])
    offsets = OffsetManager(client, group)
    offsets.join(assignment.member)
    offsets.mark({(name, 1): CommittedOffset(5)}, assignment.member)
    assert offsets.flush(client.deadline())
    offsets.close()
    assert fetch_offsets(client, group, None, client.deadline())[name, 1].offset == 5
    described = kafka1.describe_group(group)
    (row,) = [line.split() for line in described.splitlines() if line.split()[1:3] == [name, "1"]]
    assert row[6:] == [assignment.member.member_id, "/127.0.0.1", "spark-kafka-source"]


def test_two_members_share_and_who_leaves_is_missed_at_once(
    client: Client, topic1: TopicFactory, new_member: NewMember
) -> None:
    name = topic1(4)
    one, two = new_member(client, name), new_member(client, name)
    one.take_up(20_000)
    two.take_up()
    settle(one, two, until=lambda: len(one.numbers) == len(two.numbers) == 2)
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    assert not any(each.lost for each in one.revoked)
    two.membership.close()
    settle(one, until=lambda: one.numbers == [0, 1, 2, 3])
