"""The threads that fetch open partitions: a failure of one partition or broker does not delay the others."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import ConnectFailed, UsageError
from protocol.fetch import fetch_schedule
from protocol.fetch.consumer import Consumer
from protocol.fetch.leaders import resolve_leaders
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.fetch.partition_fetcher import PartitionFetcher
from protocol.kafka_terms import EARLIEST
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from tests.protocol.fetch.consuming import (
    client_of,
    consumer_of,
    consumer_threads,
    offsets_of,
    read_all,
    records,
    reply,
    reply_row,
)
from tests.support.wait_until import wait_until


def test_records_do_not_wait_for_the_query_about_the_log_of_another_partition(
    fake: FakeKafka, consumer: Consumer
) -> None:
    """One reply has the records of orders-0, and refuses the position of orders-1: its log is queried."""
    read = threading.Event()

    def fetch(body: dict[str, Any], version: int) -> dict[str, Any]:
        return reply(reply_row(0, records(0, 5)), reply_row(1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))

    def list_offsets(body: dict[str, Any], version: int) -> dict[str, Any]:
        read.wait(30)
        return {"topics": [{"name": "orders", "partitions": [{"partition_index": 1, "offset": 5}]}]}

    fake.handlers[FETCH] = fetch
    fake.handlers[LIST_OFFSETS] = list_offsets
    streams = consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 7})
    try:
        assert offsets_of(streams["orders", 0].poll(20_000)) == [0, 1, 2, 3, 4]
    finally:
        read.set()


def test_broker_whose_thread_cannot_start_delays_only_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has too many threads, until the first records have been read."""
    start, refused = threading.Thread.start, True

    def start_some(thread: threading.Thread) -> None:
        if refused and thread.name.startswith("consumer-") and thread.name.endswith("-2"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with FakeKafka(2) as fake, client_of(fake.bootstrap_servers, retry_backoff_ms=10) as client:
        fake.create_topic("orders", 2)
        for partition in range(2):
            fake.move_leader("orders", partition, partition + 1)
            fake.write("orders", partition, records(0, 5))
        with consumer_of(client) as consumer:
            streams = consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 0})
            assert offsets_of(streams["orders", 0].poll(20_000)) == [0, 1, 2, 3, 4]
            assert isinstance(streams["orders", 1].failure, ConnectFailed)
            refused = False
            assert offsets_of(streams["orders", 1].poll(20_000)) == [0, 1, 2, 3, 4]


def test_expired_partition_whose_replies_were_dropped_is_read_by_poll_of_the_consumer() -> None:
    """The replies made room for a partition whose own reader waited; then one thread reads all partitions."""
    with FakeKafka() as fake, client_of(fake.bootstrap_servers) as client:
        fake.create_topic("orders", 2)
        fake.write("orders", 0, records(0, 5, size=5_000))
        with consumer_of(client, {"max.processing.time.ms": 1}, buffer_memory_bytes=10_000) as consumer:
            streams = consumer.consume_partitions({("orders", 0): 0, ("orders", 1): 0})
            wait_until(lambda: streams["orders", 0].expired)
            fake.write("orders", 1, records(0, 5))
            fetches = consumer.fetches
            assert offsets_of(streams["orders", 1].poll(20_000)) == [0, 1, 2, 3, 4]
            wait_until(lambda: consumer.fetches >= fetches + 2)
            assert not streams["orders", 0].buffer.ahead
            assert read_all(consumer, 5).keys() == {0}


def test_unexpected_error_of_a_leader_lookup_is_raised(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader thread continues."""
    faults = iter([RuntimeError("a fault")])

    def faulty(*arguments: Any) -> Any:
        for fault in faults:
            raise fault
        return resolve_leaders(*arguments)

    monkeypatch.setattr("protocol.fetch.partition_fetcher.resolve_leaders", faulty)
    stream = consumer.consume_partition("orders", 0, EARLIEST)
    with pytest.raises(UsageError, match="the broker of orders-0 has failed: RuntimeError"):
        stream.poll(10_000)
    stream.seek(3)
    assert offsets_of(stream.poll(10_000)) == [3, 4]


def test_leader_found_during_close_starts_no_thread(fake_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """`close` would not wait for it."""
    earlier_threads = consumer_threads()
    resolving, closing, started = threading.Event(), threading.Event(), list[str]()
    end_stream, start = PartitionConsumer.close, threading.Thread.start

    def slow(*arguments: Any) -> Any:
        resolving.set()
        assert closing.wait(30)
        monkeypatch.setattr(threading.Thread, "start", lambda thread: (started.append(thread.name), start(thread)))
        return resolve_leaders(*arguments)

    def close(stream: PartitionConsumer, *arguments: Any) -> None:
        closing.set()
        [leaders] = consumer_threads() - earlier_threads
        leaders.join(30)
        end_stream(stream, *arguments)

    monkeypatch.setattr("protocol.fetch.partition_fetcher.resolve_leaders", slow)
    monkeypatch.setattr(PartitionConsumer, "close", close)
    with consumer_of(fake_client) as consumer:
        consumer.consume_partition("orders", 0, EARLIEST)
        assert resolving.wait(30)
    assert [name for name in started if name.startswith("consumer-")] == []


def test_ending_broker_thread_leaves_the_connection_of_its_successor_open(
    fake: FakeKafka, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition of the broker is opened while the thread of the closed ones ends."""
    next_fetch, ending, proceed = PartitionFetcher.next_fetch, list[threading.Thread](), threading.Event()

    def slow_end(fetcher: PartitionFetcher, thread: Any) -> Any:
        fetch = next_fetch(fetcher, thread)
        if fetch is None and not ending:
            ending.append(thread)
            assert proceed.wait(30)
        return fetch

    monkeypatch.setattr(PartitionFetcher, "next_fetch", slow_end)
    monkeypatch.setattr(fetch_schedule, "_LINGER_S", 0.01)
    first = consumer.consume_partition("orders", 0, EARLIEST)
    first.poll(20_000)
    first.close()
    wait_until(lambda: ending)
    second = consumer.consume_partition("orders", 0, EARLIEST)
    assert offsets_of(second.poll(20_000)) == [0, 1, 2, 3, 4]
    caplog.set_level(logging.DEBUG, "protocol.fetch")
    proceed.set()
    ending[0].join(30)
    fake.write("orders", 0, records(5, 5))
    assert offsets_of(second.poll(20_000)) == [5, 6, 7, 8, 9]
    assert "is retried" not in caplog.text
