"""Users that read slowly or not at all do not delay others, and their buffers are freed for others."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from protocol.cluster.client import Client
from protocol.fetch.consumer import Consumer
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.conftest import Written
from tests.protocol.fetch.consuming import consumer_of, offsets_of, produce, read_all
from tests.support.internals import fetcher_of
from tests.support.wait_until import wait_until


def test_unread_stream_of_ten_does_not_delay_others(written: Written, client: Client) -> None:
    """Nine streams are read to their end while the tenth is not; then the tenth is read completely."""
    name = written(20_000, 10, size=200)
    properties = {"max.partition.fetch.bytes": 20_000, "max.processing.time.ms": 50}
    with consumer_of(client, properties) as consumer:
        streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
        stuck = streams.pop((name, 3))
        records = {stream.partition: read_rows(stream, 2_000) for stream in streams.values()}
        assert all(offsets == list(range(2_000)) for offsets in records.values())
        wait_until(lambda: stuck.expired)
        assert read_rows(stuck, 2_000) == list(range(2_000))
        assert not stuck.expired


def test_unread_stream_releases_its_memory_and_is_read_completely_later(written: Written, client: Client) -> None:
    name = written(20_000, 10, size=200)
    properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
    with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
        streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
        readers = {number: streams.pop((name, number)) for number in (0, 5)}
        for stream in readers.values():
            assert read_rows(stream, 2_000) == list(range(2_000))
        for stream in streams.values():
            assert read_rows(stream, 2_000) == list(range(2_000))


def test_poll_without_waiting_gets_the_memory_of_unread_streams(
    kafka: LocalKafka, written: Written, client: Client
) -> None:
    name = written(12_000, 6, size=200)
    properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
    with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
        streams = list(consumer.consume_partitions({(name, number): EARLIEST for number in range(6)}).values())
        wait_until(lambda: room_bytes(consumer) <= 0)
        for stream in streams:
            wait_until(lambda stream=stream: stream.poll(0) is not None)  # type: ignore[misc]
        # And by one thread for all streams: the others are paused now.
        for stream in streams[1:]:
            stream.pause()
        produce(kafka, name, range(6), 6)
        collected: list[int] = []

        def read_on() -> bool:
            while (read := consumer.poll(0)) is not None:
                collected.extend(offsets_of(read[1]))
            return bool(collected) and collected[-1] == 2_000

        wait_until(read_on)


def test_fetches_do_not_wait_for_streams_that_are_read(written: Written, client: Client) -> None:
    """The next request is sent as soon as all streams are read, and as soon as memory is free."""
    name = written(12_000, 6, size=100, settings={"batch.size": 2_000})
    properties = {"max.partition.fetch.bytes": 10_000, "max.processing.time.ms": 30_000}
    with consumer_of(client, properties, buffer_memory_bytes=15_000) as consumer:
        consumer.consume_partitions({(name, number): EARLIEST for number in range(6)})
        started_s = time.monotonic()
        read_all(consumer, 12_000)
        assert time.monotonic() - started_s < 25
        assert consumer.fetches > 60


def test_partitions_take_turns_reply_by_reply(written: Written, client: Client) -> None:
    """Then a broker gets a fetch of all partitions as soon as the first reply of each is being read."""
    name = written(150, 3, settings={"batch.num.messages": 10})
    with consumer_of(client, {"max.partition.fetch.bytes": 1, "max.processing.time.ms": 60_000}) as consumer:
        streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(3)}).values()
        for _ in range(3):
            wait_until(lambda: all(stream.buffer.full for stream in streams))
            turns = [read[0].partition for read in (consumer.poll(10_000) for _ in range(3)) if read is not None]
            assert sorted(turns) == [0, 1, 2]


def test_slow_user_of_many_partitions_reads_all_of_them(
    written: Written, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is full and all streams have expired: fetched replies wait for their turn and are not dropped."""
    name = written(12_000, 6, size=100, settings={"batch.size": 2_000})
    properties = {"max.partition.fetch.bytes": 10_000, "max.processing.time.ms": 1}
    turns, dropped, drop = Counter[int](), list[CompletedFetch](), FetchBuffer.drop_ahead
    monkeypatch.setattr(FetchBuffer, "drop_ahead", lambda self: (dropped.extend(self.ahead), drop(self))[1])
    with consumer_of(client, properties, buffer_memory_bytes=15_000) as consumer:
        streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(6)}).values()
        while len(turns) < 6 or min(turns.values()) < 5:
            read = consumer.poll(20_000)
            assert read is not None
            turns[read[0].partition] += 1
            wait_until(lambda: all(stream.expired for stream in streams if stream.buffer.ahead))
    assert not dropped


def read_rows(stream: PartitionConsumer, rows: int) -> list[int]:
    offsets: list[int] = []
    while len(offsets) < rows:
        batch = stream.poll(20_000)
        assert batch is not None, f"{stream.name} has brought {len(offsets)} of {rows} rows"
        offsets += batch.column("offset").to_pylist()
    return offsets


def room_bytes(consumer: Consumer) -> int:
    with fetcher_of(consumer).lock:
        return fetcher_of(consumer).schedule.free_bytes
