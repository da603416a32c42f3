"""The client and the retry loop: bootstrap, refresh, back-off and the words of failures; no real broker."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.clock import Backoff, Clock, Deadline
from protocol.cluster.client import Client
from protocol.cluster.dispatch import retrying
from protocol.cluster.metadata import Metadata
from protocol.config import ClientConfig
from protocol.errors import BrokerError, ConnectFailed, ConnectionLost, DeadlineExceeded, KafkaError
from protocol.wire.messages.m03_metadata import METADATA
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
    assert "kafka.bootstrap.servers" in str(caught.value)
    assert "attempt" in str(caught.value)


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
