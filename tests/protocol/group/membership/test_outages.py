"""A killed or unreachable coordinator: members keep their partitions, and commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol import Client
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, rebalance
from tests.support.consumer_groups import coordinator_of
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

PARTITIONS = [0, 1, 2, 3]


@pytest.fixture
def client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as client:
        yield client


@pytest.mark.parametrize(
    ("protocol", "how"),
    [("classic", "killed"), ("consumer", "dark"), *([("classic", "dark"), ("consumer", "killed")] if SOAK else [])],
    indirect=["protocol"],
)
def test_member_survives_a_killed_coordinator(
    client: Client, kafka: LocalKafka, topic: TopicFactory, group: str, new_member: NewMember, how: str
) -> None:
    """Slow: the group's new coordinator is elected and loads its partition; a dark one is noticed by a time-out."""
    name = topic(len(PARTITIONS), replication_factor=3)
    owner, two = new_member(client, name), new_member(client, name)
    owner.poll_rebalance(20_000)
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)
    broker = coordinator_of(kafka, group)
    (kafka.kill if how == "killed" else kafka.pause)(broker)
    try:
        key, member = (name, owner.numbers[0]), owner.membership.member
        commit_offsets(client, group, {key: CommittedOffset(7)}, client.deadline(25_000), member)
        assert fetch_offsets(client, group, None, client.deadline())[key].offset == 7
        rebalance(owner, two, until=lambda: sorted(owner.numbers + two.numbers) == PARTITIONS)
        assert not any(revocation.lost for revocation in owner.revoked + two.revoked)
    finally:
        (kafka.start if how == "killed" else kafka.resume)(broker)
