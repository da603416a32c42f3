"""Members of groups with a real coordinator, in both group protocols."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from protocol import Client, OffsetManager, TopicPartition
from protocol.admin.topics import NewTopic, create_partitions, create_topic, delete_topic
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.group.membership.assignment import TopicSubscription
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.local_kafka.config import version_numbers
from tests.conftest import KAFKA_VERSION, TopicFactory
from tests.protocol.fetch.consuming import client_of
from tests.protocol.group.membership.conftest import NewMember, rebalance
from tests.support.consumer_groups import coordinator_of
from tests.support.soak import SOAK


@pytest.fixture
def client(kafka1: LocalKafka) -> Iterator[Client]:
    with client_of(kafka1) as client:
        yield client


def test_single_member_owns_all_partitions_and_commits_with_its_identity(
    client: Client, kafka1: LocalKafka, topic1: TopicFactory, group: str, new_member: NewMember
) -> None:
    name, owner = topic1(3), None
    owner = new_member(client, name)
    assert "has not joined" in str(owner.membership.rebalance_pending)
    assignment = owner.poll_rebalance(20_000)
    assert assignment.owned == assignment.added == {(name, number) for number in range(3)}
    assert (assignment.pending_reason, owner.membership.rebalance_pending, owner.revoked) == (None, None, [])
    offsets = OffsetManager(client, group)
    offsets.set_member(assignment.member)
    offsets.stage({(name, 1): CommittedOffset(5)}, assignment.member)
    assert offsets.flush(client.deadline())
    offsets.close()
    assert fetch_offsets(client, group, None, client.deadline())[name, 1].offset == 5
    described = kafka1.describe_group(group)
    (row,) = [line.split() for line in described.splitlines() if line.split()[1:3] == [name, "1"]]
    assert row[6:] == [assignment.member.member_id, "/127.0.0.1", "spark-kafka-source"]


@pytest.fixture
def fast_metadata_client(kafka1: LocalKafka) -> Iterator[Client]:
    """Yield a client whose members notice topic changes soon."""
    with client_of(kafka1, metadata_max_age_ms=200) as client:
        yield client


def test_pattern_subscription_follows_new_and_deleted_topics_and_partitions(
    fast_metadata_client: Client, topic1: TopicFactory, new_member: NewMember
) -> None:
    first = topic1(1)
    pattern = TopicSubscription(pattern=re.compile(f"{first}.*"))
    owner, two = (new_member(fast_metadata_client, subscription=pattern) for _ in range(2))
    both = (owner, two)

    def owned() -> set[TopicPartition]:
        return set(owner.membership.owned | two.membership.owned)

    rebalance(*both, until=lambda: owned() == {(first, 0)})
    create_partitions(fast_metadata_client, first, 2)
    rebalance(*both, until=lambda: owned() == {(first, 0), (first, 1)})
    create_topic(fast_metadata_client, NewTopic(f"{first}-more", 1))
    rebalance(*both, until=lambda: owned() == {(first, 0), (first, 1), (f"{first}-more", 0)})
    delete_topic(fast_metadata_client, f"{first}-more")
    rebalance(*both, until=lambda: owned() == {(first, 0), (first, 1)})


@pytest.mark.parametrize(("returns", "keeps"), [("leader", True), ("leader", False), ("follower", False)])
def test_static_member_that_returns_with_another_topic_gets_its_partitions(
    client: Client, topic1: TopicFactory, new_member: NewMember, returns: str, keeps: bool
) -> None:
    """Also with a topic that it keeps; a follower of the classic protocol then waits for the next rebalance."""
    if keeps and version_numbers(KAFKA_VERSION) < (3, 2):
        pytest.skip("a leader that returns assigns partitions since Kafka 3.2 (KIP-814)")
    shared, new = topic1(4), topic1(2)
    first, two = (new_member(client, shared, group_instance_id=instance_id) for instance_id in "ab")
    first.poll_rebalance(20_000)  # it leads
    rebalance(first, two, until=lambda: len(first.numbers) == len(two.numbers) == 2)
    owner, stays = (first, two) if returns == "leader" else (two, first)
    owner.membership.close()
    topics = [shared, new] if keeps else [new]
    again = new_member(client, *topics, group_instance_id=owner.membership.member.group_instance_id)

    def is_assigned() -> bool:
        names = [name for name, _ in again.membership.owned]
        return names.count(new) == 2 and set(names) <= set(topics)

    rebalance(again, stays, until=is_assigned)


@pytest.mark.parametrize("protocol", ["classic"])
def test_group_changes_from_eager_to_cooperative_member_by_member(
    client: Client, topic1: TopicFactory, new_member: NewMember
) -> None:
    """KIP-429: first all members have both strategies, then each restarts with the cooperative one alone."""
    name = topic1(4)
    both = {"partition_assignment_strategy": "range,cooperative-sticky"}
    alone = {"partition_assignment_strategy": "cooperative-sticky"}
    owner, two = new_member(client, name, **both), new_member(client, name, **both)
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)
    two.membership.close()
    two = new_member(client, name, **alone)
    rebalance(owner, two, until=lambda: sorted(owner.numbers + two.numbers) == [0, 1, 2, 3] and len(two.numbers) == 2)
    owner.membership.close()
    rebalance(two, until=lambda: len(two.numbers) == 4)
    two.revoked.clear()
    owner = new_member(client, name, **alone)
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)
    assert [len(revocation.partitions) for revocation in two.revoked] == [2], (
        "kept partitions are not revoked temporarily"
    )


@pytest.fixture
def replicated_client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as client:
        yield client


@pytest.mark.soak
@pytest.mark.parametrize(
    ("protocol", "how"),
    [("classic", "killed"), ("consumer", "dark"), *([("classic", "dark"), ("consumer", "killed")] if SOAK else [])],
    indirect=["protocol"],
)
def test_member_survives_a_killed_coordinator(
    replicated_client: Client, kafka: LocalKafka, topic: TopicFactory, group: str, new_member: NewMember, how: str
) -> None:
    """Slow: the group's new coordinator is elected and loads its partition; a dark one is noticed by a time-out."""
    name, client = topic(4, replication_factor=3), replicated_client
    owner, two = new_member(client, name), new_member(client, name)
    owner.poll_rebalance(20_000)
    rebalance(owner, two, until=lambda: len(owner.numbers) == len(two.numbers) == 2)
    broker = coordinator_of(kafka, group)
    (kafka.kill if how == "killed" else kafka.pause)(broker)
    try:
        key, member = (name, owner.numbers[0]), owner.membership.member
        commit_offsets(client, group, {key: CommittedOffset(7)}, client.deadline(25_000), member)
        assert fetch_offsets(client, group, None, client.deadline())[key].offset == 7
        rebalance(owner, two, until=lambda: sorted(owner.numbers + two.numbers) == [0, 1, 2, 3])
        assert not any(revocation.lost for revocation in owner.revoked + two.revoked)
    finally:
        (kafka.start if how == "killed" else kafka.resume)(broker)
