"""Single messages: invalid ones are refused at the call, and the result of one does not affect others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from protocol.errors import DeadlineExceeded, KafkaError, UsageError
from protocol.producer.messages import Message, MessageBuffer
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer import Producer
from protocol.producer.results import ProducedRange, RecordMetadata
from protocol.producer.sender import Sender
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.producer.producing import TOPIC, WAIT_S, columns_of, nothing_written, producer_of, values_of
from tests.support.internals import pending_of, thread_of
from tests.support.wait_until import wait_until


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, 1)
        yield kafka


@pytest.fixture
def producer(broker: FakeKafka) -> Iterator[Producer]:
    with producer_of(broker.bootstrap_servers, {"linger.ms": 50, "delivery.timeout.ms": 40_000}) as producer:
        yield producer


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"value": 5}, "value is int; it must be bytes or str"),
        ({"value": [1, 2]}, "value is list"),
        ({"key": 1.5}, "key is float"),
        ({"headers": [("a", 1)]}, "header a is int"),
        ({"headers": [(b"a", b"1")]}, r"\(b'a', b'1'\) is not a header; it must be a name \(str\) and a value"),
        ({"headers": {"a": b"1"}}, "'a' is not a header"),
        ({"timestamp_ms": "yesterday"}, "timestamp_ms is 'yesterday'"),
        ({"timestamp_ms": -1}, "timestamp_ms is -1"),
        ({"timestamp_ms": 2**63}, "it must be milliseconds since 1970"),
        ({"partition": "0"}, "partition is '0'; it must be an int"),
        ({"partition": 2**31}, "partition is 2147483648; it must be an int of at most 32 bits"),
        ({"value": "a\ud800"}, r"value has no UTF-8: '\\ud800' at position 1"),
        ({"key": "\ud800"}, "key has no UTF-8"),
        ({"headers": [("\ud800", b"1")]}, "a header's name has no UTF-8"),
        ({"topic": None}, "topic is None; it must be a str"),
    ],
)
def test_invalid_message_is_refused_and_others_are_written(
    producer: Producer, fields: dict[str, Any], words: str
) -> None:
    first = producer.send(TOPIC, b"first")
    with pytest.raises(UsageError, match=words):
        producer.send(**{"topic": TOPIC, "value": b"bad", **fields})
    second = producer.send(TOPIC, b"second")
    assert [first.result(WAIT_S).offset, second.result(WAIT_S).offset] == [0, 1]


def test_value_changed_after_send_is_written_unchanged(broker: FakeKafka, producer: Producer) -> None:
    value = bytearray(b"before")
    sent = producer.send(TOPIC, value)  # type: ignore[arg-type]
    value[:] = b"after!"
    sent.result(WAIT_S)
    assert values_of(broker) == [b"before"]


def test_send_in_a_callback_to_an_unknown_partition_or_topic_fails_at_once(
    broker: FakeKafka, producer: Producer
) -> None:
    raised: list[KafkaError] = []

    def on_written(future: Future[RecordMetadata]) -> None:
        for topic, partition in ((TOPIC, 9), ("nowhere", None)):
            try:
                producer.send(topic, b"v", partition=partition)
            except KafkaError as error:
                raised.append(error)

    began_s = time.monotonic()
    with nothing_written(broker):
        producer.send(TOPIC, b"first").add_done_callback(on_written)
    wait_until(lambda: len(raised) == 2)
    assert time.monotonic() - began_s < 15, "max.block.ms is 60 s"
    assert "partition 9 was requested, but topic t has 1" in str(raised[0])
    assert "UNKNOWN_TOPIC_OR_PARTITION" in str(raised[1])


def test_callback_may_send_but_not_wait(broker: FakeKafka) -> None:
    results: list[object] = []
    with producer_of(broker.bootstrap_servers) as producer:

        def on_written(future: Future[RecordMetadata]) -> None:
            try:
                producer.flush()
            except KafkaError as error:
                results.append(error)
            results.append(producer.send(TOPIC, b"second", partition=0))

        with nothing_written(broker):
            producer.send(TOPIC, b"first", partition=0).add_done_callback(on_written)
        wait_until(lambda: len(results) == 2)
        error, second = results
        assert isinstance(error, UsageError)
        assert "a callback of a future may only send" in str(error)
        assert isinstance(second, Future)
        assert second.result(WAIT_S) == RecordMetadata(TOPIC, 0, 1, second.result().timestamp_ms)


def test_close_ends_the_lookup_of_a_callback(broker: FakeKafka) -> None:
    producer = producer_of(broker.bootstrap_servers, {"request.timeout.ms": 600_000, "delivery.timeout.ms": 600_000})
    begun = threading.Event()
    refusals: list[KafkaError] = []

    def send_to_another_topic(_: object) -> None:
        broker.lose_requests(METADATA, ALWAYS)
        begun.set()
        try:
            producer.send("another", b"a")
        except KafkaError as error:
            refusals.append(error)

    producer.send(TOPIC, b"a").add_done_callback(send_to_another_topic)
    assert begun.wait(WAIT_S)
    producer.abort()
    assert not thread_of(producer).is_alive()
    assert refusals


@pytest.mark.parametrize("error", [SystemExit("enough"), ZeroDivisionError("enough")], ids=["exit", "error"])
def test_callback_cannot_end_the_producers_thread(
    broker: FakeKafka, producer: Producer, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(_: object) -> None:
        raise error

    offsets: list[int] = []
    with nothing_written(broker):
        futures = [producer.send(TOPIC, b"%d" % number) for number in range(3)]
        futures[0].add_done_callback(fail)
        for future in futures:
            future.add_done_callback(lambda done: offsets.append(done.result().offset))
    assert [future.result(WAIT_S).offset for future in futures] == [0, 1, 2]
    assert producer.send(TOPIC, b"3").result(WAIT_S).offset == 3
    assert offsets == [0, 1, 2]
    assert f"{type(error).__name__}: enough" in caplog.text


@pytest.mark.parametrize("call", [Producer.flush, Producer.close, Producer.abort])
def test_call_within_send_columns_is_refused(broker: FakeKafka, call: Callable[[Producer], None]) -> None:
    """A signal handler may interrupt `send_columns` anywhere; a partitioner always runs inside it."""
    raised: list[str] = []

    def choose(topic: str, columns: pa.RecordBatch, count: int) -> npt.NDArray[np.int32]:
        with pytest.raises(UsageError, match="a signal handler, a partitioner or a callback") as refused:
            call(producer)
        raised.append(str(refused.value))
        return np.zeros(columns.num_rows, np.int32)

    producer = producer_of(broker.bootstrap_servers, {"linger.ms": 0}, partitioner=choose)
    sent = producer.send_columns(TOPIC, columns_of(b"value"))
    assert sent.result()["offset"].to_pylist() == [0]
    producer.close()
    assert len(raised) == 1


def test_send_after_one_that_ctrl_c_has_ended_before_its_wake_up_is_written(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupted message is in the buffer, and only the first message of a buffer wakes the sender."""
    interrupts = [KeyboardInterrupt()]
    wake = Sender.wake

    def wake_or_raise(sender: Sender) -> None:
        if interrupts:
            raise interrupts.pop()
        wake(sender)

    monkeypatch.setattr(Sender, "wake", wake_or_raise)
    with pytest.raises(KeyboardInterrupt):
        producer.send("t", b"interrupted", partition=0)
    assert producer.send("t", b"later", partition=0).result(30).offset == 1


def test_wakeup_for_a_message_is_not_lost_to_that_of_an_earlier_one() -> None:
    """The earlier message is taken already when its thread says that it has woken the sender."""

    class OvertakenBuffer(MessageBuffer):
        @property
        def full(self) -> bool:
            self.woken()
            return False

    buffer, message = OvertakenBuffer(1 << 20, 1_000, PendingRows()), Message(b"a", None, (), 1, None)
    _, first_wakes = buffer.append(TOPIC, message, 0.0)
    buffer.take()
    _, second_wakes = buffer.append(TOPIC, message, 0.0)
    assert (first_wakes, second_wakes) == (True, True)


def test_acknowledged_ranges_begin_anew_with_the_first_message_after_a_flush(producer: Producer) -> None:
    producer.send(TOPIC, b"before", partition=0)
    producer.flush()
    producer.send(TOPIC, b"after", partition=0).result(WAIT_S)
    assert producer.acknowledged == {(TOPIC, 0): ProducedRange(1, 1, 1)}
    producer.flush()
    assert producer.acknowledged == {(TOPIC, 0): ProducedRange(1, 1, 1)}


class TestMemory:
    """`buffer.memory` while no broker replies."""

    @pytest.fixture
    def full(self, broker: FakeKafka) -> Iterator[Producer]:
        small = {"buffer.memory": 20_000, "max.request.size": 10_000, "max.block.ms": 2_000}
        with producer_of(broker.bootstrap_servers, small) as producer:
            producer.send(TOPIC, b"first").result(WAIT_S)
            with nothing_written(broker):
                yield producer
            with suppress(KafkaError):
                producer.flush()

    def test_messages_wait_for_memory_also_with_an_unreported_failure(self, full: Producer) -> None:
        full.send_columns(TOPIC, columns_of(bytes(12_000)))  # too large: fails alone, and its caller ignores the result
        with pytest.raises(DeadlineExceeded, match=r"buffer\.memory is 20000"):
            list(map(partial(full.send, TOPIC), [bytes(1_000)] * 100))
        assert full.held_bytes <= 20_000
        with pytest.raises(UsageError, match=r"more than max\.request\.size"):
            full.flush()

    def test_columns_waiting_for_memory_raise_an_unreported_failure(self, full: Producer) -> None:
        full.send_columns(TOPIC, columns_of(*[bytes(1_000)] * 18))
        with ThreadPoolExecutor(1) as executor:
            sent = executor.submit(full.send_columns, TOPIC, columns_of(*[bytes(1_000)] * 5))
            wait_until(lambda: pending_of(full).waiting_for_room or sent.done())
            full.send_columns(TOPIC, columns_of(bytes(12_000)))
            assert "more than max.request.size" in str(sent.exception(WAIT_S))
        assert full.held_bytes <= 20_000
