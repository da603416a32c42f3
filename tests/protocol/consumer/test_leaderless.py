"""Many partitions without a leader cost one question about all of them for each attempt, and no thread dies of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.admin.topics import delete_records
from protocol.config import ConsumerConfig
from protocol.consumer.consumer import Consumer
from protocol.consumer.list_offsets import LATEST, list_offsets
from protocol.consumer.log_samples import log_samples
from protocol.consumer.range import Range
from protocol.consumer.range_consumer import RangeConsumer
from protocol.errors import ConnectionLost, DeadlineExceeded, UsageError
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.driver.discovery import leaders
from tests.fake_broker import FakeBroker
from tests.protocol.consumer.consuming import TOPIC_ID, client_of, consumer_of, records, reply, reply_row

PARTITIONS = 200
EVERY = [(topic, number) for topic in ("orders", "returns") for number in range(PARTITIONS // 2)]


class Cluster(FakeBroker):
    """Two topics of a hundred partitions each; `leads` are those that have a leader, this broker."""

    def __init__(self) -> None:
        super().__init__()
        self.leads: set[tuple[str, int]] = set()
        self.handlers[METADATA.key] = self.metadata

    def metadata(self, body: dict[str, Any], version: int) -> dict[str, Any]:
        topics = []
        for topic in (row["name"] for row in body["topics"]):
            partitions = [
                {"partition_index": number, "leader_id": 1 if (topic, number) in self.leads else -1, "leader_epoch": 0}
                for number in range(PARTITIONS // 2)
            ]
            rows = [{**each, "replica_nodes": [1], "isr_nodes": [1]} for each in partitions]
            topics.append({"name": topic, "topic_id": TOPIC_ID, "partitions": rows})
        where = {"node_id": 1, "host": self.host, "port": self.port}
        return {"brokers": [where], "controller_id": 1, "topics": topics}

    @property
    def metadata_requests(self) -> int:
        return [name for name, _, _ in self.requests].count("Metadata")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def test_two_attempts_to_list_offsets_ask_twice(cluster: Cluster) -> None:
    with client_of(f"{cluster.host}:{cluster.port}") as client:
        with pytest.raises(DeadlineExceeded, match=r"2 attempt.*LEADER_NOT_AVAILABLE"):
            list_offsets(client, dict.fromkeys(EVERY, LATEST), max_attempts=2)
        assert cluster.metadata_requests == 2


def test_looks_ask_once(cluster: Cluster) -> None:
    with client_of(f"{cluster.host}:{cluster.port}") as client:
        assert leaders(client, EVERY, client.deadline()) == {}
        assert cluster.metadata_requests == 1
        sizes = {"partition_max_bytes": 1_000, "partitions_per_request": 10}
        assert list(log_samples(client, ConsumerConfig(), dict.fromkeys(EVERY, 0), client.deadline(), **sizes)) == []
        assert cluster.metadata_requests == 2
        with pytest.raises(DeadlineExceeded):
            delete_records(client, dict.fromkeys(EVERY, 0), client.deadline(50))
        assert cluster.metadata_requests == 3


def test_ranges_are_looked_up_together_again_and_again(cluster: Cluster) -> None:
    """Five waits of 0.1, 0.2, 0.4, 0.8 and 1 s, give or take a fifth, are two seconds."""
    ranges = [Range(topic, number, 0, 10) for topic, number in EVERY]
    with client_of(f"{cluster.host}:{cluster.port}") as client:
        with pytest.raises(DeadlineExceeded):
            list(RangeConsumer(client, ConsumerConfig(), ranges, poll_timeout_ms=2_000))
        assert 2 <= cluster.metadata_requests <= 10


def test_streams_are_looked_up_together_again_and_again(cluster: Cluster) -> None:
    with client_of(f"{cluster.host}:{cluster.port}") as client, consumer_of(client) as consumer:
        streams = consumer.consume_partitions(dict.fromkeys(EVERY, 0))
        give_up_s = time.monotonic() + 20
        while min(each.source.attempts for each in streams.values()) < 4:
            assert time.monotonic() < give_up_s
            time.sleep(0.01)
        assert cluster.metadata_requests <= 3 * max(each.source.attempts for each in streams.values())


class TestTheThreadThatLooksForBrokers:
    @pytest.fixture
    def consumer(self, cluster: Cluster) -> Iterator[Consumer]:
        cluster.leads = {("orders", 1)}
        cluster.handlers[FETCH.key] = lambda body, version: (
            reply() if body["session_epoch"] == -1 else reply(reply_row(1, records(0, 5)), session_id=5)
        )
        with client_of(f"{cluster.host}:{cluster.port}") as client, consumer_of(client) as consumer:
            yield consumer

    def test_it_outlives_a_partition_that_is_to_wait_for_ever(self, consumer: Consumer) -> None:
        failing = consumer.consume_partition("orders", 0, 0)
        with consumer._lock:
            failing.postpone(ConnectionLost("as if"), time.monotonic())
            failing.source.retry_at_s = failing.source.along_at_s = float("inf")
            consumer._unrouted.notify()
        assert consumer.consume_partition("orders", 1, 0).poll(10_000) is not None
        assert consumer._router.is_alive()

    def test_when_it_dies_everybody_is_told(self, consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
        waiting = consumer.consume_partition("orders", 0, 0)

        def faulty(*_: Any) -> None:
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr("protocol.consumer.consumer.to_look_up", faulty)
        with consumer._lock:
            consumer._unrouted.notify()
        for _ in range(2):
            with pytest.raises(UsageError, match=r"orders-0: .* looking for brokers has failed: ZeroDivisionError"):
                waiting.poll(10_000)
            waiting.seek(3)
        with pytest.raises(UsageError, match="looking for brokers has failed"):
            consumer.poll(10_000)
        with pytest.raises(UsageError, match="looking for brokers has failed"):
            consumer.consume_partition("orders", 1, 0)
