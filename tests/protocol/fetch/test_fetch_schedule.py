"""The schedule of fetches, rule by rule, without threads and sockets, on a manual clock."""

from __future__ import annotations

import pytest

from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import ConnectionLost, DataLoss
from protocol.fetch.fetch_schedule import BrokerState
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.kafka_terms import NO_REPLICA
from tests.protocol.fetch.schedules import FAR, LONGEST_S, MEMORY_BYTES, NEAR, Reading


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
    fetch = reading.fetch()
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


def test_partition_with_a_reply_is_behind_the_others(reading: Reading) -> None:
    """Without a session, a broker fills its reply in the order of the request, up to `fetch.max.bytes`."""
    first, second = reading.add(2)
    reading.put(first)
    assert reading.asked() == [second, first]


def test_fetch_is_limited_to_free_memory(reading: Reading) -> None:
    reader, consumer = reading.add(2)
    reading.put(consumer, size=500)
    pending = consumer.buffer.ahead[0].records.buffer.nbytes
    fetch = reading.fetch()
    assert reading.streams_of(fetch) == [reader, consumer]
    assert fetch.max_bytes == MEMORY_BYTES - pending


def test_fetch_is_limited_to_fetch_max_bytes() -> None:
    reading = Reading(ConsumerConfig(fetch_max_bytes=3_000))
    reading.add()
    assert reading.fetch().max_bytes == 3_000


def test_first_fetch_does_not_wait(reading: Reading) -> None:
    """A session without a known id cannot be closed."""
    reading.add()
    reading.states[NEAR] = BrokerState(NEAR)
    waits = []
    for _ in range(2):
        waits.append(reading.fetch().max_wait_ms)
        reading.states[NEAR].record_reply(0, reading.clock.now_s(), by_id=True)
    assert waits == [0, 500]


@pytest.mark.parametrize(("broker", "max_wait_ms"), [(NEAR, 100), (FAR, 500)])
def test_fetch_waits_shorter_when_a_stream_is_left_out(reading: Reading, broker: Broker, max_wait_ms: int) -> None:
    """The user of the stream may return at any time; streams of other brokers are not delayed."""
    reading.add()
    [left_out] = reading.add(1, broker)
    reading.put(left_out)
    reading.clock.at_s = 1.0
    fetch = reading.fetch()
    assert left_out.expired
    assert left_out not in reading.streams_of(fetch)
    assert fetch.max_wait_ms == max_wait_ms


def test_fetch_waits_for_users_of_full_streams(reading: Reading) -> None:
    full, hungry = reading.add(2)
    reading.put(full, 2)
    reading.clock.at_s = 0.03
    assert reading.next() == pytest.approx(0.07)
    full.poll_reply()
    assert reading.asked() == [hungry, full]


def test_reads_wake_the_thread_after_the_last_full_stream(reading: Reading) -> None:
    """A decision inspects all streams of the broker, so it is not made for each reply that is read."""
    streams = reading.add(1_000)
    [far] = reading.add(1, FAR)
    for stream in (*streams, far):
        reading.put(stream, 2)
    assert isinstance(reading.next(), float)
    state = reading.states[NEAR]
    assert not state.record_read(far.buffer)
    assert [state.record_read(stream.buffer) for stream in streams] == [False] * 999 + [True]


def test_read_of_an_awaited_stream_alone_wakes_the_thread(reading: Reading) -> None:
    """For example a thread paused by throttling, or one without streams to fetch."""
    [idle] = reading.add()
    idle.pause()
    [consumer] = reading.add()
    reading.put(consumer)
    reading.states[NEAR].record_reply(400, 0.0, by_id=True)
    assert isinstance(reading.next(), float)
    assert not reading.states[NEAR].record_read(consumer.buffer)


def test_full_streams_of_other_brokers_are_not_awaited(reading: Reading) -> None:
    [full] = reading.add(1, FAR)
    [hungry] = reading.add()
    reading.put(full, 2)
    assert reading.asked() == [hungry]


def test_paused_stream_is_not_awaited(reading: Reading) -> None:
    full, hungry = reading.add(2)
    reading.put(full, 2)
    assert isinstance(reading.next(), float)
    full.pause()
    assert reading.changed_streams == [full], "the broker's waiting thread must decide again"
    assert reading.asked() == [hungry]


def test_unread_stream_is_left_out_after_max_processing_time(reading: Reading) -> None:
    stuck, hungry = reading.add(2)
    reading.put(stuck, 2)
    reading.clock.at_s = 0.099
    assert isinstance(reading.next(), float)
    reading.clock.at_s = 0.1
    assert reading.asked() == [hungry]
    assert reading.changed_streams == [stuck], "threads that wait for memory must decide again"
    stuck.poll_reply()
    assert reading.asked() == [hungry, stuck]


def test_closed_stream_is_forgotten(reading: Reading) -> None:
    [stuck] = reading.add()
    reading.put(stuck)
    reading.clock.at_s = 1.0
    reading.next()
    assert stuck.expired
    stuck.close()
    reading.next()
    assert not reading.schedule.with_replies


def test_wait_ends_when_the_next_stream_expires(reading: Reading) -> None:
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


# -- memory is full of one stream's unread replies; another stream has none ------------------------


def test_memory_is_not_freed_while_no_user_waits(reading: Reading) -> None:
    unread, _ = reading.with_full_memory()
    reading.clock.at_s = 1.0
    assert reading.next() == LONGEST_S
    assert unread.expired
    assert unread.buffer.ahead
    assert reading.states[NEAR].record_read(unread.buffer), "a read frees memory"


@pytest.mark.parametrize("waits_for", ["memory", "nothing", "a user"])
def test_changes_at_another_broker_wake_threads_that_lack_memory(reading: Reading, waits_for: str) -> None:
    unread, hungry = reading.with_full_memory()
    assert isinstance(reading.next(), float)
    if waits_for == "nothing":
        hungry.pause()
    elif waits_for == "a user":
        reading.put(hungry, 2)
    assert isinstance(reading.next(), float)
    near, far = reading.states[NEAR], reading.states[FAR]
    assert near.has_work_after(unread.buffer) == (waits_for == "memory")
    assert near.record_read(unread.buffer) == (waits_for == "memory")
    assert near.has_work_after(hungry.buffer)
    unread.close()
    assert far.has_work_after(unread.buffer), "its own broker, always"


def test_read_frees_memory(reading: Reading) -> None:
    unread, hungry = reading.with_full_memory()
    assert isinstance(reading.next(), float)
    unread.poll_reply()
    assert reading.asked() == [hungry]


@pytest.mark.parametrize("who", ["its user", "a user of all streams"])
@pytest.mark.parametrize("remaining", ["expired", "paused"])
def test_unread_reply_is_dropped_for_a_stream_with_a_waiting_user(reading: Reading, who: str, remaining: str) -> None:
    unread, hungry = reading.with_full_memory()
    if remaining == "paused":
        unread.pause()
    else:
        reading.clock.at_s = 1.0
    if who == "its user":
        assert hungry.poll(0) is None
    else:
        reading.schedule.poll_waits = True
    reading.changed_streams.clear()
    fetch = reading.fetch()
    assert reading.streams_of(fetch) == [hungry]
    assert fetch.max_bytes == MEMORY_BYTES
    assert not unread.buffer.ahead
    assert unread.buffer.source.offset == 0, "the dropped stream is fetched again"
    assert unread in reading.changed_streams


def test_unexpired_reply_is_not_dropped(reading: Reading) -> None:
    unread, hungry = reading.with_full_memory()
    assert hungry.poll(0) is None
    assert reading.next() == pytest.approx(0.1)
    assert unread.buffer.ahead


def test_memory_is_freed_by_the_thread_of_the_waiting_streams_broker(reading: Reading) -> None:
    """Memory freed here would be filled by streams of this broker that no user waits for."""
    unread, hungry = reading.with_full_memory()
    [consumer] = reading.add(1, FAR)
    reading.clock.at_s = 1.0
    assert hungry.poll(0) is None
    assert reading.next(FAR) == LONGEST_S
    assert unread.buffer.ahead
    assert consumer not in reading.changed_streams


def test_replies_are_kept_if_no_stream_can_be_fetched(reading: Reading) -> None:
    unread, hungry = reading.with_full_memory()
    hungry.pause()
    unread.pause()
    reading.schedule.poll_waits = True
    assert reading.next() == LONGEST_S
    assert unread.buffer.ahead


def test_throttling_broker_gets_no_fetch_until_throttle_time_ends(reading: Reading) -> None:
    [stream] = reading.add()
    [far] = reading.add(1, FAR)
    reading.states[NEAR].record_reply(400, 0.0, by_id=True)
    reading.clock.at_s = 0.3
    assert reading.next() == pytest.approx(0.1)
    assert reading.asked(FAR) == [far]
    reading.clock.at_s = 0.4
    assert reading.asked() == [stream]


def test_replies_are_kept_during_throttling(reading: Reading) -> None:
    unread, hungry = reading.with_full_memory()
    unread.pause()
    assert hungry.poll(0) is None
    reading.states[NEAR].record_reply(400, 0.0, by_id=True)
    assert reading.next() == pytest.approx(0.4)
    assert unread.buffer.ahead


def test_thread_lingers_and_ends(reading: Reading) -> None:
    waits = []
    for reading.clock.at_s in (100.0, 102.0, 104.9, 105.0):
        waits.append(reading.next())
    assert waits == [LONGEST_S, LONGEST_S, LONGEST_S, None]


def test_returning_stream_reuses_the_thread(reading: Reading) -> None:
    assert reading.next() == LONGEST_S
    reading.clock.at_s = 4.0
    [stream] = reading.add()
    assert reading.asked() == [stream]
    stream.buffer.postpone(ConnectionLost("broken"), 4.0)
    reading.clock.at_s = 34.0
    assert reading.next() == LONGEST_S, "idle since the request failed"
    reading.clock.at_s = 39.0
    assert reading.next() is None


# -- preferred replicas (KIP-392) -----------------------------------------------------------------


@pytest.fixture
def followed(reading: Reading) -> PartitionConsumer:
    [stream] = reading.add()
    stream.buffer.source.preferred_replica = NEAR.node_id
    stream.buffer.source.routed_at_s = 1_000.0
    return stream


def test_preferred_replica_is_used_until_metadata_max_age(reading: Reading, followed: PartitionConsumer) -> None:
    reading.clock.at_s = 1_300.0
    assert reading.asked() == [followed]
    assert reading.changed_streams == []
    reading.clock.at_s = 1_300.1
    assert reading.next() == LONGEST_S
    assert (followed.buffer.source.broker, followed.buffer.source.preferred_replica) == (None, NO_REPLICA)
    assert reading.changed_streams == [followed], "the leader thread must resolve the leader"


def test_thread_leaves_streams_of_other_brokers_alone(reading: Reading, followed: PartitionConsumer) -> None:
    """Their reply may be in flight, and is read with their current state."""
    reading.clock.at_s = 2_000.0
    reading.next(FAR)
    assert followed.buffer.source.broker == NEAR


def test_leader_is_not_left(reading: Reading) -> None:
    [stream] = reading.add()
    reading.clock.at_s = 2_000.0
    assert reading.asked() == [stream]


def test_leader_of_a_topic_fetched_by_name_is_resolved_again_after_metadata_max_age(reading: Reading) -> None:
    """Before Kafka 3.1 only the metadata tell if the topic was recreated."""
    [stream] = reading.add()
    reading.states[NEAR].record_reply(0, 0.0, by_id=False)
    reading.clock.at_s = 300.0
    assert reading.asked() == [stream]
    reading.clock.at_s = 300.1
    reading.next()
    assert stream.buffer.source.broker is None
