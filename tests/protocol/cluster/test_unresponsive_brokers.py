"""Servers that are no brokers, that start, or that do not reply: clients ask other brokers, and name them in errors."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.client import Client
from protocol.cluster.coordinators import group_coordinator
from protocol.config import ClientConfig
from protocol.errors import ConnectFailed, ConnectionLost, DeadlineExceeded, FrameTooLarge, RequestTimedOut
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.net.connection import Connection
from protocol.net.readiness import ready
from protocol.producer.producer import Producer
from protocol.testing.fake_kafka.listener import kept_port
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from tests.protocol.cluster.conftest import client_of
from tests.support.no_broker import no_broker


def silent_address() -> socket.socket:
    """Return a socket that accepts connections and never replies, like a stopped process; `getsockname()` has its
    address."""
    return socket.create_server(("127.0.0.1", 0), backlog=50)


class TestBadBootstrapAddresses:
    @pytest.mark.parametrize(
        "wrong",
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b"\0\0\0\x06no Kafka", "a..b", "x" * 64],
        ids=["HTTP", "TLS", "another protocol", "empty label of a host name", "long label of a host name"],
    )
    def test_peer_that_is_no_broker_does_no_harm(self, fake: FakeKafka, wrong: bytes | str) -> None:
        with no_broker(wrong if isinstance(wrong, bytes) else b"") as peer:
            servers = (peer.addresses[1] if isinstance(wrong, bytes) else (wrong, 9092)), fake.addresses[1]
            for _ in range(8):
                with Client(ClientConfig(servers)) as client:
                    assert client.leader("orders", 0)[0].port == fake.addresses[1][1]

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
        assert re.search(r"\): (127\.0\.0\.1:\d+, ){2}127\.0\.0\.1:\d+ and \d+ more: cannot connect", text), text
        assert len(text) < 600, text  # the deadline may pass before the last ones are tried


REPLIES_OF_A_STARTING_BROKER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "error code": lambda body: {**body, "error_code": ErrorCode.UNKNOWN_SERVER_ERROR, "api_keys": []},
    "cut off": lambda body: b"\0\0\0\x06\0\0\0\0\0\0",
    "another correlation id": lambda body: b"\0\0\0\x06\0\0\0\x09\0\0",
}


class TestStartingBrokers:
    @pytest.mark.parametrize("reply", REPLIES_OF_A_STARTING_BROKER)
    def test_connecting_is_retried_while_every_broker_starts(self, fake: FakeKafka, reply: str) -> None:
        with client_of(fake) as client, Producer(client) as producer:
            leader, _ = client.leader("orders", 0)
            client.hang_up("control")
            fake.edit_replies("ApiVersions", REPLIES_OF_A_STARTING_BROKER[reply], times=3)
            with pytest.raises(ConnectFailed):
                client.ask(leader, METADATA, {"topics": []}, client.deadline())
            assert producer.send_and_wait("orders", b"row", partition=0).offset == 0
            assert client.metadata(None).brokers.keys() == {1, 2}

    def test_lasting_error_code_is_named_at_the_deadline(self, fake: FakeKafka) -> None:
        fake.edit_replies("ApiVersions", REPLIES_OF_A_STARTING_BROKER["error code"])
        with client_of(fake) as client, pytest.raises(DeadlineExceeded, match="ApiVersions: UNKNOWN_SERVER_"):
            client.metadata(None, client.deadline(1_000))

    def test_malformed_metadata_replies_are_retried(self, fake: FakeKafka, client: Client) -> None:
        fake.edit_replies("Metadata", lambda body: b"\0\0\0\x05\0\0\0\x01\0", times=2)
        assert client.metadata(None).brokers.keys() == {1, 2}


def check_silence_soon(monkeypatch: pytest.MonkeyPatch, fake: FakeKafka) -> None:
    """Let clients check soon if a broker that does not reply has left; no broker replies to FindCoordinator."""
    monkeypatch.setattr("protocol.net.connection.SILENCE_CHECK_S", 0.1)
    monkeypatch.setattr("protocol.net.byte_stream.SILENCE_MS", 50)
    fake.handlers[FIND_COORDINATOR] = lambda body, version: None


class TestSilentBrokers:
    def test_silent_broker_takes_a_share_of_the_time_and_is_then_asked_last(self, fake: FakeKafka) -> None:
        fake.silence(2)
        with Client(ClientConfig(tuple(fake.addresses.values()))) as client:
            while client.pool.failed_at_s(*fake.addresses[2]) < 0:
                client.ask_any(METADATA, {"topics": []}, client.deadline(3_000))
            started_s = time.monotonic()
            for _ in range(20):
                client.ask_any(METADATA, {"topics": []}, client.deadline(60_000))
            assert time.monotonic() - started_s < 15

    def test_coordinator_silent_until_the_deadline_is_looked_up_again(self, fake: FakeKafka, client: Client) -> None:
        """Like periodic commits of group offsets: a call of five seconds, and then the next."""
        fake.move_coordinator("etl", 2)
        fake.silence(2)
        commit = partial(commit_offsets, client, "etl", {("orders", 0): CommittedOffset(5)})
        client.coordinator(group_coordinator("etl"), client.deadline())
        with pytest.raises(DeadlineExceeded, match="OffsetCommit for group etl"):
            commit(client.deadline(300))
        fake.move_coordinator("etl", 1)
        commit(client.deadline(5_000))
        assert len(fake.request_bodies(FIND_COORDINATOR)) == 2

    @pytest.mark.parametrize("others_know", ["the others", "all", "none yet"])
    def test_request_to_silent_broker_fails_when_metadata_omits_the_broker(
        self, fake: FakeKafka, monkeypatch: pytest.MonkeyPatch, others_know: str
    ) -> None:
        check_silence_soon(monkeypatch, fake)
        with client_of(fake, reconnect_backoff_ms=0) as client:
            broker = client.brokers()[2]
            waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
            if others_know == "none yet":
                fake.edit_replies(METADATA, lambda body: {**body, "brokers": []})
            if others_know == "the others":
                fake.fence(2)
                with pytest.raises(ConnectionLost, match=f"{broker.port}: no reply, and other brokers say .* left"):
                    waiting.result(client.deadline(20_000))
                waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
                while not ready([waiting], 0.1, client.deadline()):
                    pass
                assert waiting.done
            else:
                with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
                    waiting.result(client.deadline(2_000))
            assert len(fake.request_bodies(METADATA)) > 2

    def test_connection_to_a_coordinator_that_refuses_repeatedly_is_replaced(self, client: Client) -> None:
        """It may have reached another broker, as while a name resolved to that one."""
        connections: list[Connection] = []
        key = group_coordinator("etl")

        def attempt() -> None:
            broker = client.coordinator(key, client.deadline())
            client.send(broker, METADATA, {"topics": []}, client.deadline(), purpose="coordinator, member 1").result(
                client.deadline()
            )
            connections.extend(
                connection
                for (*_, purpose, _), connection in client.pool.connections.items()
                if purpose == "coordinator, member 1"
            )
            if len(connections) == 1:
                raise broker_error(ErrorCode.NOT_COORDINATOR, "as if")

        client.retrying("Heartbeat", attempt, client.deadline(), coordinator_of=key)
        assert connections[0] is not connections[1]

    def test_metadata_request_about_silent_broker_ends_at_the_waiters_deadline(
        self, fake: FakeKafka, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_silence_soon(monkeypatch, fake)
        monkeypatch.setattr("protocol.cluster.client.ABOUT_THE_SILENT_MS", 20_000)
        broker = client.brokers()[1]
        fake.silence(2)
        began_s = time.monotonic()
        with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
            client.ask(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline(500))
        assert time.monotonic() - began_s < 10

    def test_wait_for_several_replies_checks_a_silent_broker_only_if_time_remains(
        self, fake: FakeKafka, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_silence_soon(monkeypatch, fake)
        monkeypatch.setattr("protocol.net.connection.SILENCE_CHECK_S", 0.01)
        monkeypatch.setattr("protocol.cluster.client.ABOUT_THE_SILENT_MS", 20_000)
        broker = client.brokers()[1]
        fake.silence(2)
        waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
        for timeout_ms, asks in [(None, False), (0, False), (1_500, True)]:
            began_s = time.monotonic()
            deadline = None if timeout_ms is None else client.deadline(timeout_ms)
            assert ready([waiting], 0.1, deadline) == []
            assert time.monotonic() - began_s < 10
            assert (client.pool.failed_at_s(*fake.addresses[2]) > 0) == asks
