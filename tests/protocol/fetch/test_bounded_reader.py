"""Ranges of several partitions: rows, number of requests, errors; most read from a real Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import DataLoss, UsageError
from protocol.fetch.log_offsets import Range
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.conftest import Written
from tests.protocol.fetch.consuming import (
    client_of,
    move_leader,
    partition_now,
    produce,
    ranges_of,
    reader,
    records,
    rows_of,
    skip_loss,
)
from tests.support.kafka_proxy import Exchange, KafkaProxy
from tests.support.wait_until import wait_until


def test_next_fetch_is_in_flight_while_a_range_is_decoded(kafka: LocalKafka, written: Written) -> None:
    name = written(3_000, size=100, settings={"batch.size": 20_000})
    with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
        consumer = reader(client, [Range(name, 0, 0, 3_000)], {"max.partition.fetch.bytes": 100_000})
        batches = iter(consumer)
        next(batches)
        wait_until(lambda: proxy.frame_counts["Fetch", "request"] == 2)
        assert consumer.fetches == 1
        rows = sum(batch.num_rows for _, batch in batches)
        assert 2_000 < rows < 3_000
        # 330 KB, and no fetch beyond the end
        assert proxy.frame_counts["Fetch", "request"] == consumer.fetches <= 5


def test_large_range_starts_with_a_small_fetch_if_requested(kafka: LocalKafka, written: Written) -> None:
    """The first records are delivered early, while later and larger replies are in flight."""
    name = written(8_000, size=1_000, settings={"batch.size": 100_000})
    requested: list[int] = []

    def note(exchange: Exchange) -> float:
        requested.append(exchange.request()["topics"][0]["partitions"][0]["partition_max_bytes"])
        return 0.0

    with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
        proxy.requests[FETCH] = note
        for first_fetch_bytes in (1 << 20, None):
            consumer = reader(client, ranges_of(client, name, 1), first_fetch_bytes=first_fetch_bytes)
            assert sum(len(rows) for rows in rows_of(consumer).values()) == 8_000
    assert requested[:3] == [1 << 20, 2 << 20, 4 << 20]
    assert 8 << 20 in requested[3:], "max.partition.fetch.bytes from the first fetch on"


def test_leader_moving_during_a_read_loses_no_rows(
    kafka: LocalKafka, written: Written, client: Client, tmp_path: Path
) -> None:
    """No record is missing or repeated. The epochs then show a truncated log."""
    name = written(4_000, 2, size=100, settings={"batch.size": 10_000})
    ranges = ranges_of(client, name, 2)
    consumer = reader(client, ranges, {"max.partition.fetch.bytes": 65_536})
    batches = iter(consumer)
    rows = [(value.partition, offset) for value, batch in [next(batches)] for offset in batch["offset"].to_pylist()]
    old = client.leader(name, 0)[0].node_id
    new = next(number for number in kafka.broker_ids if number != old)
    move_leader(kafka, name, 0, new, tmp_path)
    wait_until(lambda: partition_now(client, name).leader == new)
    for source_range, batch in batches:
        rows += [(source_range.partition, offset) for offset in batch["offset"].to_pylist()]
    assert sorted(rows) == [(partition, offset) for partition in range(2) for offset in range(2_000)]

    produce(kafka, name, range(0, 20, 2), 2)
    # Not with `client`: the old leader may have served it to the end. Another broker may still lag.
    wait_until(lambda: partition_now(client, name).leader_epoch > 0)
    end = 2_000 + 10
    assert len(rows_of(reader(client, [Range(name, 0, 2_000, end, from_epoch=0)]))) == 1
    # A reader that has read up to 2,005 in epoch 0: its last five records are not those of the current log.
    truncated = Range(name, 0, 2_005, end, from_epoch=0)
    with pytest.raises(DataLoss, match=rf"{name}-0: .* below offset 2005: .* up to offset 2000 "):
        rows_of(reader(client, [truncated]))
    going_on = reader(client, [truncated], on_loss=skip_loss)
    assert [offset for offset, _ in rows_of(going_on)[truncated]] == list(range(2_000, end))
    assert going_on.skipped == []
    with pytest.raises(DataLoss, match=rf"{name}-0: .* does not know leader epoch 99"):
        rows_of(reader(client, [Range(name, 0, 2_005, end, from_epoch=99)]))


def test_slow_caller_causes_no_timeout(kafka: LocalKafka, written: Written) -> None:
    """The replies in flight exceed the sockets' buffers, so they arrive only when they are read."""
    name = written(30, size=500_000, settings={"batch.size": 400_000})
    properties = {"max.partition.fetch.bytes": 7_000_000, "fetch.max.wait.ms": 100}
    rows, clock = 0, ManualClock()
    with Client(parse_client({"bootstrap.servers": kafka.bootstrap_servers}), clock) as client:
        for _, batch in reader(client, [Range(name, 0, 0, 30)], properties, poll_timeout_ms=1_000):
            clock.advance(3)
            rows += batch.num_rows
    assert rows == 30


def test_second_iteration_is_refused(fake_client: Client) -> None:
    """It would skip records: the positions are behind the replies received, read or not."""
    consumer = reader(fake_client, [Range("orders", partition, 0, 5) for partition in range(2)])
    batches = iter(consumer)
    assert next(batches)[1].num_rows == 5
    with pytest.raises(UsageError, match="iterated once"):
        list(consumer)
    assert [batch.num_rows for _, batch in batches] == [5]


@pytest.mark.parametrize("partitions", [2, 4])
def test_ranges_share_replies_with_room_for_one(partitions: int) -> None:
    """Otherwise others have no records until the first ones end, and `poll_timeout_ms` ends the read.

    A request has three of four ranges.
    """
    with FakeKafka() as fake, client_of(fake.bootstrap_servers) as client:
        fake.create_topic("orders", partitions)
        for partition in range(partitions):
            for number in range(3):
                fake.write("orders", partition, records(5 * number, 5))
        ranges = [Range("orders", partition, 0, 15) for partition in range(partitions)]
        reply_bytes = len(records(0, 5))
        limits = {"fetch.max.bytes": reply_bytes, "max.partition.fetch.bytes": 3 * reply_bytes}
        read = [source_range.partition for source_range, _ in reader(client, ranges, limits)]
        assert set(read[: partitions + 1]) == set(range(partitions)), read
        for body in fake.request_bodies(FETCH):
            rows = [row for topic in body["topics"] for row in topic["partitions"]]
            assert sum(row["partition_max_bytes"] for row in rows) <= limits["max.partition.fetch.bytes"]
