"""Unexpected errors in a producer, such as MemoryError: each row gets a result, and no caller waits forever."""

from __future__ import annotations

import concurrent.futures.thread
import gc
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.producer.accumulator import Accumulator
from protocol.producer.batch_assembler import BatchAssembler
from protocol.producer.partition_choice import PartitionChoice
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.pending_rows import PendingRows
from protocol.producer.results import RecordMetadata, SentColumns
from protocol.producer.sender import Sender
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m00_produce import PRODUCE
from tests.protocol.producer.producing import (
    TOPIC,
    WAIT_S,
    SkippingClock,
    columns_of,
    fail_first_calls,
    nothing_written,
    numbered,
    producer_of,
    send_rows,
    skip_a_minute,
)
from tests.support.background import background
from tests.support.internals import assembler_of, sender_of, thread_of
from tests.support.wait_until import wait_until


@pytest.mark.parametrize(
    ("owner", "name"), [(PendingRows, "complete"), (SentColumns, "complete"), (PartitionProducer, "take_completed")]
)
def test_failed_sender_ends_a_call_that_waits_for_memory(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """The call holds the lock that the end of the sender would wait for."""
    small = {"batch.size": 2_000, "buffer.memory": 10_000, "linger.ms": 5}
    with suppress(UsageError), producer_of(broker.bootstrap_servers, small) as producer:

        def send() -> list[KafkaError]:
            try:
                sent = producer.send_columns(TOPIC, numbered(0, 400), np.arange(400, dtype=np.int32) % 2)
                return [*sent.errors().values()]
            except UsageError as error:
                return [error]

        with ThreadPoolExecutor(1) as threads, nothing_written(broker):
            sending = threads.submit(send)
            wait_until(lambda: producer.held_bytes > 5_000 and broker.request_bodies(PRODUCE))
            fail_first_calls(monkeypatch, owner, name)
        assert "its sender has failed" in str(sending.result()[-1])
        with pytest.raises(UsageError, match="its sender has failed"):
            producer.flush()


@pytest.mark.parametrize("call", ["flush", "send_and_wait"])
def test_message_of_another_thread_is_sent_although_a_flush_fails(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The sender's thread cannot hand the message over while the flush holds the lock."""
    attempts, further = list[object](), list[Future[RecordMetadata]]()
    hand_over_due = BatchAssembler.hand_over_due

    def counted(assembler: BatchAssembler) -> float | None:
        due_s = hand_over_due(assembler)
        attempts.append(due_s)
        return due_s

    monkeypatch.setattr(BatchAssembler, "hand_over_due", counted)
    with producer_of(broker.bootstrap_servers, {"linger.ms": 1_000}) as producer:
        assembler = assembler_of(producer)
        encode = assembler.encode
        for partition in (0, 1):
            producer.send_and_wait(TOPIC, b"known", partition=partition)

        def fail(*_: object) -> None:
            monkeypatch.setattr(assembler, "encode", encode)
            before = len(attempts)
            thread = threading.Thread(target=lambda: further.append(producer.send(TOPIC, b"lingers", partition=1)))
            thread.start()
            wait_until(lambda: len(attempts) > before)
            thread.join(WAIT_S)
            raise MemoryError("as if")

        monkeypatch.setattr(assembler, "encode", fail)
        if call == "flush":
            producer.send(TOPIC, b"fails", partition=0)
        with pytest.raises(MemoryError):
            producer.flush() if call == "flush" else producer.send_and_wait(TOPIC, b"fails", partition=0)
        assert further[0].result(WAIT_S).offset == 1


def test_close_reports_rows_that_failed_after_its_flush(broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the sender's thread has begun, and the rows have not failed yet."""
    producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000})
    begun, go_on = threading.Event(), threading.Event()
    fail_late_calls, wait = PendingRows.fail_late_calls, PendingRows.wait

    def slowly(pending: PendingRows) -> None:
        if threading.current_thread() is thread_of(producer):
            if pending.all_failed:
                begun.set()
                assert go_on.wait(WAIT_S)
            fail_late_calls(pending)

    def flushed(*arguments: Any, **named: Any) -> list[Any]:
        late = wait(*arguments, **named)
        go_on.set()
        return late

    monkeypatch.setattr(PendingRows, "fail_late_calls", slowly)
    monkeypatch.setattr(PendingRows, "wait", flushed)
    sent = send_rows(producer, 0, 3)
    fail_first_calls(monkeypatch, Sender, "_take_in")
    sender_of(producer).wake()
    assert begun.wait(WAIT_S)
    with pytest.raises(UsageError, match="its sender has failed"):
        producer.close()
    assert len(sent.errors(20_000)) == 3
    assert producer.held_bytes == 0


def test_producer_collected_in_its_own_thread_ends(broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run while that thread holds the lock of the compression threads."""
    item = concurrent.futures.thread._WorkItem  # type: ignore[attr-defined]
    armed = threading.Event()
    create = item.__init__

    def collect(*arguments: Any) -> None:
        if armed.is_set():
            armed.clear()
            gc.collect()
        create(*arguments)

    monkeypatch.setattr(item, "__init__", collect)
    clock = SkippingClock()
    producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000, "compression.type": "lz4"}, clock)
    futures = [producer.send(TOPIC, b"value", partition=number) for number in (0, 1)]
    sender, thread, alive, cycle = sender_of(producer), thread_of(producer), weakref.ref(producer), [producer]
    cycle.append(cycle)  # type: ignore[arg-type]
    gc.disable()
    try:
        armed.set()
        del producer, cycle
        clock.skip(60)
        sender.wake()
        thread.join(WAIT_S)
    finally:
        gc.enable()
    assert alive() is None
    assert not thread.is_alive()
    assert all(future.done() for future in futures)


class TestTransaction:
    @pytest.fixture
    def producer(self, broker: FakeKafka) -> Iterator[TransactionalProducer]:
        properties = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "transactional.id": "etl"}
        producer = TransactionalProducer(properties)
        producer.init_transactions()
        producer.begin_transaction()
        yield producer
        producer.abort()

    @pytest.mark.parametrize(
        ("owner", "name"), [(Accumulator, "drain"), (PendingRows, "add"), (SentColumns, "complete")]
    )
    def test_interrupted_abort_gives_each_row_a_result(
        self, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
    ) -> None:
        sent = send_rows(producer, 0, 3)
        futures = [producer.send(TOPIC, b"value", partition=number) for number in (0, 1)]
        fail_first_calls(monkeypatch, owner, name)
        with pytest.raises((MemoryError, UsageError)):
            producer.abort_transaction()
        assert len(sent.errors(20_000)) == 3
        assert all(isinstance(future.exception(WAIT_S), UsageError) for future in futures)
        with pytest.raises(KafkaError, match="cannot continue"):
            producer.abort_transaction()

    def test_abort_ends_a_call_that_hands_over_more_than_fits(self, broker: FakeKafka) -> None:
        """To partitions without a leader."""
        properties = {"bootstrap.servers": broker.bootstrap_servers, "buffer.memory": 20_000, "batch.size": 2_000}
        producer = TransactionalProducer({**properties, "transactional.id": "copy"})
        producer.init_transactions()
        producer.begin_transaction()
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ALWAYS)
        partitions = np.arange(10_000, dtype=np.int32) % 2
        with ThreadPoolExecutor(1) as threads:
            sending = threads.submit(producer.send_columns, TOPIC, numbered(0, 10_000), partitions)
            wait_until(lambda: producer.held_bytes > 10_000 and broker.request_bodies(PRODUCE))
            producer.abort_transaction(WAIT_S * 1000)
            assert len(sending.result(WAIT_S).errors(0)) == 10_000
        producer.close()

    def test_transaction_fails_before_its_rows(
        self, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise another thread could commit it meanwhile, without them."""
        states: list[TransactionState] = []
        future = producer.send(TOPIC, b"value", partition=0)
        future.add_done_callback(lambda _: states.append(producer.transaction_state))
        fail_first_calls(monkeypatch, Sender, "_take_in")
        with pytest.raises(KafkaError):
            producer.commit_transaction()
        assert isinstance(future.exception(WAIT_S), KafkaError)
        wait_until(lambda: states)  # a future's callbacks run after its waiting threads are notified
        assert states == [TransactionState.ABORTABLE_ERROR]


def test_rows_handed_over_during_a_reset_are_dropped(broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next transaction would include rows of an aborted one."""
    discard = BatchAssembler.discard

    def late(assembler: BatchAssembler, error: KafkaError, deadline: Deadline) -> None:
        monkeypatch.undo()
        assert assembler.drain(deadline)
        wait_until(lambda: sender_of(producer).busy)
        discard(assembler, error, deadline)

    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}) as producer:
        future = producer.send(TOPIC, b"aborted", partition=0)
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ALWAYS)
        monkeypatch.setattr(BatchAssembler, "discard", late)
        producer.reset_sequences(Deadline.after_ms(WAIT_S * 1000))
        assert "the transaction was aborted" in str(future.exception(0))
        broker.faults.clear()
        producer.send_and_wait(TOPIC, b"next", partition=0)
    assert [record.value for record in broker.records(TOPIC)] == [b"next"]


@pytest.mark.parametrize("call", ["flush", "reset_sequences"])
def test_callback_may_take_a_lock_of_a_thread_that_sends(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It runs outside the producer's lock, which that thread waits for."""
    lock, event, begun, taken = threading.Lock(), threading.Event(), threading.Event(), list[bool]()

    def callback(_: object) -> None:
        begun.set()
        if lock.acquire(timeout=WAIT_S):
            lock.release()
            taken.append(True)

    def send() -> None:
        with lock:
            event.set()
            assert begun.wait(WAIT_S)
            send_rows(producer, 0, 3)

    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}) as producer:
        future = producer.send(TOPIC, b"fails")
        future.add_done_callback(callback)
        with background(send), monkeypatch.context() as patch:
            assert event.wait(WAIT_S)
            patch.setattr(PartitionChoice, "choose_each", refuse)
            if call == "flush":
                producer.flush()
            else:
                producer.reset_sequences(Deadline.after_ms(WAIT_S * 1000))
        assert future.exception(0) is not None
    assert taken == [True]


@pytest.mark.parametrize(("owner", "name"), [(Sender, "put"), (PendingRows, "add")])
@pytest.mark.parametrize("kind", ["message", "columns"])
def test_error_while_rows_fail_stops_the_producer(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, kind: str
) -> None:
    with (
        suppress(UsageError),
        producer_of(broker.bootstrap_servers, {"linger.ms": 60_000, "max.request.size": 1_000}) as producer,
    ):
        producer.send_and_wait(TOPIC, b"known", partition=0)
        lingering = send_rows(producer, 0, 3)
        fail_first_calls(monkeypatch, owner, name)
        if kind == "message":
            producer.send(TOPIC, b"x" * 2_000)
        with pytest.raises((MemoryError, UsageError)):
            producer.flush() if kind == "message" else producer.send_columns(TOPIC, columns_of(b"x" * 2_000))
        assert len(lingering.errors(20_000)) == 3
        with pytest.raises(UsageError, match="cannot continue"):
            producer.flush()
        wait_until(lambda: producer.held_bytes == 0)


def refuse(*_: object) -> None:
    raise UsageError("as if")


@pytest.mark.parametrize(
    ("owner", "name"), [(PartitionProducer, "drop"), (PendingRows, "fail_late_calls"), (SentColumns, "fail_rest")]
)
def test_sender_ends_in_spite_of_errors(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000})
    sent = [send_rows(producer, number, 3) for number in range(2)]
    future = producer.send(TOPIC, b"value", partition=1)
    fail_first_calls(monkeypatch, owner, name)
    producer.abort()
    assert [len(columns.errors(20_000)) for columns in sent] == [3, 3]
    assert isinstance(future.exception(WAIT_S), UsageError)


@pytest.mark.parametrize("call", ["flush", "close", "send_columns"])
def test_failure_shared_by_two_calls_is_raised_if_one_result_was_not_requested(broker: FakeKafka, call: str) -> None:
    """Their rows are in one record batch."""
    clock = SkippingClock()
    producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}, clock)
    broker.refuse(PRODUCE, ErrorCode.INVALID_RECORD)
    requested, _ = (send_rows(producer, 0, 1) for _ in range(2))
    skip_a_minute(producer, clock)
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        requested.result()
    with pytest.raises(KafkaError, match="INVALID_RECORD"):
        producer.send_columns(TOPIC, numbered(0, 1)) if call == "send_columns" else getattr(producer, call)()
    producer.close()
    assert len(broker.request_bodies(PRODUCE)) == 1


def test_close_at_its_deadline_raises_for_the_rows_it_drops_and_logs_an_earlier_failure(
    broker: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Dropped rows may fail only after `close`, if the sender's thread is busy."""
    has_callback, busy, free = threading.Event(), threading.Event(), threading.Event()

    def keep_sender_busy(_: object) -> None:
        busy.set()
        free.wait(20)

    broker.before[PRODUCE] = lambda body: has_callback.wait(20)
    producer = producer_of(broker.bootstrap_servers, {"max.request.size": 1_000, "linger.ms": 0})
    producer.send(TOPIC, b"1").add_done_callback(keep_sender_busy)
    has_callback.set()
    assert busy.wait(WAIT_S)
    sent = producer.send_columns(TOPIC, numbered(0, 1))
    producer.send_columns(TOPIC, columns_of(b"x" * 2_000))
    with pytest.raises(DeadlineExceeded, match=f"{TOPIC}-"):
        producer.close(0)
    free.set()
    assert sent.errors()
    assert re.search(r"another write failed: .* more than max\.request\.size", caplog.text)


def test_close_raises_for_a_call_that_began_after_the_sender_had_failed(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    def partitioner(topic: str, rows: pa.RecordBatch, count: int) -> pa.Array:
        fail_first_calls(monkeypatch, Sender, "_take_in")
        sender_of(producer).wake()
        thread_of(producer).join(WAIT_S)
        return pa.array([0] * rows.num_rows, pa.int32())

    producer = producer_of(broker.bootstrap_servers, partitioner=partitioner)
    sent = producer.send_columns(TOPIC, numbered(0, 2))
    with pytest.raises(UsageError, match="sender has failed"):
        producer.close()
    assert len(sent.errors()) == 2
