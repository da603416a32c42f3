"""Seek, pause, added and closed partitions, their errors, and slow users: the consumer without a group."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from protocol.admin.topics import delete_records
from protocol.cluster.client import Client
from protocol.errors import DataLoss, UsageError
from protocol.fetch.consumer import Consumer
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.protocol.fetch.conftest import Written
from tests.protocol.fetch.consuming import client_of, consumer_of, offsets_of, produce, read_all
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


# -- users that read slowly or not at all ----------------------------------------------------------


def test_poll_without_waiting_gets_the_memory_of_unread_streams(
    kafka: LocalKafka, written: Written, client: Client
) -> None:
    name = written(12_000, 6, size=200)
    properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
    with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
        streams = list(consumer.consume_partitions({(name, number): EARLIEST for number in range(6)}).values())
        wait_until(lambda: has_no_memory(consumer))
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


def has_no_memory(consumer: Consumer) -> bool:
    with fetcher_of(consumer).lock:
        return fetcher_of(consumer).schedule.free_bytes <= 0
