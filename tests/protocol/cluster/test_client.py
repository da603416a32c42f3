"""The client and the retry loop: bootstrap, refresh, back-off and error texts; no real broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import pytest

from protocol.base.clock import Backoff, Clock, Deadline
from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.cluster.client import CONTROL, PRODUCE, Client
from protocol.cluster.coordinators import group_coordinator
from protocol.cluster.dispatch import retrying
from protocol.cluster.metadata import Broker, Metadata, NewLeader
from protocol.config import ClientConfig, parse_consumer
from protocol.consumer.kafka_consumer import KafkaConsumer
from protocol.errors import BrokerError, ConfigurationError, ConnectFailed, ConnectionLost, DeadlineExceeded, KafkaError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets, fetch_offsets
from protocol.kafka_terms import LATEST
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.listener import kept_port
from protocol.testing.fake_kafka.server import FakeKafka, _BrokerListener
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.cluster.conftest import client_of
from tests.support.wait_until import wait_until


def test_metadata_closes_idle_connections_to_a_former_address_of_a_broker(fake: FakeKafka) -> None:
    clock = ManualClock()
    with Client(ClientConfig((fake.addresses[1],)), clock) as client:
        moving = client.metadata(None).brokers[2]
        connection = client.connection(moving, "control", client.deadline())
        fake.move(2)
        for _ in range(2):  # the first request may still try the former address
            clock.advance(10)
            assert client.metadata(None).brokers[2] != moving
        assert connection.closed
        assert (moving.host, moving.port) not in client._addresses


def test_refresh_brokers_continues_at_new_addresses_of_all_brokers(fake: FakeKafka) -> None:
    with client_of(fake) as client, Consumer(client) as consumer:
        consumer.consume_partitions({("orders", 0): 0}, client.deadline())
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(0)}, client.deadline())
        for broker_id in (1, 2):
            fake.move(broker_id)
        brokers = client.refresh_brokers(fake.bootstrap_servers)
        addresses = {node_id: f"{broker.host}:{broker.port}" for node_id, broker in brokers.items()}
        assert addresses == {node_id: fake.address(node_id) for node_id in (1, 2)}
        fake.produce("orders", b"after", partition=0)
        arrived = None
        until_s = time.monotonic() + 60
        while arrived is None and time.monotonic() < until_s:
            arrived = consumer.poll(1_000)
        assert arrived is not None
        assert arrived[1].column("value").to_pylist() == [b"after"]
        coordinator = client.coordinator(group_coordinator("etl"), client.deadline())
        assert f"{coordinator.host}:{coordinator.port}" == addresses[coordinator.node_id]


def test_refresh_brokers_refuses_another_cluster_and_unreachable_servers(fake: FakeKafka) -> None:
    with FakeKafka() as kafka, client_of(fake) as client:
        client.metadata([])
        kafka.cluster_id = "other"
        with pytest.raises(ConfigurationError, match="belong to cluster other, this client to cluster fake"):
            client.refresh_brokers([kafka.bootstrap_servers])
        with pytest.raises(DeadlineExceeded, match=r"bootstrap\.servers=127\.0\.0\.1:1\)"):
            client.refresh_brokers("127.0.0.1:1", client.deadline(300))
        with pytest.raises(ConfigurationError):
            client.refresh_brokers("no port")
        assert client.config.bootstrap_servers == (fake.addresses[1],)
        assert client.topic("orders").partitions


def test_broker_of_another_cluster_at_a_known_address_is_disconnected_and_named(
    fake: FakeKafka, client: Client
) -> None:
    wrong = client.metadata(None).brokers[2]
    connections = [client.connection(wrong, purpose, client.deadline()) for purpose in (CONTROL, PRODUCE)]
    fake.edit_replies("Metadata", lambda body: {**body, "cluster_id": "other", "topics": []}, broker=2)
    for _ in range(20):
        client.expire_metadata(["orders"])
        assert client.topic("orders").partitions
    assert client.ids_at_brokers(["orders"], client.deadline()) == {"orders": set()}
    assert all(connection.closed for connection in connections)
    with pytest.raises(ConnectFailed, match=f"{wrong.host}:{wrong.port}.* belongs to cluster other, this client to"):
        client.ask(wrong, METADATA, {"topics": []}, client.deadline())
    fake.edit_replies("Metadata", lambda body: {**body, "cluster_id": "other"}, broker=1)
    with pytest.raises(DeadlineExceeded, match=f"{wrong.host}:{wrong.port}.* cluster other, this .* cluster fake"):
        client.metadata(None, client.deadline(3_000))
    fake.clear_faults()
    fake.edit_replies("Metadata", lambda body: {**body, "cluster_id": None})
    assert client.metadata(None).brokers.keys() == {1, 2}


def test_another_cluster_at_the_address_of_a_leader_and_coordinator_gets_no_request(fake: FakeKafka) -> None:
    with FakeKafka() as kafka, client_of(fake) as client, Producer(client) as producer:
        kafka.cluster_id = "other"
        kafka.create_topic("orders")
        fake.move_coordinator("etl", 1)
        broker, _ = client.leader("orders", 0)
        assert client.coordinator(group_coordinator("etl"), client.deadline()) == broker
        fake.move(1)
        kafka.listeners[2] = _BrokerListener(kafka, 1, broker.port)
        assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
        commit_offsets(client, "etl", {("orders", 0): CommittedOffset(1)}, client.deadline())
        assert fetch_offsets(client, "etl", [("orders", 0)], client.deadline())["orders", 0].offset == 1
        assert {kind for kind, *_ in kafka.requests} == {"ApiVersions"}
        assert fake.committed_offsets("etl") == {("orders", 0): 1}


def test_another_broker_of_the_cluster_is_refused_but_not_at_a_bootstrap_address(client: Client) -> None:
    first, second = (client.metadata(None).brokers[node_id] for node_id in (1, 2))
    for broker in (first, second, replace(first, node_id=-1)):
        client.connection(broker, PRODUCE, client.deadline())
    with pytest.raises(ConnectFailed, match=f"{first.host}:{first.port}: this is not broker 2 of cluster fake"):
        client.connection(replace(first, node_id=2), PRODUCE, client.deadline())


def test_client_continues_after_all_brokers_have_swapped_their_addresses(fake: FakeKafka) -> None:
    bootstrap_server = _BrokerListener(fake, 1)
    with Client(ClientConfig(((fake.host, bootstrap_server.port),))) as client, Producer(client) as producer:
        client.leader("orders", 0)
        bootstrap_server.close()
        first, second = fake.addresses.values()
        fake.addresses.update({1: second, 2: first})
        for listener in fake.listeners.values():
            listener.close()
        for node_id, (_, port) in fake.addresses.items():
            fake.listeners[node_id] = _BrokerListener(fake, node_id, port)
        assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
        brokers = client.brokers()
        assert {node_id: (broker.host, broker.port) for node_id, broker in brokers.items()} == {1: second, 2: first}


def test_rebootstrap_error_makes_the_client_ask_the_bootstrap_servers(fake: FakeKafka, client: Client) -> None:
    code = ErrorCode.REBOOTSTRAP_REQUIRED
    second = client.metadata(None).brokers[2]
    connection = client.connection(second, CONTROL, client.deadline())
    fake.edit_replies("Metadata", lambda body: {**body, "error_code": code, "brokers": []}, broker=2)
    with pytest.raises(ConnectFailed, match="Metadata: REBOOTSTRAP_REQUIRED"):
        client.ask(second, METADATA, {"topics": []}, client.deadline())
    assert connection.closed
    assert {(broker.host, broker.port) for broker in client._candidates()} == {fake.addresses[1]}
    assert client.leader("orders", 0)[0].node_id in (1, 2)


def test_writable_partitions_are_those_with_a_leader_and_offline_replicas_are_named(
    fake: FakeKafka, client: Client
) -> None:
    fake.create_topic("alone", 2, 1)
    topic = client.topic("alone")
    assert (topic.writable_partitions, topic.partitions[1].offline_replicas) == ((0, 1), ())
    fake.stop(topic.partitions[1].leader)
    after = client.metadata(["alone"]).topics["alone"]
    assert after.writable_partitions == (0,)
    assert after.partitions[1].offline_replicas == topic.partitions[1].replicas


def test_two_dead_bootstrap_addresses_of_three_do_no_harm(fake: FakeKafka) -> None:
    with kept_port() as first, kept_port() as second:
        servers = (first.getsockname(), fake.addresses[1], second.getsockname())
        for _ in range(5):
            with Client(ClientConfig(bootstrap_servers=servers)) as client:
                assert client.leader("orders", 0)[0].port == fake.addresses[1][1]


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


def test_partition_without_a_leader_is_retried_until_it_has_one(fake: FakeKafka) -> None:
    fake.move_leader("orders", 0, -1)

    def elect(body: dict[str, Any]) -> None:
        if len(fake.request_bodies(METADATA)) == 3:
            fake.move_leader("orders", 0, 2)

    fake.before[METADATA] = elect
    with client_of(fake, retry_backoff_ms=1) as client:
        broker, _ = client.retrying(
            "leader", lambda: client.leader("orders", 0), client.deadline(5000), topics=["orders"]
        )
    assert broker.node_id == 2
    assert len(fake.request_bodies(METADATA)) == 3


def test_older_leader_epoch_does_not_replace_a_newer_one(fake: FakeKafka) -> None:
    """A broker with older metadata may answer, too."""
    fake.isolate(1)
    fake.move_leader("orders", 0, 2)
    expected = {"topics": [{"name": "orders"}]}
    old, new = (Metadata.from_reply(fake.ask(broker, METADATA, expected)) for broker in (1, 2))
    assert [metadata.topics["orders"].partitions[0].leader for metadata in (old, new)] == [1, 2]
    assert new.updated_by(old).topics["orders"].partitions[0].leader == 2
    assert old.updated_by(new).topics["orders"].partitions[0].leader == 2


@pytest.mark.parametrize(
    ("field", "value", "leader"),
    [(None, None, 2), ("leader_epoch", 0, 1), ("topic_id", b"another topic id", 1), ("partition", 1, 1)],
)
def test_leader_named_in_a_reply_replaces_an_older_one_only(
    fake: FakeKafka, field: str | None, value: object, leader: int
) -> None:
    from_reply = Metadata.from_reply(fake.ask(1, METADATA, {"topics": [{"name": "orders"}]}))
    named = NewLeader("orders", from_reply.topics["orders"].topic_id, 0, 7, Broker(2, "broker-2", 9092))
    snapshot = from_reply.with_leaders([named if field is None else replace(named, **{field: value})])
    broker, partition = snapshot.leader("orders", 0)
    assert (broker.node_id, partition.leader_epoch) == ((2, 7) if leader == 2 else (1, 0))
    assert broker.host == ("broker-2" if leader == 2 else "127.0.0.1")


@pytest.mark.timeout(30)
def test_moved_leader_named_in_replies_is_used_at_once(fake: FakeKafka) -> None:
    """KIP-951: producers and consumers wait for no back-off and no metadata."""
    with (
        client_of(fake, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as client,
        Producer(client) as producer,
        KafkaConsumer(client, {"group.id": "etl", "auto.offset.reset": "earliest"}) as consumer,
    ):
        consumer.assign([("orders", 0)])
        for records, leader in enumerate((1, 2, 1), start=1):
            fake.move_leader("orders", 0, leader)
            lookups = len(fake.request_bodies(METADATA))
            producer.send("orders", b"value").result(10)
            wait_until(lambda: consumer.poll(100))
            rows = BoundedReader(client, parse_consumer({}), [Range("orders", 0, 0, records)])
            assert sum(batch.num_rows for _, batch in rows) == records
            assert records == 1 or len(fake.request_bodies(METADATA)) == lookups


def retried(
    errors: Iterable[KafkaError], clock: Clock, refreshed: list[Refresh] | None = None, timeout_ms: float = 5_000
) -> int:
    """Run the retry loop with attempts that raise these errors, then succeed; return the number of attempts.

    The kinds of refreshed metadata are added to `refreshed`.
    """
    remaining, attempts, kinds = iter(errors), count(1), [] if refreshed is None else refreshed

    def attempt() -> int:
        number = next(attempts)
        for error in remaining:
            raise error
        return number

    deadline = Deadline.after_ms(timeout_ms, clock)
    return retrying(
        "Fetch", attempt, deadline=deadline, backoff=Backoff(100, 1000), refresh=lambda error, kind: kinds.append(kind)
    )


def test_retry_loop_backs_off_refreshes_and_stops_at_the_deadline() -> None:
    clock, refreshed = ManualClock(), list[Refresh]()
    error = broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Fetch of orders-0", topic="orders")
    with pytest.raises(DeadlineExceeded, match=r"Fetch did not succeed in .* attempt\(s\); the last one: .*orders-0"):
        retried(repeat(error), clock, refreshed)
    assert set(refreshed) == {Refresh.METADATA}
    assert clock.slept[0] < clock.slept[1] < clock.slept[2]
    assert all(wait <= 1.2 for wait in clock.slept)
    assert clock.at_s <= 5.0


def test_non_retriable_error_is_raised_at_once() -> None:
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        retried([broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "as if")], ManualClock())


def test_lost_connection_is_retried() -> None:
    assert retried([ConnectionLost("gone"), ConnectionLost("gone again")], ManualClock()) == 3


def test_concurrent_transactions_error_is_retried_soon() -> None:
    clock = ManualClock()
    assert retried([broker_error(ErrorCode.CONCURRENT_TRANSACTIONS, "as if")] * 4, clock) == 5
    assert clock.slept == pytest.approx([0.02, 0.04, 0.06, 0.08])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionLost("with no time for another try"), Refresh.METADATA),
        (DeadlineExceeded("of a call within this one"), Refresh.METADATA),
        (broker_error(ErrorCode.NOT_COORDINATOR, "with no time for another try"), Refresh.COORDINATOR),
    ],
)
def test_stale_metadata_is_expired_before_an_error_is_raised(error: KafkaError, kind: Refresh) -> None:
    refreshed: list[Refresh] = []
    with pytest.raises(DeadlineExceeded):
        retried([error], ManualClock(), refreshed, timeout_ms=1)
    assert refreshed == [kind]
