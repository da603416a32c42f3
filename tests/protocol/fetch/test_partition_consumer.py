"""A stream between its user and the consumer's threads, mostly without either: no row is lost or repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from protocol.config import ConsumerConfig
from protocol.errors import ConnectionLost, Corrupt, DataLoss, DeadlineExceeded
from protocol.fetch.consumer import Consumer
from protocol.fetch.fetch_buffer import FetchBuffer
from protocol.fetch.fetch_position import CompletedFetch, FetchPosition
from protocol.fetch.partition_consumer import PartitionConsumer
from protocol.metrics.client_sensors import ClientSensors
from protocol.position import Position
from protocol.records.decode import decode
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.fetch.consuming import offsets_of, records
from tests.support.interrupts import interrupted_at

INTERRUPTED_MODULES = ("protocol.fetch.partition_consumer", "protocol.fetch.fetch_buffer")
Decode = Callable[[CompletedFetch, str], Iterator[pa.RecordBatch]]


def decoded(fetched: CompletedFetch, where: str) -> Iterator[pa.RecordBatch]:
    """Decode five rows at a time."""
    first, end = fetched.start.offset, fetched.next_offset
    for batch in decode(fetched.records, first_offset=first, end_offset=end, columns=["offset"], where=where):
        for row in range(0, batch.num_rows, 5):
            yield batch.slice(row, 5)


def stream_of(
    *replies: CompletedFetch,
    decode: Decode = decoded,
    clock: ManualClock | None = None,
    sensors: ClientSensors | None = None,
) -> PartitionConsumer:
    """Return a stream whose user has not read the replies yet."""
    # The consumer's threads call under the lock: here one thread always holds it.
    lock: Any = threading.RLock()
    lock.acquire()
    clock = clock or ManualClock()
    position = FetchPosition("orders", 0, Position(0), ConsumerConfig())
    buffer = FetchBuffer(position, clock, failure_timeout_s=60, decode=decode)
    for reply in replies:
        buffer.put(reply, 0)
    return PartitionConsumer(
        buffer,
        lock,
        clock,
        read_committed=False,
        on_read=lambda _: None,
        on_change=lambda _: None,
        sensors=sensors,
    )


def fetched(first: int, count: int = 10, *, before: int = 0, epoch: int = 7) -> CompletedFetch:
    """Return a reply's part of `count` records, with `before` bytes of other partitions in front."""
    frame = memoryview(bytes(before) + records(first, count))
    return CompletedFetch(read_batch_headers(frame[before:]), Position(first, epoch), first + count, None)


def corrupt(part: CompletedFetch) -> CompletedFetch:
    broken = bytearray(part.records.buffer)
    broken[-1] ^= 1
    return CompletedFetch(read_batch_headers(broken), part.start, part.next_offset, None)


def read(stream: PartitionConsumer, most: int | None = None) -> list[int]:
    return offsets_of(stream.poll(0, most))


def test_corrupt_reply_stops_the_stream_at_its_position() -> None:
    """Neither replies ahead nor those in flight: the error stays until the user seeks."""
    stream = stream_of(corrupt(fetched(0)), fetched(10))
    on_its_way = stream.buffer.source
    for _ in range(2):
        with pytest.raises(Corrupt):
            stream.poll(0)
    assert stream.buffer.source is not on_its_way, "a reply to the old state is dropped"
    assert (stream.position, stream.buffer.source.offset, list(stream.buffer.ahead)) == (0, 0, [])


def test_error_dropped_with_earlier_replies_is_raised_again() -> None:
    """The error is not repeated at once: a user that continues behind it would skip the records before it."""
    stream = stream_of(fetched(0), fetched(10))
    stream.buffer.stop(DataLoss("offset 20 is not in the log"))
    stream.buffer.expire()
    stream.buffer.drop_ahead()
    assert stream.poll(0) is None
    assert stream.buffer.source.position == Position(0, 7)


def test_last_epoch_is_that_before_the_position_while_messages_are_unread() -> None:
    headers = read_batch_headers(records(0, 2, epoch=8) + records(2, 2, epoch=9))
    stream = stream_of(
        CompletedFetch(headers, Position(0, 7), 4, None),
        decode=lambda part, where: decode(part.records, first_offset=0, end_offset=4, where=where),
    )
    messages = stream.messages(0)
    read_until = [(next(messages).offset, stream.position, stream.committable.leader_epoch) for _ in range(4)]
    assert read_until == [(0, 1, 8), (1, 2, 8), (2, 3, 9), (3, 4, 9)]
    stream.seek(Position(1, 8))
    assert (stream.position, stream.committable.leader_epoch) == (1, 8)


@pytest.mark.parametrize("call", ["seek", "close"])
def test_batch_has_no_messages_if_another_thread_seeks_or_closes_after_the_poll(call: str) -> None:
    stream = stream_of(fetched(0))
    batch = stream.poll(0)
    assert batch is not None
    if call == "seek":
        stream.seek(40)
    else:
        stream.close()
    assert list(stream.messages_of(batch)) == []
    assert stream.position == (40 if call == "seek" else 5)
    assert stream.poll(0) is None
    if call == "seek":
        stream.buffer.put(fetched(40), 0)
        batch = stream.poll(0)
        assert batch is not None
        assert [message.offset for message in stream.messages_of(batch)] == [40, 41, 42, 43, 44]


def test_rest_of_a_reply_is_read_after_ctrl_c() -> None:
    interrupts = iter([KeyboardInterrupt()])

    def interrupted(part: CompletedFetch, where: str) -> Iterator[pa.RecordBatch]:
        for batch in decoded(part, where):
            yield batch
            for interrupt in interrupts:
                raise interrupt

    stream = stream_of(fetched(0), fetched(10), decode=interrupted)
    assert read(stream) == [0, 1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt):
        stream.poll(0)
    assert [offset for _ in range(3) for offset in read(stream)] == list(range(5, 20))


@pytest.mark.parametrize("at", ["decode", "name"])
def test_ctrl_c_before_the_first_row_of_a_reply_loses_nothing(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any point in `_begin`."""
    stream = stream_of(fetched(0))
    with monkeypatch.context() as patched:

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        if at == "decode":
            patched.setattr(stream.buffer, "_decode", interrupted)
        else:
            patched.setattr(FetchBuffer, "name", property(interrupted))
        with pytest.raises(KeyboardInterrupt):
            stream.poll()
    assert read(stream) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("leave", [FetchBuffer.expire, FetchBuffer.pause])
def test_unread_replies_keep_only_their_own_bytes(leave: Callable[[FetchBuffer], bool]) -> None:
    fetches: list[CompletedFetch] = []

    def noted(part: CompletedFetch, where: str) -> Iterator[pa.RecordBatch]:
        fetches.append(part)
        return decoded(part, where)

    stream = stream_of(fetched(0, before=1_000), fetched(10, before=1_000), decode=noted)
    assert read(stream) == [0, 1, 2, 3, 4]
    leave(stream.buffer)
    leave(stream.buffer)
    stream.buffer.put(fetched(20, before=1_000), 0)
    stream.resume()
    assert [offset for _ in range(5) for offset in read(stream)] == list(range(5, 30))
    own_bytes = [part.records.buffer.nbytes == len(part.records.buffer.obj) for part in fetches]
    assert own_bytes == [False, True, True, True]


def test_stream_without_replies_ahead_is_fetched_while_its_user_is_slow() -> None:
    stream = stream_of(fetched(0))
    read(stream)
    stream.buffer.expire()
    assert not stream.expired
    stream.buffer.put(fetched(10), 0)
    stream.buffer.expire()
    assert stream.expired
    read(stream)
    assert not stream.expired


def test_closed_stream_has_no_rows_and_errors() -> None:
    stream = stream_of()
    stream.buffer.stop(DataLoss("gone"))
    assert stream.buffer.readable
    stream.close()
    assert not stream.buffer.readable
    assert stream.poll(0) is None


def test_time_without_requests_does_not_count_as_broker_failure() -> None:
    """One Fetch failed; then no request was sent, since the user did not read."""
    clock = ManualClock()
    stream = stream_of(fetched(0), clock=clock)
    stream.buffer.postpone(ConnectionLost("broken"), clock.now_s())
    stream.buffer.expire()
    clock.at_s = 70
    assert [offset for _ in range(2) for offset in read(stream)] == list(range(10))
    assert stream.poll(0) is None


@pytest.mark.parametrize("seek", [False, True])
def test_time_with_requests_counts_as_broker_failure(seek: bool) -> None:
    """All replies are read, or the user has sought: then the fetch does not wait for the user."""
    clock = ManualClock()
    stream = stream_of(clock=clock)
    stream.buffer.postpone(ConnectionLost("broken"), clock.now_s())
    if seek:
        stream.buffer.put(fetched(0), 0)
    stream.buffer.expire()
    assert stream.expired is seek
    if seek:
        clock.at_s = 1_000
        stream.seek(5)
        assert stream.poll(0) is None, "the user was away, not the brokers"
    clock.at_s += 61
    with pytest.raises(DeadlineExceeded):
        stream.poll(0)


def test_pauses_do_not_postpone_a_broker_failure_forever() -> None:
    clock = ManualClock()
    stream = stream_of(clock=clock)
    stream.buffer.postpone(ConnectionLost("broken"), clock.now_s())
    for _ in range(6):
        clock.at_s += 9
        stream.resume()
        assert stream.poll(0) is None
        stream.pause()
        clock.at_s += 100
        stream.resume()
    clock.at_s += 9
    with pytest.raises(DeadlineExceeded):
        stream.poll(0)


def test_empty_poll_marks_the_stream_as_wanted_until_a_reply_arrives() -> None:
    """However short the poll is: replies that other users do not read make room for it."""
    stream = stream_of()
    assert stream.poll(0) is None
    assert stream.buffer.reader_waits
    stream.buffer.put(fetched(0), 0)
    assert not stream.buffer.reader_waits


# -- reads with a limit of rows -------------------------------------------------------------------


def test_limited_reads_cut_batches_without_a_gap() -> None:
    stream = stream_of(fetched(0))
    for most, offsets in ((2, [0, 1]), (2, [2, 3]), (4, [4]), (100, [5, 6, 7, 8, 9])):
        assert read(stream, most) == offsets
        assert stream.position == offsets[-1] + 1


def test_records_of_a_reply_are_counted_without_those_before_a_seek() -> None:
    sensors = MagicMock()
    stream = stream_of(fetched(0), sensors=sensors)
    read(stream)
    stream.seek(40)
    stream.buffer.put(fetched(40), 0)
    assert [*read(stream), *read(stream)] == list(range(40, 50))
    assert stream.poll(0) is None
    sensors.partition_replies.record.assert_called_once_with((0.0, 10))


def test_rest_of_a_cut_batch_survives_a_pause() -> None:
    """A pause copies the reply, and its rest is decoded again."""
    stream = stream_of(fetched(0, before=1_000))
    assert read(stream, 2) == [0, 1]
    stream.pause()
    assert stream.poll(0, 2) is None
    stream.resume()
    assert [*read(stream), *read(stream)] == [2, 3, 4, 5, 6, 7, 8, 9]


def test_next_read_continues_after_ctrl_c_anywhere_in_messages(fake: FakeKafka, consumer: Consumer) -> None:
    """At most one record is repeated."""
    for first in (5, 10, 15):
        fake.write("orders", 0, records(first, 5))
    count, opened = 20, consumer.consume_partition("orders", 0, 0)
    place, reached = 1, True
    while reached:
        opened.seek(0)
        offsets: list[int] = []
        messages = opened.messages(10_000)
        with suppress(KeyboardInterrupt), interrupted_at(place, INTERRUPTED_MODULES) as was_reached:
            while len(offsets) < count:
                offsets.append(next(messages).offset)
        reached = was_reached()
        missing = count - opened.position
        assert missing - (count - len(offsets)) in (0, 1), place
        offsets += [message.offset for message in islice(opened.messages(10_000), missing)]
        assert sorted(set(offsets)) == list(range(count)), place
        place += 1
    assert place > 30, "messages was interrupted"
