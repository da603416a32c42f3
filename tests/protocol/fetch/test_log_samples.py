"""Bytes per offset: computed from batch headers, and compared with the disks of a real Kafka."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from protocol.broker_errors import ErrorCode
from protocol.config import ConsumerConfig
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.fetch.log_samples import RecordSizes, log_samples
from protocol.position import Position
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.protocol.fetch.consuming import TOPIC_ID, client_of, records, reply, reply_row
from tests.protocol.records.test_legacy import some, wrap, write
from tests.support.log_segments import stored_batches

CONFIG = ConsumerConfig()


def fetched(data: bytes, position: int = 0) -> CompletedFetch:
    fetch = FetchPosition("orders", 0, Position(position), CONFIG).handle_response(reply_row(data=data), "kafka1")
    assert fetch is not None
    return fetch


# -- from headers ---------------------------------------------------------------------------------


def bytes_per_offset(result: CompletedFetch) -> float:
    return result.records.bytes_per_offset(result.start.offset)


SMALL, LARGE = records(0, 10), records(10, 30, size=10_000)


@pytest.mark.parametrize(
    ("data", "position", "counted_bytes", "offsets"),
    [
        (SMALL + LARGE, 0, len(SMALL + LARGE), 40),
        (SMALL, 9, len(SMALL), 10),
        (records(50, 10, last_offset=99) + records(200, 10), 40, 2 * len(SMALL), 170),
        (SMALL + LARGE[:61], 0, len(SMALL + LARGE), 40),
        (SMALL + LARGE[:60], 0, len(SMALL), 10),
        (SMALL + records(3, 5, size=10_000)[:100], 0, len(SMALL), 10),
        (SMALL + (LARGE[:16] + b"\1" + LARGE[17:])[:100], 0, len(SMALL), 10),
    ],
    ids=[
        "all bytes by offsets",
        "a batch that starts before the position counts whole",
        "compacted offsets count",
        "a partial batch counts with the size in its header",
        "not without its header",
        "not with offsets of the batch before",
        "not with an unknown format",
    ],
)
def test_bytes_per_offset_follow_from_batch_headers(
    data: bytes, position: int, counted_bytes: int, offsets: int
) -> None:
    assert bytes_per_offset(fetched(data, position)) == counted_bytes / offsets


def test_compressed_legacy_messages_have_no_start_offset() -> None:
    data = write(wrap(some(1, first=10_000, count=100), "gzip"))
    fetch = fetched(data, position=10_000)
    assert bytes_per_offset(fetch) == len(data) / (fetch.next_offset - 10_000)


# -- requests, and cached sizes -------------------------------------------------------------------


@contextmanager
def cluster(partitions: int, *answers: Any) -> Iterator[FakeKafka]:
    """Yield a broker that leads topic `orders` and answers Fetch with `answers` in turn."""
    remaining = list(answers)
    with FakeKafka() as kafka:
        kafka.create_topic("orders", partitions, topic_id=TOPIC_ID)
        kafka.handlers[FETCH] = lambda body, version: remaining.pop(0)
        yield kafka


def fetches(broker: FakeKafka) -> list[list[int]]:
    """Return the partitions of each Fetch."""
    return [
        [row["partition"] for topic in body["topics"] for row in topic["partitions"]]
        for body in broker.request_bodies(FETCH)
    ]


def sample(broker: FakeKafka, sizes: RecordSizes, partitions: int, timeout_ms: float = 10_000) -> dict[int, float]:
    keys = [("orders", number) for number in range(partitions)]
    with client_of(broker.bootstrap_servers) as client:
        sizes.sample(client, dict.fromkeys(keys, 0), client.deadline(timeout_ms))
    return {partition: size for (_, partition), size in sizes.bytes_per_offset(keys).items()}


def test_partition_without_records_is_asked_again_until_it_was_first() -> None:
    data = records(0, 10)
    answers = [
        reply(reply_row(0), reply_row(1), reply_row(2, data), reply_row(3)),
        reply(reply_row(1, data), reply_row(3)),
        reply(reply_row(3)),
    ]
    with cluster(4, *answers) as broker:
        assert sample(broker, RecordSizes(ConsumerConfig(client_rack="a")), 4) == dict.fromkeys(
            range(4), len(data) / 10
        )
        assert fetches(broker) == [[0, 1, 2, 3], [1, 3], [3]]
        # With a rack, the reply may name another replica.
        assert {body["rack_id"] for body in broker.request_bodies(FETCH)} == {""}


def test_throttling_broker_is_not_asked_again() -> None:
    with cluster(2, reply(throttle_time_ms=1_000)) as broker:
        sample(broker, RecordSizes(CONFIG), 2)
        assert fetches(broker) == [[0, 1]]


def test_partition_without_a_sample_is_first_next_time() -> None:
    sizes, data = RecordSizes(CONFIG), records(0, 10)
    with cluster(2, reply(reply_row(0, data), reply_row(1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))) as broker:
        sample(broker, sizes, 2)
    with cluster(2, reply(reply_row(1, data), reply_row(0, data))) as broker:
        sample(broker, sizes, 2)
        assert fetches(broker) == [[1, 0]]


def test_sampling_stops_after_enough_bytes() -> None:
    data = records(0, 10)
    with (
        cluster(3, *[reply(reply_row(number, data)) for number in range(3)]) as broker,
        client_of(broker.bootstrap_servers) as client,
    ):
        offsets = {("orders", number): 0 for number in range(3)}
        bounds = {"partition_max_bytes": 1, "partitions_per_request": 1, "max_bytes": len(data) + 1}
        samples = log_samples(client, CONFIG, offsets, client.deadline(), **bounds)
        assert [key for key, _ in samples] == [("orders", 0), ("orders", 1)]


def test_earlier_size_counts_half_and_replaces_unknown_sizes(caplog: pytest.LogCaptureFixture) -> None:
    sizes = RecordSizes(CONFIG)
    small, large = records(0, 10, size=100), records(0, 10, size=10_000)
    with cluster(2, reply(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)) as broker, caplog.at_level(logging.WARNING):
        assert sample(broker, sizes, 2) == {0: 1024, 1: 1024}
    assert "orders-0: its log could not be sampled; 1024 bytes per offset are assumed" in caplog.text
    with cluster(2, reply(reply_row(0, small), reply_row(1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))) as broker:
        assert sample(broker, sizes, 2) == {0: len(small) / 10, 1: len(small) / 10}, "the mean of the topic"
    with cluster(2, reply(reply_row(0, large), reply_row(1, small))) as broker:
        assert sample(broker, sizes, 2) == {0: (len(small) + len(large)) / 20, 1: len(small) / 10}
    with cluster(2, b"\0\0\0\4\0\0\0\2") as broker:
        assert sample(broker, sizes, 2) == {0: (len(small) + len(large)) / 20, 1: len(small) / 10}


def test_silent_broker_costs_no_more_than_the_deadline() -> None:
    with cluster(100, None, None) as broker:
        started_s = time.monotonic()
        assert sample(broker, RecordSizes(CONFIG), 100, timeout_ms=1_000)[99] == 1024
        assert time.monotonic() - started_s < 15
        assert len(fetches(broker)) == 1


# -- on a real Kafka ------------------------------------------------------------------------------


def test_sizes_equal_those_on_the_brokers_disks(kafka: LocalKafka, topic: TopicFactory) -> None:
    """Also for partitions whose batches are larger than a sample: with one replica each, several share a leader."""
    name = topic(9, replication_factor=1)
    large: dict[str, object] = {"batch.size": 900_000, "linger.ms": 1_000}
    small: dict[str, object] = {"batch.size": 16_384}
    shapes: list[tuple[int, int, dict[str, object]]] = [
        (100, 2_000, small),
        (5_000, 100, small),
        (1_000, 500, {**small, "compression.type": "lz4"}),
        *[(3_000, 200, large)] * 6,
    ]
    for partition, (size, count, settings) in enumerate(shapes):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "linger.ms": 20, **settings})
        # A producer that learns of a topic during its flush splits the records into more batches.
        producer.list_topics(name, timeout=30)
        for _ in range(count):
            producer.produce(name, os.urandom(size // 2).ljust(size, b"."), partition=partition)
        assert producer.flush(60) == 0
    keys = {(name, partition): 0 for partition in range(len(shapes))}
    sizes = RecordSizes(CONFIG)
    with client_of(kafka) as client:
        sizes.sample(client, dict.fromkeys(keys, 7), client.deadline())
    result = sizes.bytes_per_offset(keys)
    for key in keys:
        stored = next(
            batches for broker in kafka.broker_ids if (batches := stored_batches(kafka.data_folder(broker), *key))
        )
        if key[1] >= 3:
            assert stored[0].bytes > 100_000, "a batch larger than a sample"
        truly = sum(batch.bytes for batch in stored) / (stored[-1].last_offset + 1)
        assert result[key] == pytest.approx(truly, rel=0.25), key
