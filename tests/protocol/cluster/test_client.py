"""The client and the retry loop: bootstrap, refresh, back-off and the words of failures; no real broker."""

from __future__ import annotations

import logging
import socket
import time
from functools import partial
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.clock import Backoff, Clock, Deadline
from protocol.cluster.client import Client
from protocol.cluster.dispatch import retrying
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig
from protocol.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    FrameTooLarge,
    KafkaError,
    RequestTimedOut,
)
from protocol.group.offsets import CommittedOffset, commit_offsets
from protocol.net.readiness import ready
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m08_offset_commit import OFFSET_COMMIT
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from tests.fake_broker import FakeBroker


class SteppedClock(Clock):
    """Time that only moves by sleeping."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.slept: list[float] = []

    def now_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds


def partition_row(leader: int, epoch: int, error: int = 0) -> dict[str, Any]:
    return {
        "error_code": error,
        "partition_index": 0,
        "leader_id": leader,
        "leader_epoch": epoch,
        "replica_nodes": [1, 2],
        "isr_nodes": [1, 2],
    }


def metadata_reply(fake: FakeBroker, leader: int = 1, epoch: int = 0, error: int = 0) -> dict[str, Any]:
    return {
        "brokers": [{"node_id": 1, "host": fake.host, "port": fake.port, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [
            {
                "error_code": error,
                "name": "orders",
                "topic_id": b"\1" * 16,
                "is_internal": False,
                "partitions": [partition_row(leader, epoch)],
            }
        ],
    }


def dead_port() -> tuple[str, int]:
    with FakeBroker() as fake:
        return fake.host, fake.port


def test_one_dead_bootstrap_address_of_three_does_no_harm() -> None:
    with FakeBroker() as fake:
        fake.handlers[METADATA.key] = lambda body, version: metadata_reply(fake)
        servers = (dead_port(), (fake.host, fake.port), dead_port())
        for _ in range(5):
            with Client(ClientConfig(bootstrap_servers=servers)) as client:
                assert client.leader("orders", 0)[0].port == fake.port


def test_no_reachable_broker_names_every_address_and_the_option_after_the_deadline() -> None:
    servers = (dead_port(), dead_port())
    with Client(ClientConfig(bootstrap_servers=servers)) as client, pytest.raises(DeadlineExceeded) as caught:
        client.metadata(["orders"], client.deadline(700))
    assert isinstance(caught.value.__cause__, ConnectFailed)
    for host, port in servers:
        assert f"{host}:{port}" in str(caught.value)
    assert "(bootstrap.servers=" in str(caught.value)
    assert "attempt" in str(caught.value)


def test_who_waits_for_brokers_for_long_is_told_once_which(caplog: pytest.LogCaptureFixture) -> None:
    host, port = dead_port()
    client = Client(ClientConfig(bootstrap_servers=((host, port),)), SteppedClock())
    for seconds, warnings in ((9, 0), (240, 1)):
        with caplog.at_level(logging.WARNING), pytest.raises(DeadlineExceeded):
            client.metadata(["orders"], client.deadline(seconds * 1_000))
        assert len(caplog.messages) == warnings
    assert f"no broker could be reached (bootstrap.servers={host}:{port})" in caplog.text
    assert "s more" in caplog.text


def test_a_topic_without_a_leader_is_asked_for_again_until_it_has_one() -> None:
    with FakeBroker() as fake:
        answers = iter([-1, -1, 1])
        fake.handlers[METADATA.key] = lambda body, version: metadata_reply(fake, leader=next(answers, 1))
        with Client(ClientConfig(bootstrap_servers=((fake.host, fake.port),), retry_backoff_ms=1)) as client:
            broker, _ = client.retrying(
                "leader", lambda: client.leader("orders", 0), client.deadline(5000), topics=["orders"]
            )
        assert broker.node_id == 1
        assert len([name for name, _, _ in fake.requests if name == "Metadata"]) == 3


def test_an_older_leader_epoch_does_not_replace_a_newer_one() -> None:
    with FakeBroker() as fake:
        new = Metadata.from_reply({**metadata_reply(fake, leader=2, epoch=5)})
        old = Metadata.from_reply({**metadata_reply(fake, leader=1, epoch=4)})
    assert new.updated_by(old).topics["orders"].partitions[0].leader == 2
    assert old.updated_by(new).topics["orders"].partitions[0].leader == 2


def test_the_retry_loop_backs_off_refreshes_what_the_table_says_and_stops_at_the_deadline() -> None:
    clock = SteppedClock()
    refreshed: list[Refresh] = []

    def fail() -> None:
        raise broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Fetch of orders-0", topic="orders")

    with pytest.raises(DeadlineExceeded, match=r"Fetch did not succeed in .* attempt\(s\); the last one: .*orders-0"):
        retrying(
            "Fetch",
            fail,
            deadline=Deadline.after_ms(5000, clock),
            backoff=Backoff(100, 1000),
            refresh=lambda error, kind: refreshed.append(kind),
        )
    assert set(refreshed) == {Refresh.METADATA}
    assert clock.slept[0] < clock.slept[1] < clock.slept[2]
    assert all(wait <= 1.2 for wait in clock.slept)
    assert clock.at_s <= 5.0


def test_an_error_that_no_retry_can_mend_is_raised_at_once() -> None:
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(1)
        raise broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Metadata of orders")

    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        retrying(
            "Metadata",
            fail,
            deadline=Deadline.after_ms(5000, SteppedClock()),
            backoff=Backoff(100, 1000),
            refresh=lambda error, kind: None,
        )
    assert attempts == [1]


def test_a_lost_connection_is_tried_again() -> None:
    failures: list[KafkaError] = [ConnectionLost("gone"), ConnectionLost("gone again")]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert (
        retrying(
            "Fetch",
            attempt,
            deadline=Deadline.after_ms(5000, SteppedClock()),
            backoff=Backoff(100, 1000),
            refresh=lambda error, kind: None,
        )
        == "done"
    )


def silent_address() -> socket.socket:
    """Takes connections as the system of a stopped process does, and says nothing. `getsockname()` is where."""
    return socket.create_server(("127.0.0.1", 0), backlog=50)


class TestOneOfSeveralIsWrong:
    @pytest.mark.parametrize(
        "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b"\0\0\0\x06no Kafka"]
    )
    def test_a_peer_that_is_no_broker_does_no_harm(self, greeting: bytes) -> None:
        with FakeBroker() as fake, FakeBroker(greeting=greeting) as wrong:
            fake.handlers[METADATA.key] = lambda body, version: metadata_reply(fake)
            servers = ((wrong.host, wrong.port), (fake.host, fake.port))
            for _ in range(8):
                with Client(ClientConfig(servers)) as client:
                    assert client.leader("orders", 0)[0].port == fake.port

    @pytest.mark.parametrize("host", ["a..b", "x" * 64])
    def test_a_name_that_cannot_be_encoded_does_no_harm(self, host: str) -> None:
        with FakeBroker() as fake:
            fake.handlers[METADATA.key] = lambda body, version: metadata_reply(fake)
            for _ in range(8):
                with Client(ClientConfig(((host, 9092), (fake.host, fake.port)))) as client:
                    assert client.leader("orders", 0)[0].port == fake.port

    def test_when_nobody_answers_each_is_named_with_its_own_trouble(self) -> None:
        closed = dead_port()
        with FakeBroker(greeting=b"HTTP/1.1 400 Bad Request") as wrong, silent_address() as silent:
            servers = ((wrong.host, wrong.port), closed, silent.getsockname(), ("a..b", 9092))
            with Client(ClientConfig(servers)) as client, pytest.raises(ConnectFailed) as caught:
                client.ask_any(METADATA, {"topics": []}, client.deadline(900))
        words = str(caught.value)
        assert f"{wrong.host}:{wrong.port}: the reply announces" in words
        assert f"{closed[0]}:{closed[1]}: cannot connect" in words
        assert f"{servers[2][0]}:{servers[2][1]}: no reply to ApiVersions" in words
        assert "a..b:9092: the host name cannot be resolved" in words

    def test_nothing_but_peers_that_are_no_brokers_is_told_at_once(self) -> None:
        with FakeBroker(greeting=b"HTTP/1.1 400 Bad Request") as one, FakeBroker(greeting=b"HTTP/1.1 400") as two:
            servers = ((one.host, one.port), (two.host, two.port))
            with Client(ClientConfig(servers)) as client, pytest.raises(FrameTooLarge) as caught:
                client.metadata(["orders"])
        assert all(f"{host}:{port}: the reply announces" in str(caught.value) for host, port in servers)


class TestSilentBrokers:
    def test_a_silent_one_takes_a_share_of_the_time_and_is_asked_last_from_then_on(self) -> None:
        with FakeBroker() as fake, silent_address() as silent:
            fake.handlers[METADATA.key] = lambda body, version: metadata_reply(fake)
            where = silent.getsockname()
            with Client(ClientConfig((where, (fake.host, fake.port)))) as client:
                while client._pool.failed_at_s(*where) < 0:
                    client.ask_any(METADATA, {"topics": []}, client.deadline(500))
                started_s = time.monotonic()
                for _ in range(20):
                    client.ask_any(METADATA, {"topics": []}, client.deadline(20_000))
                assert time.monotonic() - started_s < 5

    def test_a_coordinator_that_is_silent_until_the_deadline_is_looked_for_again(self) -> None:
        """As often as the offsets of a group are committed: a call of five seconds, and then the next."""
        with FakeBroker() as fake, FakeBroker() as dark:
            where = [{"node_id": 1, "host": dark.host, "port": dark.port, "key": "etl"}]
            fake.handlers[FIND_COORDINATOR.key] = lambda body, version: {"coordinators": where}
            fake.handlers[OFFSET_COMMIT.key] = lambda body, version: {
                "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]
            }
            with Client(ClientConfig(((fake.host, fake.port),))) as client:
                commit = partial(commit_offsets, client, "etl", {("orders", 0): CommittedOffset(5)})
                with pytest.raises(DeadlineExceeded, match="OffsetCommit for group etl"):
                    commit(client.deadline(300))
                where[0].update(host=fake.host, port=fake.port)
                commit(client.deadline(5_000))
        assert [name for name, _, _ in fake.requests].count("FindCoordinator") == 2

    @pytest.mark.parametrize("others_know", ["the others", "all", "none yet"])
    def test_a_broker_that_is_silent_is_given_up_when_the_others_say_that_it_is_gone(
        self, monkeypatch: pytest.MonkeyPatch, others_know: str
    ) -> None:
        monkeypatch.setattr("protocol.net.connection._LATE_S", 0.1)
        monkeypatch.setattr("protocol.net.byte_stream._SILENCE_MS", 50)
        with FakeBroker() as fake, FakeBroker() as dark:
            rows = [{"node_id": 1, "host": fake.host, "port": fake.port}]
            rows += [{"node_id": 2, "host": dark.host, "port": dark.port}]
            fake.handlers[METADATA.key] = lambda body, version: {"brokers": rows, "controller_id": 1, "topics": []}
            with Client(ClientConfig(((fake.host, fake.port),), reconnect_backoff_ms=0)) as client:
                broker = client.brokers()[2]
                waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
                if others_know == "none yet":
                    rows.clear()
                if others_know == "the others":
                    del rows[1]
                    with pytest.raises(ConnectionLost, match=f"{dark.port}: no answer, and others say .* gone"):
                        waiting.result(client.deadline(20_000))
                    waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
                    while not ready([waiting], 0.1, client.deadline()):
                        pass
                    assert waiting.arrived
                else:
                    with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
                        waiting.result(client.deadline(700))
                assert [name for name, _, _ in fake.requests].count("Metadata") > 2

    def test_a_question_about_one_that_is_silent_ends_with_the_time_of_who_waits_for_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("protocol.net.connection._LATE_S", 0.1)
        monkeypatch.setattr("protocol.net.byte_stream._SILENCE_MS", 50)
        with FakeBroker() as dark, silent_address() as silent:
            host, port = silent.getsockname()
            rows = [{"node_id": 1, "host": host, "port": port}, {"node_id": 2, "host": dark.host, "port": dark.port}]
            dark.handlers[METADATA.key] = lambda body, version: {"brokers": rows, "controller_id": 1, "topics": []}
            with Client(ClientConfig(((dark.host, dark.port),))) as client:
                broker = client.brokers()[2]
                began_s = time.monotonic()
                with pytest.raises(RequestTimedOut, match="no reply to FindCoordinator"):
                    client.ask(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline(500))
                assert time.monotonic() - began_s < 1.5

    def test_who_waits_for_several_replies_asks_about_the_silent_only_if_it_has_time_for_that(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("protocol.net.connection._LATE_S", 0.01)
        with FakeBroker() as dark, silent_address() as silent:
            host, port = silent.getsockname()
            rows = [{"node_id": 1, "host": host, "port": port}, {"node_id": 2, "host": dark.host, "port": dark.port}]
            dark.handlers[METADATA.key] = lambda body, version: {"brokers": rows, "controller_id": 1, "topics": []}
            with Client(ClientConfig(((dark.host, dark.port),))) as client:
                broker = client.brokers()[2]
                waiting = client.send(broker, FIND_COORDINATOR, {"coordinator_keys": ["etl"]}, client.deadline())
                for deadline, asks in [(None, False), (client.deadline(0), False), (client.deadline(500), True)]:
                    began_s = time.monotonic()
                    assert ready([waiting], 0.1, deadline) == []
                    assert time.monotonic() - began_s < 1.5
                    assert (client._pool.failed_at_s(host, port) > 0) == asks

    def test_what_is_out_of_date_is_expired_before_anything_is_raised(self) -> None:
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
                retrying(
                    "OffsetCommit",
                    fail,
                    deadline=Deadline.after_ms(1, SteppedClock()),
                    backoff=Backoff(100, 1000),
                    refresh=lambda error, kind: refreshed.append(kind),
                )
        assert refreshed == [Refresh.METADATA, Refresh.METADATA, Refresh.COORDINATOR]
