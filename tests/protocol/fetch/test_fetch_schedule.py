"""The schedule of fetches, rule by rule, without threads and sockets, on a manual clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import ConnectionLost, DataLoss
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.fetch.fetch_schedule import BrokerState, Fetch, FetchSchedule
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import NO_REPLICA
from protocol.position import Position
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka.clock import ManualClock
from tests.protocol.fetch.consuming import records

NEAR, FAR = Broker(1, "kafka1", 9092), Broker(2, "kafka2", 9092)
CONFIG = ConsumerConfig(fetch_max_bytes=1_000_000, fetch_max_wait_ms=500, max_processing_time_ms=100)
MEMORY_BYTES = 10_000
LONGEST_S = 5.0


def one_batch(part: CompletedFetch, where: str) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"offset": pa.array(range(part.start.offset, part.next_offset))})


class Reading:
    """Streams of "orders", the schedule of their fetches, and the streams whose changes were signalled."""

    def __init__(self, config: ConsumerConfig = CONFIG) -> None:
        # The consumer's threads call under the lock: here one thread always holds it.
        self.lock: Any = threading.RLock()
        self.lock.acquire()
        self.clock = ManualClock()
        self.config = config
        self.streams: dict[FetchBuffer, PartitionConsumer] = {}
        self.changed_streams: list[PartitionConsumer] = []
        self.schedule = FetchSchedule(config, MEMORY_BYTES, metadata_max_age_ms=300_000)
        self.states = {broker: BrokerState(broker) for broker in (NEAR, FAR)}
        for state in self.states.values():
            state.answered(0, 0, by_id=True)

    def add(self, count: int = 1, broker: Broker = NEAR) -> list[PartitionConsumer]:
        first = len(self.streams)
        return [self._add(number, broker) for number in range(first, first + count)]

    def _add(self, number: int, broker: Broker) -> PartitionConsumer:
        partition = FetchPosition("orders", number, Position(0), self.config)
        partition.broker = broker
        buffer = FetchBuffer(partition, self.clock, failure_timeout_s=60, decode=one_batch)
        stream = self.streams[buffer] = PartitionConsumer(
            buffer,
            self.lock,
            self.clock,
            read_committed=False,
            on_read=lambda _: None,
            on_change=lambda changed: self.changed_streams.append(self.streams[changed]),
        )
        self.schedule.add_resolved(buffer)
        return stream

    def put(self, stream: PartitionConsumer, replies: int = 1, size: int = 10) -> None:
        for _ in range(replies):
            first = stream.buffer.source.offset
            part = CompletedFetch(
                read_batch_headers(records(first, 10, size=size)), Position(first, 7), first + 10, None
            )
            stream.buffer.source.seek(Position(part.next_offset))
            self.schedule.put(stream.buffer, part, self.clock.now_s())

    def fill_memory(self, stream: PartitionConsumer) -> None:
        self.put(stream, size=MEMORY_BYTES // 10)

    def next(self, broker: Broker = NEAR) -> Fetch | float | None:
        decision = self.schedule.next(self.states[broker], self.clock.now_s())
        self.changed_streams += [self.streams[buffer] for buffer in decision.changed]
        return decision.fetch or decision.wait_s

    def asked(self, broker: Broker = NEAR) -> list[PartitionConsumer]:
        fetch = self.next(broker)
        assert isinstance(fetch, Fetch)
        return self.streams_of(fetch)

    def streams_of(self, fetch: Fetch) -> list[PartitionConsumer]:
        return [self.streams[buffer] for buffer in fetch.buffers.values()]


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_broker_is_asked_for_all_its_streams_that_are_not_full(reading: Reading) -> None:
    first, paused, failed, second = reading.add(4)
    [far] = reading.add(1, FAR)
    paused.pause()
    failed.buffer.stop(DataLoss("gone"))
    assert reading.asked() == [first, second]
    assert reading.asked(FAR) == [far]


def test_reply_is_matched_to_the_state_at_the_request(reading: Reading) -> None:
    """After a seek or close the reply is dropped: a stream may be closed during a Fetch."""
    moved, closed, consumer = reading.add(3)
    fetch = reading.next()
    assert isinstance(fetch, Fetch)
    moved.seek(5)
    closed.close()
    assert [buffer for partition, buffer in fetch.buffers.items() if buffer.source is partition] == [consumer.buffer]


def test_decision_looks_at_no_idle_stream_of_another_broker(reading: Reading) -> None:
    """With 10,000 idle partitions on 100 brokers, decisions that look at all of them take more than one processor."""
    near, unread = reading.add(2)
    reading.put(unread)
    for far in reading.add(3, FAR):
        far.buffer.source = None  # type: ignore[assignment]  # fails when looked at
    assert reading.asked() == [near, unread]
    reading.clock.at_s = 1.0
    assert reading.asked() == [near]


class TestOneRequest:
    def test_fetch_is_limited_to_free_memory(self, reading: Reading) -> None:
        reader, consumer = reading.add(2)
        reading.put(consumer, size=500)
        pending = consumer.buffer.ahead[0].records.buffer.nbytes
        fetch = reading.next()
        assert isinstance(fetch, Fetch)
        assert reading.streams_of(fetch) == [reader, consumer]
        assert fetch.max_bytes == MEMORY_BYTES - pending

    def test_fetch_is_limited_to_fetch_max_bytes(self) -> None:
        reading = Reading(ConsumerConfig(fetch_max_bytes=3_000))
        reading.add()
        fetch = reading.next()
        assert isinstance(fetch, Fetch)
        assert fetch.max_bytes == 3_000

    def test_first_fetch_does_not_wait(self, reading: Reading) -> None:
        """A session without a known id cannot be closed."""
        reading.add()
        reading.states[NEAR] = BrokerState(NEAR)
        waits = []
        for _ in range(2):
            fetch = reading.next()
            assert isinstance(fetch, Fetch)
            waits.append(fetch.max_wait_ms)
            reading.states[NEAR].answered(0, reading.clock.now_s(), by_id=True)
        assert waits == [0, 500]

    @pytest.mark.parametrize(("broker", "max_wait_ms"), [(NEAR, 100), (FAR, 500)])
    def test_fetch_waits_shorter_when_a_stream_is_left_out(
        self, reading: Reading, broker: Broker, max_wait_ms: int
    ) -> None:
        """The user of the stream may return at any time; streams of other brokers are not delayed."""
        reading.add()
        [left_out] = reading.add(1, broker)
        reading.put(left_out)
        reading.clock.at_s = 1.0
        fetch = reading.next()
        assert left_out.expired
        assert isinstance(fetch, Fetch)
        assert left_out not in reading.streams_of(fetch)
        assert fetch.max_wait_ms == max_wait_ms


class TestFullStreams:
    def test_fetch_waits_for_users_of_full_streams(self, reading: Reading) -> None:
        full, hungry = reading.add(2)
        reading.put(full, 2)
        reading.clock.at_s = 0.03
        assert reading.next() == pytest.approx(0.07)
        full.poll_reply()
        assert reading.asked() == [full, hungry]

    def test_reads_wake_the_thread_after_the_last_full_stream(self, reading: Reading) -> None:
        """A decision inspects all streams of the broker, so it is not made for each reply that is read."""
        streams = reading.add(1_000)
        [far] = reading.add(1, FAR)
        for stream in (*streams, far):
            reading.put(stream, 2)
        assert isinstance(reading.next(), float)
        state = reading.states[NEAR]
        assert not state.was_read(far.buffer)
        assert [state.was_read(stream.buffer) for stream in streams] == [False] * 999 + [True]

    def test_read_of_an_awaited_stream_alone_wakes_the_thread(self, reading: Reading) -> None:
        """For example a thread paused by throttling, or one without streams to fetch."""
        [idle] = reading.add()
        idle.pause()
        [consumer] = reading.add()
        reading.put(consumer)
        reading.states[NEAR].answered(400, 0.0, by_id=True)
        assert isinstance(reading.next(), float)
        assert not reading.states[NEAR].was_read(consumer.buffer)

    def test_full_streams_of_other_brokers_are_not_awaited(self, reading: Reading) -> None:
        [full] = reading.add(1, FAR)
        [hungry] = reading.add()
        reading.put(full, 2)
        assert reading.asked() == [hungry]

    def test_paused_stream_is_not_awaited(self, reading: Reading) -> None:
        full, hungry = reading.add(2)
        reading.put(full, 2)
        assert isinstance(reading.next(), float)
        full.pause()
        assert reading.changed_streams == [full], "the broker's waiting thread must decide again"
        assert reading.asked() == [hungry]


class TestExpired:
    def test_unread_stream_is_left_out_after_max_processing_time(self, reading: Reading) -> None:
        stuck, hungry = reading.add(2)
        reading.put(stuck, 2)
        reading.clock.at_s = 0.099
        assert isinstance(reading.next(), float)
        reading.clock.at_s = 0.1
        assert reading.asked() == [hungry]
        assert reading.changed_streams == [stuck], "threads that wait for memory must decide again"
        stuck.poll_reply()
        assert reading.asked() == [stuck, hungry]

    def test_closed_stream_is_forgotten(self, reading: Reading) -> None:
        [stuck] = reading.add()
        reading.put(stuck)
        reading.clock.at_s = 1.0
        reading.next()
        assert stuck.expired
        stuck.close()
        reading.next()
        assert not reading.schedule.with_replies

    def test_stream_with_its_last_reply_being_read_is_fetched(self, reading: Reading) -> None:
        [slow] = reading.add()
        reading.put(slow)
        slow.poll_reply()
        reading.clock.at_s = 1.0
        assert reading.asked() == [slow]
        assert reading.changed_streams == []

    def test_thread_may_expire_streams_of_another_broker(self, reading: Reading) -> None:
        """The broker's own thread may be waiting in a Fetch."""
        reading.add()
        [stuck] = reading.add(1, FAR)
        reading.put(stuck)
        reading.clock.at_s = 1.0
        reading.next(NEAR)
        assert stuck.expired

    def test_wait_ends_when_the_next_stream_expires(self, reading: Reading) -> None:
        first, second = reading.add(2)
        reading.put(first, 2)
        reading.clock.at_s = 0.06
        reading.put(second, 2)
        assert reading.next() == pytest.approx(0.04)
        reading.clock.at_s = 0.1
        assert reading.next() == pytest.approx(0.06)
        reading.clock.at_s = 0.16
        assert reading.next() == LONGEST_S
        assert first.expired
        assert second.expired


class TestMemory:
    """Memory is full of one stream's unread replies; another stream has none."""

    @pytest.fixture
    def unread(self, reading: Reading) -> PartitionConsumer:
        [stream] = reading.add(1, FAR)
        reading.fill_memory(stream)
        return stream

    @pytest.fixture
    def hungry(self, reading: Reading, unread: PartitionConsumer) -> PartitionConsumer:
        return reading.add()[0]

    def test_memory_is_not_freed_while_no_user_waits(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer
    ) -> None:
        reading.clock.at_s = 1.0
        assert reading.next() == LONGEST_S
        assert unread.expired
        assert unread.buffer.ahead
        assert reading.states[NEAR].was_read(unread.buffer), "a read frees memory"

    @pytest.mark.parametrize("waits_for", ["memory", "nothing", "a user"])
    def test_changes_at_another_broker_wake_threads_that_lack_memory(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer, waits_for: str
    ) -> None:
        assert isinstance(reading.next(), float)
        if waits_for == "nothing":
            hungry.pause()
        elif waits_for == "a user":
            reading.put(hungry, 2)
        assert isinstance(reading.next(), float)
        near, far = reading.states[NEAR], reading.states[FAR]
        assert near.was_changed(unread.buffer) == (waits_for == "memory")
        assert near.was_read(unread.buffer) == (waits_for == "memory")
        assert near.was_changed(hungry.buffer)
        unread.close()
        assert far.was_changed(unread.buffer), "its own broker, always"

    def test_read_frees_memory(self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer) -> None:
        assert isinstance(reading.next(), float)
        unread.poll_reply()
        assert reading.asked() == [hungry]

    @pytest.mark.parametrize("who", ["its user", "a user of all streams"])
    @pytest.mark.parametrize("remaining", ["expired", "paused"])
    def test_unread_reply_is_dropped_for_a_stream_with_a_waiting_user(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer, who: str, remaining: str
    ) -> None:
        if remaining == "paused":
            unread.pause()
        else:
            reading.clock.at_s = 1.0
        if who == "its user":
            assert hungry.poll(0) is None
        else:
            reading.schedule.poll_waits = True
        reading.changed_streams.clear()
        fetch = reading.next()
        assert isinstance(fetch, Fetch)
        assert reading.streams_of(fetch) == [hungry]
        assert fetch.max_bytes == MEMORY_BYTES
        assert not unread.buffer.ahead
        assert unread.buffer.source.offset == 0, "the dropped stream is fetched again"
        assert unread in reading.changed_streams

    def test_unexpired_reply_is_not_dropped(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer
    ) -> None:
        assert hungry.poll(0) is None
        assert reading.next() == pytest.approx(0.1)
        assert unread.buffer.ahead

    def test_memory_is_freed_by_the_thread_of_the_waiting_streams_broker(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer
    ) -> None:
        """Memory freed here would be filled by streams of this broker that no user waits for."""
        [consumer] = reading.add(1, FAR)
        reading.clock.at_s = 1.0
        assert hungry.poll(0) is None
        assert reading.next(FAR) == LONGEST_S
        assert unread.buffer.ahead
        assert consumer not in reading.changed_streams

    def test_replies_are_kept_if_no_stream_can_be_fetched(
        self, reading: Reading, unread: PartitionConsumer, hungry: PartitionConsumer
    ) -> None:
        hungry.pause()
        unread.pause()
        reading.schedule.poll_waits = True
        assert reading.next() == LONGEST_S
        assert unread.buffer.ahead


class TestThrottled:
    def test_throttling_broker_gets_no_fetch_until_throttle_time_ends(self, reading: Reading) -> None:
        [stream] = reading.add()
        [far] = reading.add(1, FAR)
        reading.states[NEAR].answered(400, 0.0, by_id=True)
        reading.clock.at_s = 0.3
        assert reading.next() == pytest.approx(0.1)
        assert reading.asked(FAR) == [far]
        reading.clock.at_s = 0.4
        assert reading.asked() == [stream]

    def test_replies_are_kept_during_throttling(self, reading: Reading) -> None:
        [hungry] = reading.add()
        [unread] = reading.add(1, FAR)
        reading.fill_memory(unread)
        unread.pause()
        assert hungry.poll(0) is None
        reading.states[NEAR].answered(400, 0.0, by_id=True)
        assert reading.next() == pytest.approx(0.4)
        assert unread.buffer.ahead


class TestBrokerWithoutStreams:
    def test_thread_lingers_and_ends(self, reading: Reading) -> None:
        waits = []
        for reading.clock.at_s in (100.0, 102.0, 104.9, 105.0):
            waits.append(reading.next())
        assert waits == [LONGEST_S, LONGEST_S, LONGEST_S, None]

    def test_returning_stream_reuses_the_thread(self, reading: Reading) -> None:
        assert reading.next() == LONGEST_S
        reading.clock.at_s = 4.0
        [stream] = reading.add()
        assert reading.asked() == [stream]
        stream.buffer.postpone(ConnectionLost("broken"), 4.0)
        reading.clock.at_s = 34.0
        assert reading.next() == LONGEST_S, "idle since the request failed"
        reading.clock.at_s = 39.0
        assert reading.next() is None


class TestPreferredReplica:
    """KIP-392."""

    @pytest.fixture
    def followed(self, reading: Reading) -> PartitionConsumer:
        [stream] = reading.add()
        stream.buffer.source.preferred_replica = NEAR.node_id
        stream.buffer.source.routed_at_s = 1_000.0
        return stream

    def test_preferred_replica_is_used_until_metadata_max_age(
        self, reading: Reading, followed: PartitionConsumer
    ) -> None:
        reading.clock.at_s = 1_300.0
        assert reading.asked() == [followed]
        assert reading.changed_streams == []
        reading.clock.at_s = 1_300.1
        assert reading.next() == LONGEST_S
        assert (followed.buffer.source.broker, followed.buffer.source.preferred_replica) == (None, NO_REPLICA)
        assert reading.changed_streams == [followed], "the leader thread must resolve the leader"

    def test_thread_leaves_streams_of_other_brokers_alone(self, reading: Reading, followed: PartitionConsumer) -> None:
        """Their reply may be in flight, and is read with their current state."""
        reading.clock.at_s = 2_000.0
        reading.next(FAR)
        assert followed.buffer.source.broker == NEAR

    def test_leader_is_not_left(self, reading: Reading) -> None:
        [stream] = reading.add()
        reading.clock.at_s = 2_000.0
        assert reading.asked() == [stream]

    def test_leader_of_a_topic_fetched_by_name_is_resolved_again_after_metadata_max_age(self, reading: Reading) -> None:
        """Before Kafka 3.1 only the metadata tell if the topic was recreated."""
        [stream] = reading.add()
        reading.states[NEAR].answered(0, 0.0, by_id=False)
        reading.clock.at_s = 300.0
        assert reading.asked() == [stream]
        reading.clock.at_s = 300.1
        reading.next()
        assert stream.buffer.source.broker is None
