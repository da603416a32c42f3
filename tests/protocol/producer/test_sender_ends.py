"""The end of a producer: closed, collected, forked, or stopped by an error; each row gets a result."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from protocol.base.clock import Deadline
from protocol.base.condition import Event
from protocol.errors import KafkaError, TransactionFailed, UsageError
from protocol.producer import accumulator
from protocol.producer.accumulator import Accumulator
from protocol.producer.messages import TopicMessages
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer import Producer
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import RecordMetadata
from protocol.producer.sender import Sender
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.producer.producing import (
    TOPIC,
    WAIT_S,
    SkippingClock,
    fail_first_calls,
    numbered,
    producer_of,
    send_rows,
    skip_a_minute,
    values_of,
)
from tests.support.background import background
from tests.support.forked_child import check_in_child
from tests.support.internals import assembler_of, pending_of, thread_of
from tests.support.wait_until import wait_until


@pytest.mark.parametrize(
    ("where", "raised"), [("encoding", MemoryError("as if")), ("waiting for room", KeyboardInterrupt())]
)
def test_interrupted_call_fails_rows_of_earlier_calls_too(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, where: str, raised: BaseException
) -> None:
    def come_between(*_: object, **__: object) -> None:
        raise raised

    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000, "batch.size": 2_000}) as producer:
        earlier = [send_rows(producer, 0, 3, partition=number) for number in (0, 1)]
        if where == "encoding":
            monkeypatch.setattr(assembler_of(producer), "encode", come_between)
        else:
            monkeypatch.setattr(assembler_of(producer), "_fits", lambda size_bytes: False)
            monkeypatch.setattr(pending_of(producer), "wait_for_room", come_between)
        with pytest.raises(type(raised)):
            producer.send_columns(TOPIC, numbered(3, 40), np.arange(40, dtype=np.int32) % 2)
        monkeypatch.undo()
        with pytest.raises(UsageError, match=f"rows of {TOPIC} were not sent because of another error"):
            producer.flush()
        assert all(len(columns.errors(20_000)) == 3 for columns in earlier)
        send_rows(producer, 7, 1)
    assert [int(value[:9]) for value in values_of(broker)] == [7]


def test_unexpected_error_fails_only_the_messages_of_its_topic(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    broker.create_topic("others", 1)
    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}) as producer:
        futures = [producer.send(topic, b"waits", partition=0) for topic in (TOPIC, "others")]
        monkeypatch.setattr(assembler_of(producer), "_record_sizes", fail)
        producer.flush()
        with pytest.raises(UsageError, match="ZeroDivisionError"):
            futures[0].result(0)
        assert futures[1].result(0).offset == 0
        assert producer.send_and_wait(TOPIC, b"later", partition=0).offset == 0
        wait_until(lambda: producer.held_bytes == 0)


def test_signal_handler_may_flush_while_its_thread_resets_sequence_numbers(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}) as producer:
        written: list[Future[RecordMetadata]] = []

        def come_between() -> Event:
            monkeypatch.undo()  # the second wait of this reset is for the sequence numbers of the same epoch
            written.append(producer.send(TOPIC, b"of the handler", partition=0))
            producer.flush()
            return Event()

        monkeypatch.setattr("protocol.producer.sender.Event", come_between)
        producer.reset_sequences(Deadline.after_ms(20_000))
        assert [future.result(0).offset for future in written] == [0]


def fail_sender(monkeypatch: pytest.MonkeyPatch, when: Callable[[Sender], object] = lambda sender: True) -> None:
    def work(self: Sender) -> None:
        if when(self):
            raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Sender, "_work", work)


def open_sockets() -> set[str]:
    sockets = set[str]()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            sockets.add(os.readlink(f"/proc/self/fd/{number}"))
    return {name for name in sockets if name.startswith("socket:")}


class TestClose:
    @pytest.mark.parametrize("end", [Producer.close, Producer.abort])
    def test_closed_producer_leaves_no_thread_and_socket(
        self, broker: FakeKafka, end: Callable[[Producer], None]
    ) -> None:
        before = open_sockets()
        producer = producer_of(broker.bootstrap_servers)
        send_rows(producer, 0, 3)
        producer.flush()
        opened, thread = open_sockets() - before, thread_of(producer)
        end(producer)
        assert not thread.is_alive()
        assert len(opened - open_sockets()) >= 3, "one connection and two ends of a pipe"

    def test_abort_ends_soon_despite_a_hanging_broker(self, broker: FakeKafka) -> None:
        broker.handlers[PRODUCE] = lambda body, version: None
        producer = producer_of(broker.bootstrap_servers)
        sent = send_rows(producer, 0, 3)
        waiting = producer.send(TOPIC, b"not on its way yet")
        wait_until(lambda: producer.requests >= 1)
        began_s = time.monotonic()
        producer.abort()
        assert time.monotonic() - began_s < 15
        assert not thread_of(producer).is_alive()
        for error in (sent.errors()[2], waiting.exception(0)):
            assert isinstance(error, UsageError)
            assert "closed" in str(error)

    def test_rows_in_flight_are_not_called_dropped(self, broker: FakeKafka) -> None:
        broker.delay_replies(PRODUCE, 3_600, ALWAYS)
        producer = producer_of(broker.bootstrap_servers, {"linger.ms": 0})
        future = producer.send(TOPIC, b"written", partition=0)
        wait_until(lambda: broker.log(TOPIC).end_offset == 1)
        with pytest.raises(KafkaError):
            producer.close(timeout_ms=100)
        assert "may be written" in str(future.exception(WAIT_S))

    def test_close_raises_for_rows_sent_after_its_flush(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000})
        wait = pending_of(producer).wait

        def wait_and_send(deadline: Deadline, *, despite_failures: bool) -> list[ProducerBatch]:
            late = wait(deadline, despite_failures=despite_failures)
            with ThreadPoolExecutor(1) as other:
                other.submit(producer.send_columns, TOPIC, numbered(0, 3)).result(WAIT_S)
            return late

        monkeypatch.setattr(pending_of(producer), "wait", wait_and_send)
        with pytest.raises(UsageError, match="closed"):
            producer.close()
        assert not values_of(broker)

    def test_sender_failure_is_raised_in_all_calls(self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = producer_of(broker.bootstrap_servers)
        fail_sender(monkeypatch, lambda sender: sender.busy)
        sent = send_rows(producer, 0, 3)
        with pytest.raises(UsageError, match=r"its sender has failed, .*: ZeroDivisionError"):
            sent.result(10_000)
        wait_until(lambda: not thread_of(producer).is_alive())
        calls = (
            lambda: producer.send(TOPIC, b"more"),
            lambda: producer.send_columns(TOPIC, numbered(3, 1)),
            producer.flush,
        )
        for call in calls:
            with pytest.raises(UsageError, match=r"its sender has failed, .*: ZeroDivisionError"):
                call()
        producer.abort()

    def test_fork_raises_in_the_child_and_the_parent_continues(self, broker: FakeKafka) -> None:
        def refused() -> None:
            for call in (
                lambda: producer.send_columns(TOPIC, numbered(0, 1)),
                lambda: producer.send(TOPIC, b"v"),
                producer.flush,
                producer.close,
            ):
                with pytest.raises(UsageError, match="before a fork"):
                    call()
            producer.abort()

        with producer_of(broker.bootstrap_servers) as producer:
            send_rows(producer, 0, 3).result()
            check_in_child(refused)
            send_rows(producer, 3, 3).result()
        assert broker.log(TOPIC).end_offset == 6

    def test_close_in_a_child_ends_although_a_lock_was_held_at_the_fork(self, broker: FakeKafka) -> None:
        def refused() -> None:
            for call in (lambda: producer.acknowledged, producer.close):
                with pytest.raises(UsageError, match="before a fork"):
                    call()

        event, over = threading.Event(), threading.Event()

        def hold(pending: PendingRows) -> None:
            pending.wait_for_room(lambda: event.set() or over.wait(WAIT_S), 0.0, despite_failures=True)

        with producer_of(broker.bootstrap_servers) as producer, background(lambda: hold(pending_of(producer))):
            assert event.wait(WAIT_S)
            try:
                check_in_child(refused)
            finally:
                over.set()

    def test_close_in_several_threads_raises_nothing_if_all_is_written(self, broker: FakeKafka) -> None:
        for _ in range(10):
            broker.delay_replies(PRODUCE, 0.05, 2)
            producer = producer_of(broker.bootstrap_servers, {"linger.ms": 0})
            futures = [producer.send(TOPIC, b"v", partition=number % 2) for number in range(8)]
            with ThreadPoolExecutor(3) as threads:
                closed = [threads.submit(producer.close) for _ in range(3)]
            assert [future.result(WAIT_S) for future in closed] == [None] * 3
            assert all(future.result(WAIT_S) for future in futures)


class TestStop:
    """An error while rows move, such as MemoryError, stops the producer: some rows may be in no place any more."""

    @pytest.fixture
    def producer(self, broker: FakeKafka) -> Iterator[Producer]:
        broker.create_topic("other", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "batch.size": 2_000})
        yield producer
        producer.abort()

    @pytest.mark.parametrize("place", ["_take_rows", "_joined", "_have_same_schema", "ReadyBatches", "SentRows"])
    @pytest.mark.parametrize("rows", [4, 60])
    def test_every_row_gets_a_result_and_flush_raises(
        self, broker: FakeKafka, producer: Producer, monkeypatch: pytest.MonkeyPatch, place: str, rows: int
    ) -> None:
        earlier = [send_rows(producer, 9, 3, partition=number) for number in (0, 1)]
        futures = [producer.send(topic, b"value", partition=0) for topic in (TOPIC, "other")]
        fail_first_calls(monkeypatch, accumulator, place)
        with suppress(MemoryError, UsageError):
            earlier.append(producer.send_columns(TOPIC, numbered(0, rows), np.arange(rows, dtype=np.int32) % 2))
            producer.flush()
        for _ in range(2):
            with pytest.raises(UsageError, match=r"cannot continue.*: MemoryError"):
                producer.flush()
        with pytest.raises(UsageError, match="cannot continue"):
            producer.send(TOPIC, b"refused", partition=0)
        for sent in earlier:
            errors = sent.errors(20_000)
            offsets = sent.columns()["offset"].to_pylist()
            assert [row in errors for row in range(len(offsets))] == [offset < 0 for offset in offsets]
        acknowledged = [future for future in futures if future.exception(WAIT_S) is None]
        assert not acknowledged or b"value" in values_of(broker)
        producer.abort()

    @pytest.mark.parametrize("nth", range(1, 8))
    def test_messages_in_any_place_get_a_result(
        self, broker: FakeKafka, producer: Producer, monkeypatch: pytest.MonkeyPatch, nth: int
    ) -> None:
        """`size_bytes` is called when messages are taken, and when their memory is freed."""
        size_bytes: Any = TopicMessages.size_bytes
        count = itertools.count(1)

        def no_memory(messages: TopicMessages) -> int:
            if next(count) == nth:
                raise MemoryError("as if")
            return int(size_bytes.fget(messages))

        broker.create_topic("third", 1)
        futures = [producer.send(topic, b"value", partition=0) for topic in (TOPIC, "other", "third")]
        monkeypatch.setattr(TopicMessages, "size_bytes", property(no_memory))
        with suppress(MemoryError):
            producer.flush()
        for _ in range(2):
            with suppress(UsageError):
                producer.flush()
        results = [type(future.exception(WAIT_S)) for future in futures]
        assert results == [type(None)] * 3 if next(count) <= nth else UsageError in results
        monkeypatch.undo()

    def test_messages_that_linger_get_a_result(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = SkippingClock()
        producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}, clock)
        fail_first_calls(monkeypatch, accumulator, "_take_rows", calls=1_000)
        futures = [producer.send(TOPIC, b"value", partition=number) for number in (0, 1)]
        skip_a_minute(producer, clock)
        assert [type(future.exception(WAIT_S)) for future in futures] == [UsageError] * 2
        with pytest.raises(UsageError, match="cannot continue"):
            producer.close()
        assert "MemoryError" in caplog.text

    def test_transaction_is_not_committed_without_its_rows(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        properties = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "transactional.id": "etl"}
        producer = TransactionalProducer(properties)
        producer.init_transactions()
        producer.begin_transaction()
        send_rows(producer, 0, 3)
        fail_first_calls(monkeypatch, Accumulator, "_output")
        with pytest.raises((MemoryError, TransactionFailed), match="as if"):  # in this call, or before it
            producer.commit_transaction()
        for _ in range(2):
            with pytest.raises(KafkaError, match="cannot continue"):
                producer.commit_transaction()
        with suppress(KafkaError):
            producer.close()
        with TransactionalProducer(properties) as later:
            later.init_transactions()
        assert not broker.records(TOPIC)
