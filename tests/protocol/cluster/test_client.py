"""The client and the retry loop: bootstrap, refresh, back-off and error texts; no real broker."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from protocol.base.clock import Backoff, Clock, Deadline
from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.cluster.client import CONTROL, PRODUCE, Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.dispatch import retrying
from protocol.cluster.metadata import Broker, Metadata, NewLeader
from protocol.config import ClientConfig, parse_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import (
    BrokerError,
    ConfigurationError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    FrameTooLarge,
    KafkaError,
    RequestTimedOut,
)
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import LATEST
from protocol.net.connection import Connection
from protocol.net.readiness import ready
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.listener import kept_port
from protocol.testing.fake_kafka.server import FakeKafka, _BrokerListener
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from tests.support.no_broker import no_broker
from tests.support.wait_until import wait_until

T = TypeVar("T")


@pytest.fixture
def kafka_of_two() -> Iterator[FakeKafka]:
    """Yield two brokers with replicas of orders-0; the first leads it."""
    with FakeKafka(2) as kafka:
        kafka.create_topic("orders", 1, 2)
        yield kafka


def client_of(kafka: FakeKafka, **settings: int) -> Client:
    """Return a client that knows only the first broker."""
    return Client(ClientConfig((kafka.addresses[1],), **settings))


def test_metadata_closes_idle_connections_to_a_former_address_of_a_broker(kafka_of_two: FakeKafka) -> None:
    clock = ManualClock()
    with Client(ClientConfig((kafka_of_two.addresses[1],)), clock) as client:
        moving = client.metadata(None).brokers[2]
        connection = client.connection(moving, "control", client.deadline())
        kafka_of_two.move(2)
        for _ in range(2):  # the first request may still try the former address
            clock.advance(10)
            assert client.metadata(None).brokers[2] != moving
        assert connection.closed
        assert (moving.host, moving.port) not in client._addresses


def test_refresh_brokers_continues_at_new_addresses_of_all_brokers(kafka_of_two: FakeKafka) -> None:
    with client_of(kafka_of_two) as client, Consumer(client) as consumer:
        consumer.consume_partitions({("orders", 0): 0}, client.deadline())
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(0)}, client.deadline())
        for broker_id in (1, 2):
            kafka_of_two.move(broker_id)
        brokers = client.refresh_brokers(kafka_of_two.bootstrap_servers)
        addresses = {node_id: f"{broker.host}:{broker.port}" for node_id, broker in brokers.items()}
        assert addresses == {node_id: kafka_of_two.address(node_id) for node_id in (1, 2)}
        kafka_of_two.produce("orders", b"after", partition=0)
        arrived = None
        until_s = time.monotonic() + 60
        while arrived is None and time.monotonic() < until_s:
            arrived = consumer.poll(1_000)
        assert arrived is not None
        assert arrived[1].column("value").to_pylist() == [b"after"]
        coordinator = client.coordinator(group_coordinator("etl"), client.deadline())
        assert f"{coordinator.host}:{coordinator.port}" == addresses[coordinator.node_id]


def test_refresh_brokers_refuses_another_cluster_and_unreachable_servers(kafka_of_two: FakeKafka) -> None:
    with FakeKafka() as kafka, client_of(kafka_of_two) as client:
        client.metadata([])
        kafka.cluster_id = "other"
        with pytest.raises(ConfigurationError, match="belong to cluster other, this client to cluster fake"):
            client.refresh_brokers([kafka.bootstrap_servers])
        with pytest.raises(DeadlineExceeded, match=r"bootstrap\.servers=127\.0\.0\.1:1\)"):
            client.refresh_brokers("127.0.0.1:1", client.deadline(300))
        with pytest.raises(ConfigurationError):
            client.refresh_brokers("no port")
        assert client.config.bootstrap_servers == (kafka_of_two.addresses[1],)
        assert client.topic("orders").partitions


def test_broker_of_another_cluster_at_a_known_address_is_disconnected_and_named(kafka_of_two: FakeKafka) -> None:
    with client_of(kafka_of_two) as client:
        wrong = client.metadata(None).brokers[2]
        connections = [client.connection(wrong, purpose, client.deadline()) for purpose in (CONTROL, PRODUCE)]
        kafka_of_two.edit_replies("Metadata", lambda body: {**body, "cluster_id": "other", "topics": []}, broker=2)
        for _ in range(20):
            client.expire_metadata(["orders"])
            assert client.topic("orders").partitions
        assert client.ids_at_brokers(["orders"], client.deadline())["orders"]
        assert all(connection.closed for connection in connections)
        with pytest.raises(
            ConnectFailed, match=f"{wrong.host}:{wrong.port}.* belongs to cluster other, this client to"
        ):
            client.ask(wrong, METADATA, {"topics": []}, client.deadline())
        kafka_of_two.edit_replies("Metadata", lambda body: {**body, "cluster_id": "other"}, broker=1)
        with pytest.raises(DeadlineExceeded, match=f"{wrong.host}:{wrong.port}.* cluster other, this .* cluster fake"):
            client.metadata(None, client.deadline(3_000))
        kafka_of_two.clear_faults()
        kafka_of_two.edit_replies("Metadata", lambda body: {**body, "cluster_id": None})
        assert client.metadata(None).brokers.keys() == {1, 2}


def test_another_cluster_at_the_address_of_a_leader_and_coordinator_gets_no_request(kafka_of_two: FakeKafka) -> None:
    with FakeKafka() as kafka, client_of(kafka_of_two) as client, Producer(client) as producer:
        kafka.cluster_id = "other"
        kafka.create_topic("orders")
        kafka_of_two.move_coordinator("etl", 1)
        broker, _ = client.leader("orders", 0)
        assert client.coordinator(group_coordinator("etl"), client.deadline()) == broker
        kafka_of_two.move(1)
        kafka.listeners[2] = _BrokerListener(kafka, 1, broker.port)
        assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(1)}, client.deadline())
        assert fetch_offsets(client, "etl", [("orders", 0)], client.deadline())["orders", 0].offset == 1
        assert {kind for kind, *_ in kafka.requests} == {"ApiVersions"}
        assert kafka_of_two.committed_offsets("etl") == {("orders", 0): 1}


def test_another_broker_of_the_cluster_is_refused_but_not_at_a_bootstrap_address(kafka_of_two: FakeKafka) -> None:
    with client_of(kafka_of_two) as client:
        first, second = (client.metadata(None).brokers[node_id] for node_id in (1, 2))
        for broker in (first, second, replace(first, node_id=-1)):
            client.connection(broker, PRODUCE, client.deadline())
        with pytest.raises(ConnectFailed, match=f"{first.host}:{first.port}: this is not broker 2 of cluster fake"):
            client.connection(replace(first, node_id=2), PRODUCE, client.deadline())


def test_client_continues_after_all_brokers_have_swapped_their_addresses(kafka_of_two: FakeKafka) -> None:
    bootstrap_server = _BrokerListener(kafka_of_two, 1)
    with Client(ClientConfig(((kafka_of_two.host, bootstrap_server.port),))) as client, Producer(client) as producer:
        client.leader("orders", 0)
        bootstrap_server.close()
        first, second = kafka_of_two.addresses.values()
        kafka_of_two.addresses.update({1: second, 2: first})
        for listener in kafka_of_two.listeners.values():
            listener.close()
        for node_id, (_, port) in kafka_of_two.addresses.items():
            kafka_of_two.listeners[node_id] = _BrokerListener(kafka_of_two, node_id, port)
        assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
        brokers = client.brokers()
        assert {node_id: (broker.host, broker.port) for node_id, broker in brokers.items()} == {1: second, 2: first}


def test_rebootstrap_error_makes_the_client_ask_the_bootstrap_servers(kafka_of_two: FakeKafka) -> None:
    code = ErrorCode.REBOOTSTRAP_REQUIRED
    with client_of(kafka_of_two) as client:
        second = client.metadata(None).brokers[2]
        connection = client.connection(second, CONTROL, client.deadline())
        kafka_of_two.edit_replies("Metadata", lambda body: {**body, "error_code": code, "brokers": []}, broker=2)
        with pytest.raises(ConnectFailed, match="Metadata: REBOOTSTRAP_REQUIRED"):
            client.ask(second, METADATA, {"topics": []}, client.deadline())
        assert connection.closed
        assert {(broker.host, broker.port) for broker in client._candidates()} == {kafka_of_two.addresses[1]}
        assert client.leader("orders", 0)[0].node_id in (1, 2)


def test_writable_partitions_are_those_with_a_leader_and_offline_replicas_are_named(kafka_of_two: FakeKafka) -> None:
    kafka_of_two.create_topic("alone", 2, 1)
    with client_of(kafka_of_two) as client:
        topic = client.topic("alone")
        assert (topic.writable_partitions, topic.partitions[1].offline_replicas) == ((0, 1), ())
        kafka_of_two.stop(topic.partitions[1].leader)
        after = client.metadata(["alone"]).topics["alone"]
        assert after.writable_partitions == (0,)
        assert after.partitions[1].offline_replicas == topic.partitions[1].replicas


def test_two_dead_bootstrap_addresses_of_three_do_no_harm(kafka_of_two: FakeKafka) -> None:
    with kept_port() as first, kept_port() as second:
        servers = (first.getsockname(), kafka_of_two.addresses[1], second.getsockname())
        for _ in range(5):
            with Client(ClientConfig(bootstrap_servers=servers)) as client:
                assert client.leader("orders", 0)[0].port == kafka_of_two.addresses[1][1]


def test_unreachable_brokers_are_named_with_the_option_after_the_deadline() -> None:
    with kept_port() as first, kept_port() as second:
        servers = first.getsockname(), second.getsockname()
        with Client(ClientConfig(bootstrap_servers=servers)) as client, pytest.raises(DeadlineExceeded) as caught:
            client.metadata(["orders"], client.deadline(700))
    assert isinstance(caught.value.__cause__, ConnectFailed)
    for host, port in servers:
        assert f"{host}:{port}" in str(caught.value)
    assert "(bootstrap.servers=" in str(caught.value)
    assert "attempt" in str(caught.value)


def test_long_wait_for_brokers_logs_one_warning_with_addresses(caplog: pytest.LogCaptureFixture) -> None:
    with kept_port() as closed_port:
        host, port = closed_port.getsockname()
        client = Client(ClientConfig(bootstrap_servers=((host, port),)), ManualClock())
        for seconds, warnings in ((9, 0), (240, 1)):
            with caplog.at_level(logging.WARNING), pytest.raises(DeadlineExceeded):
                client.metadata(["orders"], client.deadline(seconds * 1_000))
            assert len([words for words in caplog.messages if f"{host}:{port}" in words]) == warnings
    assert f"no broker could be reached (bootstrap.servers={host}:{port})" in caplog.text
    assert "s more" in caplog.text


QUESTIONS: dict[str, Callable[[Client, Deadline], object]] = {
    "metadata": lambda client, deadline: client.metadata(["orders"], deadline),
    "leaders": lambda client, deadline: list_offsets(client, {("orders", 0): LATEST}, deadline=deadline),
    "coordinator": lambda client, deadline: fetch_offsets(client, "etl", None, deadline),
    "any broker": lambda client, deadline: client.retrying(
        "x", lambda: client.ask_any(METADATA, {"topics": [], "allow_auto_topic_creation": False}, deadline), deadline
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_client_without_any_reply_gives_up_after_30_s(question: str) -> None:
    clock = ManualClock()
    with (
        kept_port() as closed_port,
        Client(ClientConfig(bootstrap_servers=(closed_port.getsockname(),)), clock) as client,
    ):
        for _ in range(2):
            begun_s = clock.now_s()
            with pytest.raises(DeadlineExceeded, match=r"check bootstrap\.servers and security\.protocol"):
                QUESTIONS[question](client, client.deadline(240_000))
            assert 25 < clock.now_s() - begun_s <= 30


@pytest.mark.parametrize("question", QUESTIONS)
def test_client_with_an_earlier_reply_waits_until_the_callers_deadline(question: str) -> None:
    clock = ManualClock()
    with FakeKafka(1) as kafka, Client(ClientConfig((kafka.addresses[1],)), clock) as client:
        client.metadata([])
        kafka.stop(1)
        begun_s = clock.now_s()
        with pytest.raises(DeadlineExceeded) as failed:
            QUESTIONS[question](client, client.deadline(240_000))
        assert 230 < clock.now_s() - begun_s <= 240
        assert "security.protocol" not in str(failed.value)
        kafka.start(1)


def test_partition_without_a_leader_is_retried_until_it_has_one(kafka_of_two: FakeKafka) -> None:
    kafka_of_two.move_leader("orders", 0, -1)

    def elect(body: dict[str, Any]) -> None:
        if len(kafka_of_two.request_bodies(METADATA)) == 3:
            kafka_of_two.move_leader("orders", 0, 2)

    kafka_of_two.before[METADATA] = elect
    with client_of(kafka_of_two, retry_backoff_ms=1) as client:
        broker, _ = client.retrying(
            "leader", lambda: client.leader("orders", 0), client.deadline(5000), topics=["orders"]
        )
    assert broker.node_id == 2
    assert len(kafka_of_two.request_bodies(METADATA)) == 3


def test_older_leader_epoch_does_not_replace_a_newer_one(kafka_of_two: FakeKafka) -> None:
    """A broker with older metadata may answer, too."""
    kafka_of_two.isolate(1)
    kafka_of_two.move_leader("orders", 0, 2)
    expected = {"topics": [{"name": "orders"}]}
    old, new = (Metadata.from_reply(kafka_of_two.ask(broker, METADATA, expected)) for broker in (1, 2))
    assert [metadata.topics["orders"].partitions[0].leader for metadata in (old, new)] == [1, 2]
    assert new.updated_by(old).topics["orders"].partitions[0].leader == 2
    assert old.updated_by(new).topics["orders"].partitions[0].leader == 2


@pytest.mark.parametrize(
    ("field", "value", "leader"),
    [(None, None, 2), ("leader_epoch", 0, 1), ("topic_id", b"another topic id", 1), ("partition", 1, 1)],
)
def test_leader_named_in_a_reply_replaces_an_older_one_only(
    kafka_of_two: FakeKafka, field: str | None, value: object, leader: int
) -> None:
    from_reply = Metadata.from_reply(kafka_of_two.ask(1, METADATA, {"topics": [{"name": "orders"}]}))
    named = NewLeader("orders", from_reply.topics["orders"].topic_id, 0, 7, Broker(2, "broker-2", 9092))
    snapshot = from_reply.with_leaders([named if field is None else replace(named, **{field: value})])
    broker, partition = snapshot.leader("orders", 0)
    assert (broker.node_id, partition.leader_epoch) == ((2, 7) if leader == 2 else (1, 0))
    assert broker.host == ("broker-2" if leader == 2 else "127.0.0.1")


@pytest.mark.timeout(30)
def test_moved_leader_named_in_replies_is_used_at_once(kafka_of_two: FakeKafka) -> None:
    """KIP-951: producers and consumers wait for no back-off and no metadata."""
    with (
        client_of(kafka_of_two, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as client,
        Producer(client) as producer,
        KafkaConsumer(client, {"group.id": "etl", "auto.offset.reset": "earliest"}) as consumer,
    ):
        consumer.assign([("orders", 0)])
        for count, leader in enumerate((1, 2, 1), start=1):
            kafka_of_two.move_leader("orders", 0, leader)
            lookups = len(kafka_of_two.request_bodies(METADATA))
            producer.send("orders", b"value").result(10)
            wait_until(lambda: consumer.poll(100))
            rows = BoundedReader(client, parse_consumer({}), [Range("orders", 0, 0, count)])
            assert sum(batch.num_rows for _, batch in rows) == count
            assert count == 1 or len(kafka_of_two.request_bodies(METADATA)) == lookups


def retried(
    label: str,
    attempt: Callable[[], T],
    clock: Clock,
    refreshed: list[Refresh] | None = None,
    timeout_ms: float = 5_000,
) -> T:
    """Run the retry loop; add the kinds of refreshed metadata to `refreshed`."""
    kinds = [] if refreshed is None else refreshed
    return retrying(
        label,
        attempt,
        deadline=Deadline.after_ms(timeout_ms, clock),
        backoff=Backoff(100, 1000),
        refresh=lambda error, kind: kinds.append(kind),
    )


def test_retry_loop_backs_off_refreshes_and_stops_at_the_deadline() -> None:
    clock = ManualClock()
    refreshed: list[Refresh] = []

    def fail() -> None:
        raise broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Fetch of orders-0", topic="orders")

    with pytest.raises(DeadlineExceeded, match=r"Fetch did not succeed in .* attempt\(s\); the last one: .*orders-0"):
        retried("Fetch", fail, clock, refreshed)
    assert set(refreshed) == {Refresh.METADATA}
    assert clock.slept[0] < clock.slept[1] < clock.slept[2]
    assert all(wait <= 1.2 for wait in clock.slept)
    assert clock.at_s <= 5.0


def test_non_retriable_error_is_raised_at_once() -> None:
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        raise broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Metadata of orders")

    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        retried("Metadata", fail, ManualClock())
    assert attempts == [1]


def test_lost_connection_is_retried() -> None:
    failures: list[KafkaError] = [ConnectionLost("gone"), ConnectionLost("gone again")]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert retried("Fetch", attempt, ManualClock()) == "done"


def test_concurrent_transactions_error_is_retried_soon() -> None:
    clock, ended = ManualClock(), iter([False] * 4 + [True])

    def attempt() -> None:
        if not next(ended):
            raise broker_error(ErrorCode.CONCURRENT_TRANSACTIONS, "AddPartitionsToTxn")

    retried("AddPartitionsToTxn", attempt, clock)
    assert clock.slept == pytest.approx([0.02, 0.04, 0.06, 0.08])


def silent_address() -> socket.socket:
    """Return a socket that accepts connections and never replies, like a stopped process; `getsockname()` has its
    address."""
    return socket.create_server(("127.0.0.1", 0), backlog=50)


class TestBadBootstrapAddresses:
    @pytest.mark.parametrize(
        "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b"\0\0\0\x06no Kafka"]
    )
    def test_peer_that_is_no_broker_does_no_harm(self, kafka_of_two: FakeKafka, greeting: bytes) -> None:
        with no_broker(greeting) as wrong:
            servers = (wrong.addresses[1], kafka_of_two.addresses[1])
            for _ in range(8):
                with Client(ClientConfig(servers)) as client:
                    assert client.leader("orders", 0)[0].port == kafka_of_two.addresses[1][1]

    @pytest.mark.parametrize("host", ["a..b", "x" * 64])
    def test_host_name_that_cannot_be_encoded_does_no_harm(self, kafka_of_two: FakeKafka, host: str) -> None:
        for _ in range(8):
            with Client(ClientConfig(((host, 9092), kafka_of_two.addresses[1]))) as client:
                assert client.leader("orders", 0)[0].port == kafka_of_two.addresses[1][1]

    def test_addresses_without_reply_are_named_with_their_errors(self) -> None:
        with no_broker(b"HTTP/1.1 400 Bad Request") as wrong, kept_port() as closed_port, silent_address() as silent:
            closed = closed_port.getsockname()
            servers = (wrong.addresses[1], closed, silent.getsockname(), ("a..b", 9092))
            with Client(ClientConfig(servers)) as client:
                client.has_answered = True  # otherwise the client retries
                with pytest.raises(ConnectFailed) as caught:
                    client.ask_any(METADATA, {"topics": []}, client.deadline(2_000))
        words = str(caught.value)
        assert f"{wrong.bootstrap_servers}: the reply announces" in words
        assert f"{closed[0]}:{closed[1]}: cannot connect" in words
        assert f"{servers[2][0]}:{servers[2][1]}: no reply to ApiVersions" in words
        assert "a..b:9092: the host name cannot be resolved" in words

    def test_peers_that_are_no_brokers_fail_at_once(self) -> None:
        with no_broker(b"HTTP/1.1 400 Bad Request") as kafka, no_broker(b"HTTP/1.1 400") as two:
            servers = kafka.addresses[1], two.addresses[1]
            with Client(ClientConfig(servers)) as client, pytest.raises(FrameTooLarge) as caught:
                client.metadata(["orders"])
        assert all(f"{host}:{port}" in str(caught.value).partition("): ")[2] for host, port in servers)

    def test_fifty_unreachable_brokers_are_grouped_by_cause(self) -> None:
        with ExitStack() as ports:
            servers = tuple(ports.enter_context(kept_port()).getsockname() for _ in range(50))
            client = ports.enter_context(Client(ClientConfig(servers)))
            with pytest.raises(DeadlineExceeded) as caught:
                client.metadata(["orders"], client.deadline(3_000))
        text = str(caught.value)
        assert re.search(r"\): (127\.0\.0\.1:\d+, ){2}127\.0\.0\.1:\d+ and 47 more: cannot connect", text), text
        assert len(text) < 500, text


REPLIES_OF_A_STARTING_BROKER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "error code": lambda body: {**body, "error_code": ErrorCode.UNKNOWN_SERVER_ERROR, "api_keys": []},
    "cut off": lambda body: b"\0\0\0\x06\0\0\0\0\0\0",
    "another correlation id": lambda body: b"\0\0\0\x06\0\0\0\x09\0\0",
}


class TestStartingBrokers:
    @pytest.mark.parametrize("reply", REPLIES_OF_A_STARTING_BROKER)
    def test_connecting_is_retried_while_every_broker_starts(self, kafka_of_two: FakeKafka, reply: str) -> None:
        with client_of(kafka_of_two) as client, Producer(client) as producer:
            leader, _ = client.leader("orders", 0)
            client.hang_up("control")
            kafka_of_two.edit_replies("ApiVersions", REPLIES_OF_A_STARTING_BROKER[reply], times=3)
            with pytest.raises(ConnectFailed):
                client.ask(leader, METADATA, {"topics": []}, client.deadline())
            assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
            assert client.metadata(None).brokers.keys() == {1, 2}

    def test_lasting_error_code_is_named_at_the_deadline(self, kafka_of_two: FakeKafka) -> None:
        kafka_of_two.edit_replies("ApiVersions", REPLIES_OF_A_STARTING_BROKER["error code"])
        with client_of(kafka_of_two) as client, pytest.raises(DeadlineExceeded, match="ApiVersions: UNKNOWN_SERVER_"):
            client.metadata(None, client.deadline(1_000))

    def test_malformed_metadata_replies_are_retried(self, kafka_of_two: FakeKafka) -> None:
        kafka_of_two.edit_replies("Metadata", lambda body: b"\0\0\0\x05\0\0\0\x01\0", times=2)
        with client_of(kafka_of_two) as client:
            assert client.metadata(None).brokers.keys() == {1, 2}


class TestSilentBrokers:
    def test_silent_broker_takes_a_share_of_the_time_and_is_then_asked_last(self, kafka_of_two: FakeKafka) -> None:
        kafka_of_two.silence(2)
        with Client(ClientConfig(tuple(kafka_of_two.addresses.values()))) as client:
            while client.pool.failed_at_s(*kafka_of_two.addresses[2]) < 0:
                client.ask_any(METADATA, {"topics": []}, client.deadline(3_000))
            started_s = time.monotonic()
            for _ in range(20):
                client.ask_any(METADATA, {"topics": []}, client.deadline(60_000))
            assert time.monotonic() - started_s < 15

    def test_coordinator_silent_until_the_deadline_is_looked_up_again(self, kafka_of_two: FakeKafka) -> None:
        """Like periodic commits of group offsets: a call of five seconds, and then the next."""
        kafka_of_two.move_coordinator("etl", 2)
        kafka_of_two.silence(2)
        with client_of(kafka_of_two) as client:
            commit = partial(commit_offsets, client, "etl", {("orders", 0): CommittedOffset(5)})
            client.coordinator(group_coordinator("etl"), client.deadline())
            with pytest.raises(DeadlineExceeded, match="OffsetCommit for group etl"):
                commit(client.deadline(300))
            kafka_of_two.move_coordinator("etl", 1)
            commit(client.deadline(5_000))
        assert len(kafka_of_two.request_bodies(FIND_COORDINATOR)) == 2

    @pytest.mark.parametrize("others_know", ["the others", "all", "none yet"])
    def test_request_to_silent_broker_fails_when_metadata_omits_the_broker(
        self, kafka_of_two: FakeKafka, monkeypatch: pytest.MonkeyPatch, others_know: str
    ) -> None:
        monkeypatch.setattr("protocol.net.connection.SILENCE_CHECK_S", 0.1)
        monkeypatch.setattr("protocol.net.byte_stream.SILENCE_MS", 50)
        kafka_of_two.handlers[FIND_COORDINATOR] = lambda body, version: None
        with client_of(kafka_of_two, reconnect_backoff_ms=0) as client:
            broker = client.brokers()[2]
            waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
            if others_know == "none yet":
                kafka_of_two.edit_replies(METADATA, lambda body: {**body, "brokers": []})
            if others_know == "the others":
                kafka_of_two.fence(2)
                with pytest.raises(ConnectionLost, match=f"{broker.port}: no reply, and other brokers say .* left"):
                    waiting.result(client.deadline(20_000))
                waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
                while not ready([waiting], 0.1, client.deadline()):
                    pass
                assert waiting.done
            else:
                with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
                    waiting.result(client.deadline(2_000))
            assert len(kafka_of_two.request_bodies(METADATA)) > 2

    def test_connection_to_a_coordinator_that_refuses_repeatedly_is_replaced(self, kafka_of_two: FakeKafka) -> None:
        """It may have reached another broker, as while a name resolved to that one."""
        connections: list[Connection] = []
        with client_of(kafka_of_two) as client:
            key = group_coordinator("etl")

            def attempt() -> None:
                broker = client.coordinator(key, client.deadline())
                client.send(broker, METADATA, {"topics": []}, client.deadline(), purpose="member").result(
                    client.deadline()
                )
                connections.extend(
                    connection
                    for (*_, purpose, _), connection in client.pool.connections.items()
                    if purpose == "member"
                )
                if len(connections) == 1:
                    raise broker_error(ErrorCode.NOT_COORDINATOR, "as if")

            client.retrying("Heartbeat", attempt, client.deadline(), coordinator_of=key)
        assert connections[0] is not connections[1]

    def test_metadata_request_about_silent_broker_ends_at_the_waiters_deadline(
        self, kafka_of_two: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("protocol.net.connection.SILENCE_CHECK_S", 0.1)
        monkeypatch.setattr("protocol.net.byte_stream.SILENCE_MS", 50)
        monkeypatch.setattr("protocol.cluster.client.ABOUT_THE_SILENT_MS", 20_000)
        kafka_of_two.handlers[FIND_COORDINATOR] = lambda body, version: None
        with client_of(kafka_of_two) as client:
            broker = client.brokers()[1]
            kafka_of_two.silence(2)
            began_s = time.monotonic()
            with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
                client.ask(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline(500))
            assert time.monotonic() - began_s < 10

    def test_wait_for_several_replies_checks_a_silent_broker_only_if_time_remains(
        self, kafka_of_two: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("protocol.net.connection.SILENCE_CHECK_S", 0.01)
        monkeypatch.setattr("protocol.cluster.client.ABOUT_THE_SILENT_MS", 20_000)
        kafka_of_two.handlers[FIND_COORDINATOR] = lambda body, version: None
        with client_of(kafka_of_two) as client:
            broker = client.brokers()[1]
            kafka_of_two.silence(2)
            waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
            for timeout_ms, asks in [(None, False), (0, False), (1_500, True)]:
                began_s = time.monotonic()
                deadline = None if timeout_ms is None else client.deadline(timeout_ms)
                assert ready([waiting], 0.1, deadline) == []
                assert time.monotonic() - began_s < 10
                assert (client.pool.failed_at_s(*kafka_of_two.addresses[2]) > 0) == asks

    def test_stale_metadata_is_expired_before_an_error_is_raised(self) -> None:
        refreshed: list[Refresh] = []
        errors = [
            ConnectionLost("with no time for another try"),
            DeadlineExceeded("of a call within this one"),
            broker_error(ErrorCode.NOT_COORDINATOR, "with no time for another try"),
        ]
        for error in errors:

            def fail(error: KafkaError = error) -> None:
                raise error

            with pytest.raises(DeadlineExceeded):
                retried("OffsetCommit", fail, ManualClock(), refreshed, timeout_ms=1)
        assert refreshed == [Refresh.METADATA, Refresh.METADATA, Refresh.COORDINATOR]
