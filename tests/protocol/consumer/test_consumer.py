"""The consumer without a group, against a real Kafka: rows, requests, users that are slow, and a clean end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.consumer.broker_consumer import look_up
from protocol.consumer.consumer import Consumer
from protocol.consumer.partition_consumer import Fetched
from protocol.consumer.partition_stream import PartitionStream
from protocol.errors import ConnectionLost, DataLoss, DeadlineExceeded, UsageError
from protocol.kafka_terms import EARLIEST, LATEST
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import ROOT, TopicFactory
from tests.kafka_proxy import Exchange, KafkaProxy
from tests.protocol.consumer.consuming import client_of, consumer_of, produce
from tests.read_back import read_back
from tests.soak import SOAK
from tests.wait_until import wait_until

# `make soak` asks for a thousand.
CYCLES = int(os.environ.get("SPARK_KAFKA_SOURCE_CYCLES", "50"))
# Of one topic. What takes long is that brokers make them.
MANY = 1_000 if SOAK else 300


@pytest.fixture(scope="module")
def client(kafka: LocalKafka) -> Iterator[Client]:
    with client_of(kafka) as made:
        yield made


def read_all(consumer: Consumer, rows: int, timeout_ms: float = 20_000) -> dict[int, list[tuple[int, bytes | None]]]:
    """(offset, value) by partition, of all streams together, until there are so many."""
    found: dict[int, list[tuple[int, bytes | None]]] = {}
    left = rows
    while left > 0:
        read = consumer.poll(timeout_ms)
        assert read is not None, f"{left} of {rows} rows are missing"
        stream, batch = read
        columns = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        found.setdefault(stream.partition, []).extend(zip(*columns, strict=True))
        left -= batch.num_rows
    assert left == 0
    return found


class TestRows:
    def test_they_are_those_that_librdkafka_reads(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        name = topic(9)
        produce(kafka, name, range(9_000), 9, settings={"batch.size": 4_096, "compression.type": "lz4"})
        expected: dict[int, list[tuple[int, bytes | None]]] = {number: [] for number in range(9)}
        for record in read_back(kafka, name):
            expected[record.partition].append((record.offset, record.value))
        with consumer_of(client, {"max.partition.fetch.bytes": 5_000}) as consumer:
            consumer.consume_partitions({(name, number): EARLIEST for number in range(9)})
            assert read_all(consumer, 9_000) == expected

    @pytest.mark.parametrize(("isolation_level", "values"), [("read_committed", 3), ("read_uncommitted", 9)])
    def test_transactions(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client, isolation_level: str, values: int
    ) -> None:
        """Three committed, three aborted, three not decided: behind these the position stands still."""
        name = topic(1)
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction, producer.flush):
            producer.begin_transaction()
            for number in range(3):
                producer.produce(name, b"%d" % number)
            producer.flush()
            end()
        with consumer_of(client, {"isolation.level": isolation_level}) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            assert sum(len(rows) for rows in read_all(consumer, values).values()) == values
            assert consumer.poll(50) is None
            assert (stream.high_water_mark, stream.last_stable_offset) == (11, 8)
            assert stream.position == (8 if isolation_level == "read_committed" else 11)
            assert stream.lag == 0
        producer.abort_transaction()

    def test_messages_are_what_a_producer_sent(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        name = topic(1, config={"retention.ms": "-1"})  # they are years old
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        producer.produce(name, b"value", b"key", headers=[("a", b"1"), ("b", None)], timestamp=1_700_000_000_123)
        producer.produce(name, None, None, timestamp=1_700_000_000_456)
        producer.flush()
        with consumer_of(client) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            messages = stream.messages(10_000)
            assert next(messages) == (
                *(name, 0, 0, 1_700_000_000_123, 0, b"key", b"value"),
                [("a", b"1"), ("b", None)],
            )
            assert next(messages) == (name, 0, 1, 1_700_000_000_456, 0, None, None, None)

    def test_a_large_record_behind_a_small_fetch_size(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(4, config={"max.message.bytes": str(10 << 20)})
        produce(kafka, name, range(400), 4)
        produce(kafka, name, range(1), size=8 << 20)
        with consumer_of(client, {"max.partition.fetch.bytes": 65_536}) as consumer:
            stream = consumer.consume_partition(name, 0, 100)
            before = consumer.fetches
            batch = stream.poll(20_000)
            assert batch is not None
            assert len(batch.column("value")[0].as_py()) == 8 << 20
            assert consumer.fetches - before <= 8
            consumer.consume_partitions({(name, number): EARLIEST for number in (1, 2, 3)})
            stream.seek(0)
            assert sum(len(rows) for rows in read_all(consumer, 401).values()) == 401
            assert consumer.fetches - before <= 30


class TestSteering:
    def test_seek_pause_resume(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        name = topic(1)
        produce(kafka, name, range(1_000))
        with consumer_of(client, {"fetch.max.wait.ms": 100}) as consumer:
            stream = consumer.consume_partition(name, 0, LATEST)
            wait_until(lambda: stream.high_water_mark == 1_000)
            assert stream.poll(200) is None
            assert (stream.position, stream.lag) == (1_000, 0)
            stream.seek(990)
            assert [message.offset for message in islice(stream.messages(5_000), 10)] == list(range(990, 1_000))
            assert stream.poll(200) is None
            stream.seek(10)
            messages = stream.messages(5_000)
            assert next(messages).offset == 10
            stream.seek(500)
            # What was begun at 10 ends there.
            assert next(messages).offset == 500
            stream.seek(0)
            stream.pause()
            assert stream.poll(300) is None
            assert (stream.position, stream.lag) == (0, 1_000)
            stream.resume()
            assert stream.poll(5_000) is not None
            with pytest.raises(UsageError, match="-5"):
                stream.seek(-5)

    def test_what_was_asked_for_before_a_seek_is_not_read(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(1)
        produce(kafka, name, range(1_000), settings={"batch.size": 2_000})
        sought = threading.Event()

        def hold_the_second(exchange: Exchange) -> float:
            if exchange.number == 2:
                assert sought.wait(10)
            return 0.0

        with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
            proxy.replies[FETCH] = hold_the_second
            with consumer_of(client, {"max.partition.fetch.bytes": 2_000}) as consumer:
                stream = consumer.consume_partition(name, 0, EARLIEST)
                assert stream.poll(5_000) is not None
                wait_until(lambda: proxy.seen["Fetch", "reply"] == 2)
                stream.seek(500)
                sought.set()
                assert next(stream.messages(5_000)).offset == 500

    def test_a_paused_stream_is_not_fetched(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(1)
        produce(kafka, name, range(10))
        with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client, consumer_of(client) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            assert stream.poll(5_000) is not None
            stream.pause()
            # The request that was under way, or about to be sent, ends; no other follows.
            assert stream.poll(300) is None
            wait_until(lambda: proxy.seen["Fetch", "reply"] == proxy.seen["Fetch", "request"])
            sent = proxy.seen["Fetch", "request"]
            produce(kafka, name, range(10))
            assert stream.poll(700) is None
            assert proxy.seen["Fetch", "request"] == sent
            stream.resume()
            assert stream.poll(5_000) is not None

    def test_partitions_come_and_go(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        name = topic(6)
        produce(kafka, name, range(600), 6)
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

    def test_an_offset_that_is_gone_is_told_until_the_user_says_where_to_go_on(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(1)
        produce(kafka, name, range(100))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        admin.delete_records([TopicPartition(name, 0, 40)])[TopicPartition(name, 0)].result()
        with consumer_of(client) as consumer:
            for offset in (10, 101):
                stream = consumer.consume_partition(name, 0, offset)
                for _ in range(2):
                    with pytest.raises(DataLoss, match=rf"offset {offset} is not in the log .* \[40, 100\)") as told:
                        stream.poll(10_000)
                stream.seek(told.value.context["log_start_offset"])
                assert len(list(islice(stream.messages(5_000), 60))) == 60
                assert stream.poll(200) is None
                stream.close()

    def test_what_came_before_the_offset_that_is_gone_is_read_first(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        """Two replies are ahead of the user when the third is refused."""
        name = topic(1)
        produce(kafka, name, range(100), settings={"batch.num.messages": 10})
        with consumer_of(client, {"max.partition.fetch.bytes": 1}) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            wait_until(lambda: stream.full)
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            admin.delete_records([TopicPartition(name, 0, 60)])[TopicPartition(name, 0)].result()
            assert offsets_of(stream.poll(10_000)) == list(range(10))
            wait_until(lambda: stream.error is not None)
            assert offsets_of(stream.poll(10_000)) == list(range(10, 20))
            with pytest.raises(DataLoss, match=r"offset 20 is not in the log .* \[60, 100\)") as told:
                stream.poll(10_000)
            stream.seek(told.value.context["log_start_offset"])
            assert offsets_of(stream.poll(10_000)) == list(range(60, 70))

    def test_after_ctrl_c_the_rest_of_a_reply_is_read(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(1)
        produce(kafka, name, range(100))
        with consumer_of(client) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            decode = stream._decode
            interrupts = iter([KeyboardInterrupt()])

            def interrupted(fetched: Fetched, where: str) -> Iterator[pa.RecordBatch]:
                for interrupt in interrupts:
                    raise interrupt
                yield from decode(fetched, where)

            stream._decode = interrupted
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(10_000)
            read = consumer.poll(2_000)
            assert read is not None
            assert offsets_of(read[1]) == list(range(100))

    def test_a_fault_while_a_broker_is_looked_for_is_told(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And the thread that looks for brokers goes on."""
        name = topic(1)
        produce(kafka, name, range(10))
        faults = iter([RuntimeError("a fault")])

        def faulty(*arguments: Any) -> Any:
            for fault in faults:
                raise fault
            return look_up(*arguments)

        monkeypatch.setattr("protocol.consumer.consumer.look_up", faulty)
        with consumer_of(client) as consumer:
            stream = consumer.consume_partition(name, 0, EARLIEST)
            with pytest.raises(UsageError, match=f"the broker of {name}-0 has failed: RuntimeError"):
                stream.poll(10_000)
            stream.seek(4)
            assert offsets_of(stream.poll(10_000)) == list(range(4, 10))

    def test_brokers_that_fail_one_partition_are_told_beside_busy_ones(
        self, kafka: LocalKafka, topic: TopicFactory
    ) -> None:
        name = topic(2)
        produce(kafka, name, range(40_000), 2, size=100, settings={"batch.num.messages": 10})
        with (
            client_of(kafka, default_api_timeout_ms=1_000) as impatient,
            consumer_of(impatient, {"max.partition.fetch.bytes": 1}) as consumer,
        ):
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(2)})
            failing = streams[name, 0]

            def read_on() -> None:
                for stream, _ in islice(consumer, 1_500):
                    if stream is not failing and failing.source.failure is None:
                        with consumer._lock:
                            failing.postpone(ConnectionLost("as if"), time.monotonic())
                            failing.source.retry_at_s = float("inf")
                    time.sleep(0.005)

            with pytest.raises(DeadlineExceeded, match=failing.name):
                read_on()
            assert consumer.poll(10_000) is not None


class TestSlowUsers:
    def test_one_of_ten_that_does_not_read_keeps_nobody_waiting(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        """The nine others read to their end meanwhile; then it is read too, and nothing is missing."""
        name = topic(10, replication_factor=1)
        produce(kafka, name, range(20_000), 10, size=200)
        properties = {"max.partition.fetch.bytes": 20_000, "max.processing.time.ms": 50}
        with consumer_of(client, properties) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
            stuck = streams.pop((name, 3))
            found = {stream.partition: self.read(stream, 2_000) for stream in streams.values()}
            assert all(offsets == list(range(2_000)) for offsets in found.values())
            wait_until(lambda: stuck.expired)
            assert self.read(stuck, 2_000) == list(range(2_000))
            assert not stuck.expired

    def test_who_does_not_read_gives_its_memory_back_and_reads_everything_later(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(10, replication_factor=1)
        produce(kafka, name, range(20_000), 10, size=200)
        properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
        with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(10)})
            readers = {number: streams.pop((name, number)) for number in (0, 5)}
            for stream in readers.values():
                assert self.read(stream, 2_000) == list(range(2_000))
            for stream in streams.values():
                assert self.read(stream, 2_000) == list(range(2_000))

    def test_who_asks_without_waiting_gets_the_memory_of_those_who_do_not(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(6, replication_factor=1)
        produce(kafka, name, range(12_000), 6, size=200)
        properties = {"max.partition.fetch.bytes": 100_000, "max.processing.time.ms": 20}
        with consumer_of(client, properties, buffer_memory_bytes=250_000) as consumer:
            streams = list(consumer.consume_partitions({(name, number): EARLIEST for number in range(6)}).values())
            wait_until(lambda: consumer._schedule.room_bytes() <= 0)
            for stream in streams:
                wait_until(lambda stream=stream: stream.poll(0) is not None)  # type: ignore[misc]
            # And by all of them in one thread: the others are paused now.
            for stream in streams[1:]:
                stream.pause()
            produce(kafka, name, range(6), 6)
            found: list[int] = []

            def read_on() -> bool:
                while (read := consumer.poll(0)) is not None:
                    found.extend(offsets_of(read[1]))
                return bool(found) and found[-1] == 2_000

            wait_until(read_on)

    def test_who_reads_is_not_waited_for(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        """As soon as everybody has read, the next request goes out, and as soon as there is memory."""
        name = topic(6, replication_factor=1)
        produce(kafka, name, range(12_000), 6, size=100, settings={"batch.size": 2_000})
        properties = {"max.partition.fetch.bytes": 10_000, "max.processing.time.ms": 30_000}
        with consumer_of(client, properties, buffer_memory_bytes=15_000) as consumer:
            consumer.consume_partitions({(name, number): EARLIEST for number in range(6)})
            started_s = time.monotonic()
            read_all(consumer, 12_000)
            assert time.monotonic() - started_s < 25
            assert consumer.fetches > 60

    def test_partitions_take_turns_reply_by_reply(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        """So that a broker is asked for all of them again as soon as the first reply of each is being read."""
        name = topic(3, replication_factor=1)
        produce(kafka, name, range(150), 3, settings={"batch.num.messages": 10})
        with consumer_of(client, {"max.partition.fetch.bytes": 1, "max.processing.time.ms": 60_000}) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(3)}).values()
            for _ in range(3):
                wait_until(lambda: all(stream.full for stream in streams))
                turns = [read[0].partition for read in (consumer.poll(10_000) for _ in range(3)) if read is not None]
                assert sorted(turns) == [0, 1, 2]

    def test_a_slow_user_of_many_partitions_reads_all_of_them(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        """Memory is full and everybody has waited too long: what is fetched waits for its turn and is not dropped."""
        name = topic(6, replication_factor=1)
        produce(kafka, name, range(12_000), 6, size=100, settings={"batch.size": 2_000})
        properties = {"max.partition.fetch.bytes": 10_000, "max.processing.time.ms": 1}
        turns: Counter[int] = Counter()
        with consumer_of(client, properties, buffer_memory_bytes=15_000) as consumer:
            consumer.consume_partitions({(name, number): EARLIEST for number in range(6)})
            for stream, _ in islice(consumer, 60):
                turns[stream.partition] += 1
                time.sleep(0.005)
        assert len(turns) == 6
        assert min(turns.values()) >= 5

    def test_what_waits_for_a_user_holds_no_bytes_of_other_partitions(
        self, kafka: LocalKafka, topic: TopicFactory, client: Client
    ) -> None:
        name = topic(6, replication_factor=1)
        produce(kafka, name, range(600), 6)
        with consumer_of(client, {"max.processing.time.ms": 2_000}) as consumer:
            streams = consumer.consume_partitions({(name, number): EARLIEST for number in range(6)}).values()
            wait_until(lambda: all(stream.ahead for stream in streams))
            produce(kafka, name, range(600), 6)
            wait_until(lambda: all(stream.expired for stream in streams))
            views = [fetched.records.buffer for stream in streams for fetched in stream.ahead]
            assert any(stream.full for stream in streams)
            assert [len(view.obj) for view in views] == [view.nbytes for view in views]

    @staticmethod
    def read(stream: PartitionStream, rows: int) -> list[int]:
        offsets: list[int] = []
        while len(offsets) < rows:
            batch = stream.poll(10_000)
            assert batch is not None, f"{stream.name} has brought {len(offsets)} of {rows} rows"
            offsets += batch.column("offset").to_pylist()
        return offsets


def offsets_of(batch: pa.RecordBatch | None) -> list[int]:
    assert batch is not None
    offsets: list[int] = batch.column("offset").to_pylist()
    return offsets


_OF_MANY = """
import json, sys, time
from protocol.kafka_terms import LATEST
from tests.peak_memory import peak_rss_bytes
from tests.protocol.consumer.consuming import client_of, consumer_of
topic, partitions, servers = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with client_of(servers) as client, consumer_of(client) as consumer:
    streams = consumer.consume_partitions({(topic, number): LATEST for number in range(partitions)})
    while any(stream.lag is None for stream in streams.values()):
        assert consumer.poll(50) is None
    fetches, started_s, cpu_s = consumer.fetches, time.monotonic(), time.process_time()
    assert consumer.poll(2_600) is None
    print(json.dumps({
        "fetches": consumer.fetches - fetches,
        "rss_mib": peak_rss_bytes() / 2**20,
        "cpu": (time.process_time() - cpu_s) / (time.monotonic() - started_s),
    }))
"""


class TestRequests:
    def test_many_partitions_on_three_brokers_cost_three_requests_a_round(
        self, kafka: LocalKafka, topic: TopicFactory
    ) -> None:
        """Caught up. A round is fetch.max.wait.ms long, half a second; five and a part of one fit in the time."""
        name = topic(MANY)
        seen: list[tuple[int, int, int]] = []

        def note(exchange: Exchange) -> float:
            body = exchange.request()
            rows = sum(len(each["partitions"]) for each in body["topics"])
            seen.append((body["session_id"], body["session_epoch"], rows))
            return 0.0

        with KafkaProxy.of(kafka) as proxy:
            proxy.requests[FETCH] = note
            done = subprocess.run(
                [sys.executable, "-c", _OF_MANY, name, str(MANY), proxy.servers],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert done.returncode == 0, done.stderr
            wait_until(lambda: sum(epoch == -1 for _, epoch, _ in seen) == 3)
        measured = json.loads(done.stdout)
        print(measured)
        assert measured["fetches"] <= 3 * 6
        assert measured["rss_mib"] < 250
        full = [rows for session, epoch, rows in seen if epoch == 0]
        assert (len(full), sum(full)) == (3, MANY), "each broker was asked for everything once"
        assert {rows for _, epoch, rows in seen if epoch > 0} == {0}, "afterwards nothing has changed"
        assert all(session > 0 for session, epoch, _ in seen if epoch == -1), "the sessions were ended"

    def test_a_broker_that_waits_delays_no_other(self, kafka: LocalKafka, topic: TopicFactory, client: Client) -> None:
        """One broker has a partition without news; what comes at another arrives while that one is still waiting."""
        name = topic(3, replication_factor=1)

        def leaders() -> set[int]:
            return {client.leader(name, number)[0].node_id for number in range(3)}

        # Not every broker knows a new topic at once.
        assert len(client.retrying("the leaders", leaders, client.deadline(), topics=[name])) == 3
        with consumer_of(client, {"fetch.max.wait.ms": 20_000}) as consumer:
            streams = consumer.consume_partitions({(name, number): LATEST for number in range(3)})
            wait_until(lambda: consumer.fetches == 6)  # each broker has begun its second Fetch, the one that waits
            for number in (0, 1, 2, 0, 1, 2):
                produce(kafka, name, range(number, number + 1), 3)
                started_s = time.monotonic()
                assert streams[name, number].poll(30_000) is not None
                assert time.monotonic() - started_s < 15


class TestEnd:
    def test_nothing_is_left_after_many(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(3, replication_factor=1)
        produce(kafka, name, range(30), 3)
        with client_of(kafka) as client:

            def left() -> tuple[int, int, int]:
                return threading.active_count(), len(os.listdir("/proc/self/fd")), len(client._pool)

            def no_more_than(before: tuple[int, int, int]) -> bool:
                return all(now <= then for now, then in zip(left(), before, strict=True))

            first: tuple[int, int, int] | None = None
            for cycle in range(CYCLES):
                with consumer_of(client) as consumer:
                    consumer.consume_partitions({(name, number): EARLIEST for number in range(3)})
                    if cycle % 2:
                        read_all(consumer, 30)
                assert not [thread for thread in threading.enumerate() if "consumer-" in thread.name]
                if cycle == 5:  # the client's own connections are there by now
                    first = left()
            # librdkafka, in this process too, may still be closing what earlier tests have left to it.
            wait_until(lambda: first is not None and no_more_than(first))

    def test_close_wakes_who_reads_and_waits_for_no_fetch(self, topic: TopicFactory, client: Client) -> None:
        name = topic(1)
        consumer = consumer_of(client, {"fetch.max.wait.ms": 20_000})
        stream = consumer.consume_partition(name, 0, LATEST)
        wait_until(lambda: consumer.fetches == 2)
        ended: list[Any] = []
        users = [threading.Thread(target=lambda: ended.append(list(stream)))]
        users.append(threading.Thread(target=lambda: ended.append(list(consumer))))
        for user in users:
            user.start()
        started_s = time.monotonic()
        consumer.close()
        for user in users:
            user.join(15)
        assert time.monotonic() - started_s < 15
        assert ended == [[], []]
        assert consumer.close() is None

    def test_close_ends_by_its_deadline_when_a_broker_hangs(self, kafka: LocalKafka, topic: TopicFactory) -> None:
        name = topic(1, replication_factor=1)
        with client_of(kafka) as client:
            consumer = consumer_of(client)
            stream = consumer.consume_partition(name, 0, EARLIEST)
            wait_until(lambda: stream.high_water_mark == 0)
            leader = client.leader(name, 0)[0].node_id
            kafka.pause(leader)
            try:
                started_s = time.monotonic()
                consumer.close(client.deadline(500))
                assert time.monotonic() - started_s < 15
            finally:
                kafka.resume(leader)
            wait_until(lambda: not any("consumer-" in thread.name for thread in threading.enumerate()), timeout_s=5)


def test_a_follower_in_our_rack_serves_us_and_when_it_cannot_the_leader_is_asked(
    kafka: LocalKafka, topic: TopicFactory
) -> None:
    """KIP-392. A follower that is behind says that the offset is out of range, or the log cut; that moves nothing."""
    name = topic(6, replication_factor=3)
    produce(kafka, name, range(6_000), 6, settings={"batch.size": 1_000})
    served: dict[int, int] = dict.fromkeys(kafka.broker_ids, 0)
    refused: list[int] = []

    def count(exchange: Exchange) -> float | bytes:
        body = exchange.reply()
        rows = [row for each in body["responses"] for row in each["partitions"]]
        if exchange.broker_id == 2 and rows and served[2] > 10_000 and len(refused) < 4:
            refused.append(exchange.number)
            for row in rows:
                if len(refused) % 2:
                    row.update(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, records=b"")
                else:
                    row.update(diverging_epoch={"epoch": 0, "end_offset": 0}, records=b"")
            return exchange.reply_with(body)
        served[exchange.broker_id] += sum(len(row["records"] or b"") for row in rows)
        return 0.0

    with KafkaProxy.of(kafka) as proxy, client_of(proxy.servers) as client:
        proxy.replies[FETCH] = count
        properties = {"client.rack": "rack-2", "max.partition.fetch.bytes": 4_000}
        with consumer_of(client, properties) as consumer:
            leaders = {number: client.leader(name, number)[0].node_id for number in range(6)}
            assert set(leaders.values()) == {1, 2, 3}
            followed = [number for number, leader in leaders.items() if leader == 1]
            consumer.consume_partitions({(name, number): EARLIEST for number in followed})
            found = read_all(consumer, 1_000 * len(followed))
            assert all([offset for offset, _ in rows] == list(range(1_000)) for rows in found.values())
    assert len(refused) == 4
    assert served[1] == served[3] == 0
    assert served[2] > 0
