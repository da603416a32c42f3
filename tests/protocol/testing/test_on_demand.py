"""Faults of the model that a real Kafka does not produce on demand. `tests/contract` covers all other behaviour."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from protocol.admin.topics import NewTopic, create_topic
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.config import parse_client, parse_consumer
from protocol.errors import BrokerError, ConnectionLost, DeadlineExceeded
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m10_find_coordinator import TRANSACTION
from tests.contract.members import GroupMember, stable
from tests.contract.raw_requests import batch, fetch, list_offset, produce, values_in, written
from tests.contract.transactions import TransactionalProducer
from tests.protocol.fetch.consuming import records
from tests.support.wait_until import wait_until

ETL = group_coordinator("etl")


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    """Yield three brokers; the first leads the only partition of `orders`, and all have a replica."""
    with FakeKafka(3) as fake:
        fake.create_topic("orders", 1, 3)
        yield fake


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with client_of(fake) as client:
        yield client


def client_of(fake: FakeKafka, address: str | None = None) -> Client:
    quick = {"retry.backoff.ms": 10, "reconnect.backoff.ms": 0}
    return Client(parse_client({"bootstrap.servers": address or fake.bootstrap_servers, **quick}))


def times_asked(fake: FakeKafka, name: str) -> int:
    return [api for api, _, _ in fake.requests].count(name)


class TestFaults:
    def test_next_requests_of_an_api_are_refused(self, fake: FakeKafka, client: Client) -> None:
        fake.refuse(LIST_OFFSETS, ErrorCode.NOT_LEADER_OR_FOLLOWER, 2)
        assert list_offsets(client, {("orders", 0): LATEST})["orders", 0].offset == 0
        assert times_asked(fake, "ListOffsets") == 3
        fake.refuse(OFFSET_COMMIT, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2)
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(5)}, client.deadline())
        assert times_asked(fake, "OffsetCommit") == 3

    def test_refusal_is_limited_to_its_partition_and_broker(self, fake: FakeKafka, client: Client) -> None:
        fake.refuse(PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR, partition=("other", 0))
        fake.refuse(PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR, broker=2)
        assert produce(client, "orders", batch(b"a"))["error_code"] == 0
        fake.refuse(PRODUCE, ErrorCode.KAFKA_STORAGE_ERROR, broker=1, partition=("orders", 0))
        assert produce(client, "orders", batch(b"b"))["error_code"] == ErrorCode.KAFKA_STORAGE_ERROR
        assert produce(client, "orders", batch(b"b"))["base_offset"] == 1, "the broker refuses once, without writing"

    def test_requests_and_replies_are_lost(self, fake: FakeKafka, client: Client) -> None:
        fake.lose_requests(PRODUCE)
        with pytest.raises(ConnectionLost):
            written(client, "orders", b"a")
        assert fake.log("orders").end_offset == 0
        fake.lose_replies(PRODUCE)
        with pytest.raises(ConnectionLost):
            written(client, "orders", b"a")
        assert fake.log("orders").end_offset == 1

    def test_replies_are_edited(self, fake: FakeKafka, client: Client) -> None:
        fake.edit_replies(FETCH, lambda body: {**body, "throttle_time_ms": 700}, 1)
        leader, _ = client.leader("orders", 0)
        replies = [client.ask(leader, FETCH, {"max_wait_ms": 0}, client.deadline()) for _ in "12"]
        assert [reply["throttle_time_ms"] for reply in replies] == [700, 0]

    def test_replies_come_from_a_handler_of_the_test(self, fake: FakeKafka, client: Client) -> None:
        host, port = fake.addresses[1]
        brokers = [{"node_id": 1, "host": host, "port": port}]
        fake.handlers[METADATA] = lambda body, version: {"cluster_id": "fake", "controller_id": 7, "brokers": brokers}
        assert client.metadata([]).controller_id == 7
        del fake.handlers[METADATA]
        assert client.metadata([]).controller_id == 1


class TestBrokers:
    def test_stopped_broker_refuses_connections_and_loses_leadership(self, fake: FakeKafka, client: Client) -> None:
        written(client, "orders", b"a")
        fake.stop(1)
        host, port = fake.addresses[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), 5)
        client.expire_metadata(["orders"])
        leader, partition = client.leader("orders", 0)
        assert (leader.node_id, partition.leader_epoch, partition.isr) == (2, 1, (2, 3))
        assert values_in(fetch(client, "orders")) == [b"a"]
        fake.start(1)
        assert client.metadata(["orders"]).leader("orders", 0)[1].isr == (2, 3, 1)

    def test_silent_broker_is_fenced_after_session_timeout(self) -> None:
        clock = ManualClock()
        with FakeKafka(2, clock=clock) as fake, client_of(fake) as client:
            fake.create_topic("orders", 1, 2)
            assert client.leader("orders", 0)[0].node_id == 1
            fake.silence(1)
            with pytest.raises(DeadlineExceeded), client_of(fake, fake.address(1)) as lonely:
                lonely.metadata(["orders"], lonely.deadline(200))
            clock.advance(8)
            (row,) = fake.ask(2, METADATA, {"topics": [{"name": "orders"}]})["topics"]
            assert row["partitions"][0]["leader_id"] == 1
            clock.advance(2)
            assert client.metadata(["orders"]).leader("orders", 0)[0].node_id == 2

    def test_unreplicated_records_are_lost_in_unclean_election(self, fake: FakeKafka, client: Client) -> None:
        """An unclean election: the new leader is a follower that lagged."""
        written(client, "orders", b"a")
        fake.silence(2), fake.silence(3)
        topics = [
            {"topic_id": client.topic("orders").topic_id, "partition_data": [{"index": 0, "records": batch(b"b")}]}
        ]
        fake.ask(1, PRODUCE, {"acks": 1, "timeout_ms": 0, "topic_data": topics})
        assert (fake.log("orders").end_offset, list_offset(client, "orders", LATEST)["offset"]) == (2, 1)
        fake.isolate(1), fake.move_leader("orders", 0, 2, isr=[2]), fake.silence(2, False)
        with client_of(fake, fake.address(2)) as second:
            assert written(second, "orders", b"c") == 1
        assert fake.log("orders", broker_id=1).end_offset == 2
        fake.isolate(1, False)
        assert fake.log("orders", broker_id=1) == fake.log("orders")
        assert values_in(fetch(client, "orders")) == [b"a", b"c"]

    def test_isolated_leader_keeps_answering_in_its_old_epoch(self, fake: FakeKafka, client: Client) -> None:
        written(client, "orders", b"a")
        fake.isolate(1)
        fake.move_leader("orders", 0, 2)
        with client_of(fake, fake.address(1)) as behind, client_of(fake, fake.address(2)) as ahead:
            assert list_offset(ahead, "orders", LATEST)["leader_epoch"] == 1
            assert list_offset(behind, "orders", LATEST)["leader_epoch"] == 0
            ahead_of_it = list_offset(behind, "orders", LATEST, current_leader_epoch=1)
            assert ahead_of_it["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH

    def test_new_topic_is_unknown_to_an_isolated_broker(self, fake: FakeKafka, client: Client) -> None:
        fake.isolate(2)
        fake.create_topic("bills")
        bills = {"topics": [{"name": "bills"}]}
        codes = [fake.ask(broker, METADATA, bills)["topics"][0]["error_code"] for broker in (1, 2)]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        fake.isolate(2, False)
        assert fake.ask(2, METADATA, bills)["topics"][0]["error_code"] == 0

    def test_partition_without_a_leader_gets_one(self, fake: FakeKafka, client: Client) -> None:
        fake.move_leader("orders", 0, -1)
        with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
            client.leader("orders", 0)
        fake.move_leader("orders", 0, 3)
        assert client.leader("orders", 0)[0].node_id == 3

    def test_topic_is_auto_created_by_metadata(self) -> None:
        with FakeKafka(settings={"auto.create.topics.enable": "true"}) as fake, client_of(fake) as client:
            assert client.metadata(["new"]).topics["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            output = [client.metadata(["new"], create=True).topics["new"].error_code for _ in "12"]
            assert output == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
            with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
                create_topic(client, NewTopic("new", 1))


class TestCoordinators:
    def test_moved_coordinator_keeps_committed_offsets(self, fake: FakeKafka, client: Client) -> None:
        offsets = {("orders", 0): CommittedOffset(5)}
        commit_offsets(client, "etl", offsets, client.deadline())
        before = client.coordinator(ETL, client.deadline()).node_id
        fake.move_coordinator("etl", before % 3 + 1)
        assert fetch_offsets(client, "etl", offsets, client.deadline()) == offsets
        assert client.coordinator(ETL, client.deadline()).node_id == before % 3 + 1

    def test_pending_join_is_refused_when_the_coordinator_moves(self, fake: FakeKafka, client: Client) -> None:
        (first,) = stable(client, "etl")
        waiting = GroupMember(client, "etl").begin()
        first.await_rebalance()
        fake.move_coordinator("etl", client.coordinator(ETL, client.deadline()).node_id % 3 + 1)
        assert waiting.result(client.deadline())["error_code"] == ErrorCode.NOT_COORDINATOR
        assert first.heartbeat() == ErrorCode.NOT_COORDINATOR
        client.forget_coordinator(ETL)
        first.end(first.send_join())

    def test_group_rebalances_on_demand(self, fake: FakeKafka, client: Client) -> None:
        (member,) = stable(client, "etl")
        fake.rebalance("etl")
        assert member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        member.end(member.send_join())
        assert member.generation == 2

    def test_members_are_removed_when_the_clock_passes_session_timeout(self) -> None:
        clock = ManualClock()
        with FakeKafka(clock=clock) as fake, client_of(fake) as client:
            (member,) = stable(client, "etl", session_timeout_ms=30_000)
            clock.advance(29)
            assert member.heartbeat() == 0
            clock.advance(31)
            assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID

    def test_first_rebalance_waits_for_more_members(self) -> None:
        clock = ManualClock()
        settings = {"group.initial.rebalance.delay.ms": "3000"}
        with FakeKafka(clock=clock, settings=settings) as fake, client_of(fake) as client:
            first, second = GroupMember(client, "etl"), GroupMember(client, "etl")
            replies = [first.begin(), second.begin()]
            wait_until(lambda: len(fake.groups.groups["etl"].members) == 2)
            assert not any(reply.done for reply in replies)
            clock.advance(4)
            assert (first.end(replies[0]).generation, second.end(replies[1]).generation) == (1, 1)

    def test_delayed_markers_keep_the_transaction_prepared(self, fake: FakeKafka, client: Client) -> None:
        producer = TransactionalProducer(client).init()
        producer.send("orders", b"a")
        fake.hold_markers()
        producer.end(commit=True)
        assert list_offset(client, "orders", LATEST, committed=True)["offset"] == 0
        assert producer.try_send("orders", b"b") == ErrorCode.CONCURRENT_TRANSACTIONS
        fake.hold_markers(False)
        assert list_offset(client, "orders", LATEST, committed=True)["offset"] == 2
        assert producer.try_send("orders", b"b") == 0

    def test_marker_waits_for_all_in_sync_replicas(self, fake: FakeKafka, client: Client) -> None:
        producer = TransactionalProducer(client).init()
        producer.send("orders", b"a")
        busy = (fake.leader("orders", 0), fake.coordinator(TRANSACTION, producer.transactional_id))
        follower = next(broker for broker in fake.brokers if broker not in busy)
        fake.silence(follower)
        producer.end(commit=True)
        assert fake.log("orders").end_offset == 1
        fake.silence(follower, False)
        assert list_offset(client, "orders", LATEST, committed=True)["offset"] == 2

    def test_moved_transaction_coordinator_completes_the_transaction(self, fake: FakeKafka, client: Client) -> None:
        producer = TransactionalProducer(client).init()
        producer.send("orders", b"a")
        before = fake.coordinator(TRANSACTION, producer.transactional_id)
        fake.move_coordinator(producer.transactional_id, before % 3 + 1, TRANSACTION)
        producer.end(commit=True)
        assert list_offset(client, "orders", LATEST, committed=True)["offset"] == 2


def test_log_is_written_byte_for_byte(fake: FakeKafka, client: Client) -> None:
    fake.write("orders", 0, records(5, 10, epoch=0) + records(20, 3, epoch=0))
    result = list_offsets(client, {("orders", 0): EARLIEST})["orders", 0].offset
    assert (result, list_offset(client, "orders", LATEST)["offset"]) == (5, 23)
    ranges = [Range("orders", 0, 5, 23)]
    offsets = [
        value for _, rows in BoundedReader(client, parse_consumer({}), ranges) for value in rows["offset"].to_pylist()
    ]
    assert offsets == [*range(5, 15), *range(20, 23)]


def test_cluster_answers_without_sockets() -> None:
    fake = Cluster()
    fake.create_topic("orders")
    reply = fake.ask(1, METADATA, {"topics": None})
    assert [row["name"] for row in reply["topics"]] == ["orders"]
