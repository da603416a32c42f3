"""Seek, pause, added and closed partitions, and their errors: the consumer without a group."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from protocol.admin.topics import delete_records
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ConnectionLost, DataLoss, DeadlineExceeded, UsageError
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.conftest import Written
from tests.protocol.fetch.consuming import client_of, consumer_of, offsets_of, read_all
from tests.support.internals import fetcher_of
from tests.support.kafka_proxy import Exchange, KafkaProxy
from tests.support.wait_until import wait_until


def test_stream_is_sought_paused_and_resumed(written: Written, client: Client) -> None:
    name = written(1_000)
    with consumer_of(client, {"fetch.max.wait.ms": 100}) as consumer:
        stream = consumer.consume_partition(name, 0, LATEST)
        wait_until(lambda: stream.high_water_mark == 1_000)
        assert stream.poll(200) is None
        assert (stream.position, stream.lag) == (1_000, 0)
        stream.seek(990)
        assert [message.offset for message in islice(stream.messages(20_000), 10)] == list(range(990, 1_000))
        assert stream.poll(200) is None
        stream.seek(10)
        messages = stream.messages(20_000)
        assert next(messages).offset == 10
        stream.seek(500)
        # The iteration that started at offset 10 ends there.
        assert next(messages).offset == 500
        stream.seek(0)
        stream.pause()
        assert stream.poll(300) is None
        assert (stream.position, stream.lag) == (0, 1_000)
        stream.resume()
        assert stream.poll(20_000) is not None
        with pytest.raises(UsageError, match="-5"):
            stream.seek(-5)


def test_read_after_a_break_continues_after_the_last_message(written: Written, client: Client) -> None:
    name = written(100)
    with consumer_of(client) as consumer:
        stream = consumer.consume_partition(name, 0, EARLIEST)
        for message in stream.messages(20_000):
            if message.offset == 9:
                break
        assert (stream.position, next(stream.messages(20_000)).offset, stream.position) == (10, 10, 11)
        first, second = stream.messages(20_000), stream.messages(20_000)
        assert [next(iterator).offset for iterator in (first, second, first)] == [11, 12, 13]
        for max_rows in (20, None):
            batch = stream.poll(20_000, max_rows)
            assert batch is not None
            assert batch["offset"][0].as_py() == (14 if max_rows else 34)
        assert stream.position == 100
        stream.seek(0)
        assert next(stream.messages(20_000)).offset == 0
        part = stream.poll(20_000, 2)
        assert part is not None
        assert next(stream.messages_of(part)).offset == 1
        stream.pause()
        assert stream.poll(0) is None
        stream.resume()
        assert [message.offset for message in islice(stream.messages(20_000), 98)] == list(range(2, 100))
        stream.seek(50)
        assert next(stream.messages(20_000)).offset == 50
        stream.seek(70)
        assert next(stream.messages(20_000)).offset == 70
        stream.close()
        assert stream.poll(0) is None


def test_unread_messages_come_first_also_if_a_pause_comes_in_between(
    written: Written, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = written(100, settings={"batch.num.messages": 10})
    take = PartitionConsumer._await_reply

    def take_between(stream: PartitionConsumer, *arguments: Any) -> Any:
        stream.resume()
        taken = take(stream, *arguments)
        stream.pause()
        return taken

    with consumer_of(client, {"max.partition.fetch.bytes": 100}) as consumer:
        stream = consumer.consume_partition(name, 0, EARLIEST)
        assert next(stream.messages(20_000)).offset == 0
        stream.pause()
        monkeypatch.setattr(PartitionConsumer, "_await_reply", take_between)
        assert stream.poll(1_000) is None
        monkeypatch.undo()
        stream.resume()
        assert [message.offset for message in islice(stream.messages(20_000), 99)] == list(range(1, 100))


def test_reply_to_a_fetch_before_a_seek_is_dropped(kafka: LocalKafka, written: Written) -> None:
    name = written(1_000, settings={"batch.size": 2_000})
    sought = threading.Event()

    def hold_the_second(exchange: Exchange) -> float:
        if exchange.number == 2:
            assert sought.wait(20)
        return 0.0

    with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
        proxy.replies[FETCH] = hold_the_second
        with consumer_of(client, {"max.partition.fetch.bytes": 2_000}) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            assert stream.poll(20_000) is not None
            wait_until(lambda: proxy.frame_counts["Fetch", "reply"] == 2)
            stream.seek(500)
            sought.set()
            assert next(stream.messages(20_000)).offset == 500


def test_partitions_are_added_and_closed(written: Written, client: Client) -> None:
    name = written(600, 6)
    with consumer_of(client) as consumer:
        first = consumer.consume_partition(name, 0, EARLIEST)
        assert len(read_all(consumer, 100)) == 1
        with pytest.raises(UsageError, match=f"{name}-0 is being consumed already"):
            consumer.consume_partition(name, 0, EARLIEST)
        first.close()
        assert first.poll(0) is None
        streams = consumer.consume_partitions({(name, number): 90 for number in range(6)})
        assert {number: len(rows) for number, rows in read_all(consumer, 60).items()} == dict.fromkeys(range(6), 10)
        for stream in streams.values():
            stream.close()
        assert consumer.streams == {}
    with pytest.raises(UsageError, match="closed"):
        consumer.consume_partition(name, 0, 0)


def test_deleted_offset_is_raised_until_the_user_seeks(written: Written, client: Client) -> None:
    name = written(100)
    delete_records(client, {(name, 0): 40})
    with consumer_of(client) as consumer:
        for offset in (10, 101):
            stream = consumer.consume_partition(name, 0, offset)
            for _ in range(2):
                with pytest.raises(DataLoss, match=rf"offset {offset} is not in the log .* \[40, 100\)") as raised:
                    stream.poll(10_000)
            stream.seek(raised.value.context["log_start_offset"])
            assert len(list(islice(stream.messages(20_000), 60))) == 60
            assert stream.poll(200) is None
            stream.close()


def test_records_before_a_deleted_offset_are_read_first(written: Written, client: Client) -> None:
    """Two replies are ahead of the user when the third is refused."""
    name = written(100, settings={"batch.num.messages": 10, "linger.ms": 60_000})
    with consumer_of(client, {"max.partition.fetch.bytes": 1, "max.processing.time.ms": 60_000}) as consumer:
        stream = consumer.consume_partition(name, 0, EARLIEST)
        wait_until(lambda: stream.buffer.full)
        delete_records(client, {(name, 0): 60})
        assert offsets_of(stream.poll(10_000)) == list(range(10))
        wait_until(lambda: stream.buffer.error is not None)
        assert offsets_of(stream.poll(10_000)) == list(range(10, 20))
        with pytest.raises(DataLoss, match=r"offset 20 is not in the log .* \[60, 100\)") as raised:
            stream.poll(10_000)
        stream.seek(raised.value.context["log_start_offset"])
        assert offsets_of(stream.poll(10_000)) == list(range(60, 70))


def test_failure_of_one_partition_is_raised_beside_busy_ones(kafka: LocalKafka, written: Written) -> None:
    name = written(40_000, 2, size=100, settings={"batch.num.messages": 10})
    config, clock = parse_client({"bootstrap.servers": kafka.bootstrap_servers}), ManualClock()
    with (
        Client(replace(config, default_api_timeout_ms=1_000), clock) as impatient,
        consumer_of(impatient, {"max.partition.fetch.bytes": 1}) as consumer,
    ):
        streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(2)})
        failing = streams[name, 0]

        def read_on() -> None:
            for stream, _ in islice(consumer, 1_500):
                if stream is not failing and failing.buffer.source.failure is None:
                    with fetcher_of(consumer).lock:
                        failing.buffer.postpone(ConnectionLost("as if"), clock.now_s())
                        failing.buffer.source.retry_at_s = float("inf")
                clock.advance(0.005)

        with pytest.raises(DeadlineExceeded, match=failing.name):
            read_on()
        assert consumer.poll(10_000) is not None
