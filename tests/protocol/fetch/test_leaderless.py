"""Many partitions without a leader share Metadata requests, and do not end the leader thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.admin.topics import delete_records
from protocol.config import ConsumerConfig
from protocol.errors import ConnectionLost, DeadlineExceeded, UsageError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.consumer import Consumer
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import Range
from protocol.fetch.log_samples import log_samples
from protocol.kafka_terms import LATEST
from protocol.testing.fake_kafka.controller import NO_LEADER
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.driver.discovery import leader_ids
from tests.protocol.fetch.consuming import client_of, consumer_of, records
from tests.support.internals import fetcher_of
from tests.support.wait_until import wait_until

PARTITIONS = 200
ALL_PARTITIONS = [(topic, number) for topic in ("orders", "returns") for number in range(PARTITIONS // 2)]


@pytest.fixture
def cluster() -> Iterator[FakeKafka]:
    """Yield two topics of a hundred partitions each, all without a leader."""
    with FakeKafka() as kafka:
        for topic in ("orders", "returns"):
            kafka.create_topic(topic, PARTITIONS // 2)
        for topic, number in ALL_PARTITIONS:
            kafka.move_leader(topic, number, NO_LEADER)
        yield kafka


def metadata_requests(cluster: FakeKafka) -> int:
    return len(cluster.request_bodies(METADATA))


def test_two_attempts_to_list_offsets_send_two_metadata_requests(cluster: FakeKafka) -> None:
    with client_of(cluster.bootstrap_servers) as client:
        with pytest.raises(DeadlineExceeded, match=r"2 attempt.*LEADER_NOT_AVAILABLE"):
            list_offsets(client, dict.fromkeys(ALL_PARTITIONS, LATEST), max_attempts=2)
        assert metadata_requests(cluster) == 2


def test_leaders_log_samples_and_delete_records_send_one_metadata_request_each(cluster: FakeKafka) -> None:
    with client_of(cluster.bootstrap_servers) as client:
        assert leader_ids(client, ALL_PARTITIONS, client.deadline()) == {}
        assert metadata_requests(cluster) == 1
        sizes, starts = {"partition_max_bytes": 1_000, "partitions_per_request": 10}, dict.fromkeys(ALL_PARTITIONS, 0)
        assert list(log_samples(client, ConsumerConfig(), starts, client.deadline(), **sizes)) == []
        assert metadata_requests(cluster) == 2
        with pytest.raises(DeadlineExceeded):
            delete_records(client, starts, client.deadline(50))
        wait_until(lambda: metadata_requests(cluster) >= 3)
        assert metadata_requests(cluster) == 3


def test_leader_lookups_of_ranges_share_requests(cluster: FakeKafka) -> None:
    """Back-offs are 0.1, 0.2, 0.4, 0.8 and 1 s, each ± 20 %: five or six attempts in 2 s, for all 200 partitions."""
    ranges = [Range(topic, number, 0, 10) for topic, number in ALL_PARTITIONS]
    with client_of(cluster.bootstrap_servers) as client:
        with pytest.raises(DeadlineExceeded):
            list(BoundedReader(client, ConsumerConfig(), ranges, poll_timeout_ms=2_000))
        assert 2 <= metadata_requests(cluster) <= 10


def test_leader_lookups_of_open_partitions_share_requests(cluster: FakeKafka) -> None:
    """At most three requests per attempt, for all 200 partitions: jitter spreads their back-offs."""
    with client_of(cluster.bootstrap_servers) as client, consumer_of(client) as consumer:
        streams = consumer.consume_partitions(dict.fromkeys(ALL_PARTITIONS, 0))
        wait_until(lambda: min(stream.buffer.source.attempts for stream in streams.values()) >= 4)
        assert metadata_requests(cluster) <= 3 * max(stream.buffer.source.attempts for stream in streams.values())


class TestLeaderThread:
    @pytest.fixture
    def consumer(self, cluster: FakeKafka) -> Iterator[Consumer]:
        cluster.move_leader("orders", 1, 1)
        cluster.write("orders", 1, records(0, 5))
        with client_of(cluster.bootstrap_servers) as client, consumer_of(client) as consumer:
            yield consumer

    def test_leader_thread_survives_a_partition_that_waits_forever(
        self, consumer: Consumer, cluster: FakeKafka
    ) -> None:
        failing = consumer.consume_partition("orders", 0, 0)
        with fetcher_of(consumer).lock:
            failing.buffer.postpone(ConnectionLost("as if"), time.monotonic())
            failing.buffer.source.retry_at_s = failing.buffer.source.batch_retry_at_s = float("inf")
            fetcher_of(consumer).leader_work.notify()
        assert consumer.consume_partition("orders", 1, 0).poll(10_000) is not None
        cluster.move_leader("orders", 2, 1)
        cluster.write("orders", 2, records(0, 5))
        assert consumer.consume_partition("orders", 2, 0).poll(10_000) is not None

    def test_leader_thread_failure_fails_all_open_partitions(
        self, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waiting = consumer.consume_partition("orders", 0, 0)

        def faulty(*_: Any) -> None:
            raise ZeroDivisionError("a fault")

        monkeypatch.setattr("protocol.fetch.partition_fetcher.due_for_leaders", faulty)
        with fetcher_of(consumer).lock:
            fetcher_of(consumer).leader_work.notify()
        for _ in range(2):
            with pytest.raises(UsageError, match=r"orders-0: .* resolving brokers has failed: ZeroDivisionError"):
                waiting.poll(10_000)
            waiting.seek(3)
        with pytest.raises(UsageError, match="resolving brokers has failed"):
            consumer.poll(10_000)
        with pytest.raises(UsageError, match="resolving brokers has failed"):
            consumer.consume_partition("orders", 1, 0)
