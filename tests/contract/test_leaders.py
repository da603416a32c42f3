"""Three brokers: leaders, followers, and replies to readers that know an older leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest

from protocol.admin.groups import describe_group
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.metadata import Partition
from protocol.config import parse_client
from protocol.errors import ConnectionLost
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m15_describe_groups import DESCRIBE_GROUPS
from tests.conftest import topic_factory
from tests.contract.conftest import FAKE, REAL
from tests.contract.members import GroupMember, new_group, stable
from tests.contract.raw_requests import (
    Row,
    batch,
    end_of_epoch,
    fetch,
    fetch_body,
    list_offset,
    produce,
    values_in,
    written,
)
from tests.support.wait_until import attempts, wait_until

_NO_COORDINATOR_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


@pytest.fixture(scope="module", params=[FAKE, pytest.param(REAL, marks=pytest.mark.kafka(brokers=3))])
def cluster_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def brokers(cluster_kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a cluster of three brokers, with `stop(id)` and `start(id)`."""
    if cluster_kind == REAL:
        yield request.getfixturevalue("kafka")
        return
    with FakeKafka(3, settings={"default.replication.factor": "3"}) as kafka:
        yield kafka


@pytest.fixture(scope="module")
def client(brokers: Any) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": brokers.bootstrap_servers})) as client:
        yield client


@pytest.fixture(scope="module")
def replicated(cluster_kind: str, brokers: Any) -> Iterator[Callable[..., str]]:
    """Yield a function that creates topics, as the fixture `topic` does."""
    yield from topic_factory(brokers) if cluster_kind == REAL else [fake_topics(brokers)]


def fake_topics(kafka: FakeKafka) -> Callable[..., str]:
    def create(partitions: int = 1, replication_factor: int = -1, config: dict[str, str] | None = None) -> str:
        return kafka.create_topic(f"topic-{uuid4().hex}", partitions, replication_factor, config=config).name

    return create


@pytest.fixture(scope="module")
def all_in_sync_topic(replicated: Callable[..., str]) -> str:
    """Return a topic that accepts records only while all replicas are in sync."""
    return replicated(replication_factor=3, config={"min.insync.replicas": "3"})


@pytest.fixture(scope="class")
def topic_with_new_leader(
    brokers: Any, client: Client, replicated: Callable[..., str], all_in_sync_topic: str
) -> Iterator[str]:
    """Yield a topic with two records of epoch 0 and one record of the next leader; the first leader is stopped."""
    name = replicated(replication_factor=3)
    assert written(client, name, b"a", b"b") == 0
    first, _ = client.leader(name, 0)
    brokers.stop(first.node_id)
    try:
        partition = until(
            client, name, lambda partition: partition.leader not in (first.node_id, -1) and len(partition.isr) == 2
        )
        assert partition.leader_epoch >= 1
        assert (set(partition.replicas), set(partition.isr)) == ({1, 2, 3}, {1, 2, 3} - {first.node_id})
        assert written(client, name, b"c") == 2
        yield name
    finally:
        brokers.start(first.node_id)
    until(client, name, lambda partition: len(partition.isr) == 3)


def until(client: Client, name: str, so: Callable[[Partition], bool]) -> Partition:
    """Return the metadata of partition 0 as soon as `so` returns True for it."""
    for _ in attempts(60, 0.05):
        if so(partition := client.metadata([name]).topic(name).partitions[0]):
            return partition
    raise AssertionError(partition)


def ask_broker(client: Client, broker_id: int, api: Any, body: Row) -> Row:
    return client.ask(client.brokers()[broker_id], api, body, client.deadline())


def test_follower_serves_fetches_and_refuses_produce(client: Client, replicated: Callable[..., str]) -> None:
    name = replicated(replication_factor=3)
    written(client, name, b"a")
    leader, partition = client.leader(name, 0)
    follower = next(replica for replica in partition.replicas if replica != leader.node_id)

    def values_of_follower() -> list[bytes | None]:
        body = fetch_body(client, name, {0: 0}, max_wait_ms=100)
        (row,) = ask_broker(client, follower, FETCH, body)["responses"][0]["partitions"]
        assert row["error_code"] == 0
        return values_in(row)

    wait_until(lambda: values_of_follower() == [b"a"], lambda: "the follower did not learn the high watermark")
    topics = [{"topic_id": client.topic(name).topic_id, "partition_data": [{"index": 0, "records": batch(b"b")}]}]
    reply = ask_broker(client, follower, PRODUCE, {"acks": 1, "timeout_ms": 1_000, "topic_data": topics})
    (row,) = reply["responses"][0]["partition_responses"]
    assert (row["error_code"], row["base_offset"]) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert row["current_leader"] == {"leader_id": leader.node_id, "leader_epoch": partition.leader_epoch}
    assert [(broker["node_id"], broker["port"]) for broker in reply["node_endpoints"]] == [
        (leader.node_id, leader.port)
    ]


def test_broker_without_replica_refuses_partition_requests(client: Client, replicated: Callable[..., str]) -> None:
    name = replicated(1, 1)
    leader, partition = client.leader(name, 0)
    assert partition.replicas == (leader.node_id,)
    stranger = next(broker for broker in (1, 2, 3) if broker != leader.node_id)
    reply = ask_broker(client, stranger, FETCH, fetch_body(client, name, {0: 0}))
    (row,) = reply["responses"][0]["partitions"]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert row["current_leader"] == {"leader_id": leader.node_id, "leader_epoch": partition.leader_epoch}
    assert [(broker["node_id"], broker["port"]) for broker in reply["node_endpoints"]] == [
        (leader.node_id, leader.port)
    ]


def test_leaders_are_spread_over_brokers(client: Client, replicated: Callable[..., str]) -> None:
    name = replicated(3, 3)
    assert {partition.leader for partition in client.topic(name).partitions.values()} == {1, 2, 3}


def test_group_has_one_coordinator(client: Client) -> None:
    group = new_group()
    assert describe_group(client, group).state == "Dead"
    coordinator = client.coordinator(group_coordinator(group), client.deadline()).node_id
    for broker in client.brokers():
        (row,) = ask_broker(client, broker, DESCRIBE_GROUPS, {"groups": [group]})["groups"]
        present = broker == coordinator
        assert row["error_code"] == (ErrorCode.GROUP_ID_NOT_FOUND if present else ErrorCode.NOT_COORDINATOR)


class TestNewLeader:
    def test_old_leader_epoch_is_fenced(self, client: Client, topic_with_new_leader: str) -> None:
        partition = client.topic(topic_with_new_leader).partitions[0]
        row = fetch(client, topic_with_new_leader, 0, current_leader_epoch=0)
        assert (row["error_code"], bytes(row["records"] or b"")) == (ErrorCode.FENCED_LEADER_EPOCH, b"")
        assert row["current_leader"] == {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
        listed = list_offset(client, topic_with_new_leader, LATEST, current_leader_epoch=0)
        assert (listed["error_code"], listed["offset"]) == (ErrorCode.FENCED_LEADER_EPOCH, -1)

    def test_only_current_leader_epoch_is_accepted(self, client: Client, topic_with_new_leader: str) -> None:
        epoch = client.topic(topic_with_new_leader).partitions[0].leader_epoch
        assert values_in(fetch(client, topic_with_new_leader, 0, current_leader_epoch=epoch)) == [b"a", b"b", b"c"]
        assert list_offset(client, topic_with_new_leader, LATEST, current_leader_epoch=epoch)["leader_epoch"] == epoch
        assert list_offset(client, topic_with_new_leader, EARLIEST)["leader_epoch"] == 0
        requested: dict[str, Any] = {"current_leader_epoch": epoch + 1}
        assert fetch(client, topic_with_new_leader, 0, **requested)["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_end_offsets_of_epochs_follow_leader_changes(self, client: Client, topic_with_new_leader: str) -> None:
        epoch = client.topic(topic_with_new_leader).partitions[0].leader_epoch
        ends = {each: end_of_epoch(client, topic_with_new_leader, each) for each in (0, epoch, epoch + 1)}
        assert ends == {0: (0, 2), epoch: (epoch, 3), epoch + 1: (-1, -1)}

    def test_fetch_after_diverging_epoch_reports_the_divergence(
        self, client: Client, topic_with_new_leader: str
    ) -> None:
        row = fetch(client, topic_with_new_leader, 3, last_fetched_epoch=0)
        assert (row["error_code"], row["diverging_epoch"]) == (0, {"epoch": 0, "end_offset": 2})
        assert values_in(fetch(client, topic_with_new_leader, 2, last_fetched_epoch=0)) == [b"c"], (
            "both logs agree up to there"
        )

    def test_produce_below_min_insync_replicas_is_refused(
        self, client: Client, all_in_sync_topic: str, topic_with_new_leader: str
    ) -> None:
        until(client, all_in_sync_topic, lambda partition: partition.leader != -1 and len(partition.isr) == 2)
        assert produce(client, all_in_sync_topic, batch(b"a"))["error_code"] == ErrorCode.NOT_ENOUGH_REPLICAS
        assert produce(client, all_in_sync_topic, batch(b"b"), acks=1)["base_offset"] == 0
        assert fetch(client, all_in_sync_topic)["high_watermark"] == 0, (
            "records are not committed while fewer than min.insync.replicas are in sync"
        )


class TestNewCoordinator:
    """The next coordinator loads the group as it was after its newest complete rebalance."""

    @pytest.fixture
    def client(self, brokers: Any) -> Iterator[Client]:
        """Yield another client: its connections to the stopped broker are lost."""
        with Client(parse_client({"bootstrap.servers": brokers.bootstrap_servers})) as client:
            yield client

    @staticmethod
    @contextmanager
    def moved(brokers: Any, client: Client, group: str) -> Iterator[None]:
        """Yield while another broker is the group's coordinator."""
        first = client.coordinator(group_coordinator(group), client.deadline()).node_id
        if isinstance(brokers, FakeKafka):
            brokers.move_coordinator(group, first % 3 + 1)
            client.forget_coordinator(group_coordinator(group))
            yield
            return
        brokers.stop(first)
        try:
            client.forget_coordinator(group_coordinator(group))
            yield
        finally:
            brokers.start(first)

    @staticmethod
    def heartbeat(member: GroupMember) -> int:
        """Return the code of a heartbeat once a coordinator has loaded the group."""
        for _ in attempts(60, 0.05):
            with suppress(ConnectionLost):
                code = member.heartbeat()
                if code not in _NO_COORDINATOR_YET:
                    return code
            member.client.forget_coordinator(group_coordinator(member.group))
        raise AssertionError("no coordinator in time")

    def test_rebalance_that_is_not_complete_is_forgotten(self, brokers: Any, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        assert second.leave() == 0
        assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        with self.moved(brokers, client, first.group):
            assert [self.heartbeat(member) for member in (first, second)] == [0, 0]
            assert bytes(first.sync().result(client.deadline())["assignment"]) == first.member_id.encode()
            assert self.heartbeat(first) == 0

    def test_generation_without_assignment_is_forgotten(self, brokers: Any, client: Client) -> None:
        first, second = stable(client, new_group(), 2)
        before = first.generation
        leader = first if first.leads else second
        reply = leader.send_join()
        follower = second if leader is first else first
        follower.await_rebalance()
        follower.end(follower.send_join())
        leader.end(reply)
        assert (leader.generation, follower.generation) == (before + 1, before + 1)
        with self.moved(brokers, client, first.group):
            assert self.heartbeat(leader) == ErrorCode.ILLEGAL_GENERATION
            assert leader.heartbeat(generation_id=before) == 0
