"""The thread of a producer: its work while callers are away, and its end."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.base.clock import Deadline
from protocol.base.condition import Event
from protocol.broker_errors import ErrorCode
from protocol.errors import BrokerError, DeadlineExceeded, KafkaError, TransactionFailed, UsageError
from protocol.producer import sender
from protocol.producer.accumulator import Accumulator
from protocol.producer.messages import TopicMessages
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.pending_rows import PendingRows
from protocol.producer.producer import Producer
from protocol.producer.producer_batch import ProducerBatch
from protocol.producer.results import RecordMetadata
from protocol.producer.sender import Sender
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from tests.protocol.producer.producing import SkippingClock, end_linger, numbered, producer_of
from tests.support.forked_child import check_in_child
from tests.support.internals import assembler_of, pending_of, sender_of, thread_of
from tests.support.wait_until import wait_until

TOPIC = "t"
WAIT_S = 20.0


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, 2)
        yield kafka


def values_of(broker: FakeKafka) -> list[bytes]:
    return [record.value or b"" for record in broker.records(TOPIC, isolation_level="read_uncommitted")]


def send_slowly(producer: Producer, clock: SkippingClock, count: int) -> list[Future[RecordMetadata]]:
    """Send numbers to partition 0. `linger.ms` (100) ends after each."""
    waiting, futures = assembler_of(producer).messages, []
    for number in range(count):
        futures.append(producer.send(TOPIC, b"%d" % number, partition=0))
        clock.skip(0.2)
        sender_of(producer).wake()
        wait_until(lambda: waiting.oldest_s is None)
    return futures


def trouble(producer: Producer, topic: str, partition: int) -> str:
    """Return the last error of the unwritten rows."""
    busy = sender_of(producer).busy.get((topic, partition))
    return busy.failure_suffix if busy else ""


@contextmanager
def nothing_written(broker: FakeKafka) -> Iterator[None]:
    go_on = threading.Event()
    broker.before[PRODUCE] = lambda body: go_on.wait(WAIT_S)
    try:
        yield
    finally:
        go_on.set()


def before_each_wait(monkeypatch: pytest.MonkeyPatch, action: Callable[..., object]) -> None:
    """Call `action` with the moments for which the sender's thread is about to wait."""
    wait = Sender.wait
    monkeypatch.setattr(Sender, "wait", lambda self, *moments: (action(*moments), wait(self, *moments)))


def after_each_call(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, action: Callable[[], None]) -> None:
    call = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments: (call(*arguments), action()))


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


class TestWhileCallersAreAway:
    def test_refused_batch_is_retried(self, broker: FakeKafka) -> None:
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
        with producer_of(broker.bootstrap_servers) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
            wait_until(lambda: broker.log(TOPIC).end_offset == 3)
            assert len(broker.request_bodies(PRODUCE)) == 4

    def test_partition_removed_from_the_topic_is_named(self, broker: FakeKafka) -> None:
        clock = SkippingClock()
        with producer_of(broker.bootstrap_servers, {"linger.ms": 0}, clock) as producer:
            producer.send(TOPIC, b"first", partition=1).result(WAIT_S)
            broker.delete_topic(TOPIC)
            broker.create_topic(TOPIC, 1)
            second = producer.send(TOPIC, b"second", partition=1)
            wait_until(lambda: "the topic has 1 partitions" in trouble(producer, TOPIC, 1))
            clock.skip(120)
            error = second.exception(WAIT_S)
        assert "t-1 (the topic has 1 partitions): UNKNOWN_TOPIC_OR_PARTITION" in str(error)

    def test_retry_due_just_before_the_wait_is_not_delayed(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy machine the thread may pause just before it waits."""
        clock = SkippingClock()
        before_each_wait(monkeypatch, lambda *moments: clock.skip(1.0))
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, 5)
        with producer_of(broker.bootstrap_servers, clock=clock) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
            wait_until(lambda: broker.log(TOPIC).end_offset == 3)

    def test_broker_that_leaves_in_the_middle_of_a_round_ends_nothing(self) -> None:
        """The leader of the first topic is in the cache; the look-up of the second one shows that it has left."""
        with FakeKafka(2) as kafka:
            for topic, leader in (("a", 1), ("b", 2)):
                kafka.create_topic(topic)
                kafka.move_leader(topic, 0, leader)
            with producer_of(kafka.bootstrap_servers, {"linger.ms": 3_600_000}) as producer:
                producer.send_and_wait("a", b"first")
                futures = [producer.send("a", b"second"), producer.send("b", b"third")]
                kafka.replace_broker(1)
                producer.client.expire_metadata(["b"])
                producer.flush()
                assert [future.result(WAIT_S).offset for future in futures] == [1, 0]

    def test_batch_of_a_partition_with_a_queue_goes_on_filling(self, broker: FakeKafka) -> None:
        """As with a reply time of many `linger.ms`. Otherwise each message would be a separate batch."""
        broker.delay_replies(PRODUCE, 3_600, ALWAYS)
        clock = SkippingClock()
        properties = {"linger.ms": 100, "request.timeout.ms": 50_000}
        with producer_of(broker.bootstrap_servers, properties, clock) as producer:
            futures = send_slowly(producer, clock, 30)
            assert pending_of(producer).count((TOPIC, 0)) == 6
            broker.clear_faults()
            clock.skip(50)
            assert [future.result(WAIT_S).offset for future in futures] == list(range(30))
            wait_until(lambda: pending_of(producer).count((TOPIC, 0)) == 0)
        assert values_of(broker) == [b"%d" % number for number in range(30)]

    def test_rows_behind_a_queue_fail_at_their_own_delivery_timeout(self, broker: FakeKafka) -> None:
        broker.delay_replies(PRODUCE, 3_600, ALWAYS)
        clock = SkippingClock()
        properties = {"linger.ms": 100, "delivery.timeout.ms": 60_000, "request.timeout.ms": 50_000}
        producer = producer_of(broker.bootstrap_servers, properties, clock)
        futures = send_slowly(producer, clock, 9)
        clock.skip(61)
        sender_of(producer).wake()
        for future in futures:
            assert isinstance(future.exception(WAIT_S), DeadlineExceeded)
        producer.abort()

    def test_delivery_timeout_fails_rows_that_cannot_be_written(self, broker: FakeKafka) -> None:
        broker.edit_replies(PRODUCE, lambda body: {"responses": []})
        properties = {"delivery.timeout.ms": 1_000, "request.timeout.ms": 200}
        producer = producer_of(broker.bootstrap_servers, properties)
        began_s = time.monotonic()
        sent = producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        wait_until(lambda: sent.done)
        assert 0.5 < time.monotonic() - began_s < 15
        with pytest.raises(DeadlineExceeded, match=r"1 s \(delivery.timeout.ms\)"):
            producer.flush()
        producer.abort()

    def test_next_call_raises_an_earlier_failure_once(self, broker: FakeKafka) -> None:
        broker.refuse(PRODUCE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 1)
        with producer_of(broker.bootstrap_servers) as producer:
            sent = producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
            wait_until(lambda: sent.done)
            with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
                producer.send_columns(TOPIC, numbered(3, 3), np.zeros(3, np.int32))
            # Raised once.
            producer.send_columns(TOPIC, numbered(3, 3), np.zeros(3, np.int32))
        assert broker.log(TOPIC).end_offset == 3

    def test_sender_sleeps_without_work(self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sender, "_MAX_WAIT_S", 0.1)
        waits_at_s: list[float] = []
        before_each_wait(monkeypatch, lambda *moments: waits_at_s.append(time.monotonic()))
        with producer_of(broker.bootstrap_servers) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
            producer.flush()
            broker.handlers[PRODUCE] = lambda body, version: None
            producer.send_columns(TOPIC, numbered(3, 3), np.zeros(3, np.int32))
            wait_until(lambda: producer.requests == 2)
            before = len(waits_at_s)
            wait_until(lambda: len(waits_at_s) > before + 6)
            assert waits_at_s[-1] - waits_at_s[before] > 0.4, "one request is in flight, and no thread calls"
            producer.abort()

    def test_threads_send_in_their_own_order(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"batch.size": 500}) as producer:

            def send(number: int) -> None:
                for first in range(number * 1_000, number * 1_000 + 300, 10):
                    producer.send_columns(TOPIC, numbered(first, 10), np.zeros(10, np.int32))

            threads = [threading.Thread(target=send, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        written = [int(value[:9]) for value in values_of(broker)]
        assert len(written) == 1_200
        for number in range(4):
            of_thread = [value for value in written if value // 1_000 == number]
            assert of_thread == list(range(number * 1_000, number * 1_000 + 300))


class TestMemory:
    @pytest.mark.parametrize("messages", [False, True])
    def test_rows_passed_to_the_sender_are_always_counted(self, broker: FakeKafka, messages: bool) -> None:
        rows, pending = 15, list[int]()

        def looked_at(call: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *arguments: (pending.append(producer.held_bytes), call(*arguments))[1]

        clock = SkippingClock()
        with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}, clock) as producer:
            if messages:
                for number in range(rows):
                    producer.send(TOPIC, b"%0100d" % number, partition=0)
            else:
                producer.send_columns(TOPIC, numbered(0, rows), np.zeros(rows, np.int32))
            choice = assembler_of(producer).choice
            choice.choose = looked_at(choice.choose)  # type: ignore[method-assign]
            assembler_of(producer).encode = looked_at(assembler_of(producer).encode)
            end_linger(producer, clock)
            wait_until(lambda: broker.log(TOPIC).end_offset == rows)
            wait_until(lambda: producer.held_bytes == 0)
        assert pending
        assert min(pending) >= rows * 100

    def test_released_rows_do_not_wait_for_memory_again(self, broker: FakeKafka) -> None:
        """They already have memory: waiting for replies would slow the producer down."""
        broker.handlers[PRODUCE] = lambda body, version: None
        brief = {"linger.ms": 5_000, "delivery.timeout.ms": 40_000}
        small = {"batch.size": 4_000, "buffer.memory": 9_000}
        with producer_of(broker.bootstrap_servers, {**brief, **small}) as producer:
            unanswered = producer.send_columns(TOPIC, numbered(0, 39), np.zeros(39, np.int32))
            wait_until(lambda: producer.requests == 1)
            producer.send_columns(TOPIC, numbered(0, 30), np.ones(30, np.int32))
            keyed = pa.RecordBatch.from_pydict({"key": pa.array([b"k"]), "value": pa.array([b"of other columns"])})
            producer.send_columns(TOPIC, keyed, np.ones(1, np.int32))
            assert not unanswered.done
            producer.abort()

    @pytest.mark.parametrize("lingers", ["message", "columns"])
    def test_rows_do_not_linger_while_a_call_waits_for_their_memory(self, broker: FakeKafka, lingers: str) -> None:
        small = {"buffer.memory": 20_000, "linger.ms": 60_000, "max.block.ms": 20_000, "delivery.timeout.ms": 120_000}
        with producer_of(broker.bootstrap_servers, small) as producer:
            if lingers == "message":
                producer.send(TOPIC, bytes(4_000), partition=0)
            else:
                producer.send_columns(TOPIC, numbered(0, 39), np.zeros(39, np.int32))
            assert producer.held_bytes > 2_000
            producer.send(TOPIC, bytes(18_000), partition=1)
            assert broker.records(TOPIC)

    def test_memory_is_free_when_replies_arrive_before_the_call_that_passed_the_batches_returns(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = {"batch.size": 4_000, "buffer.memory": 5_000, "linger.ms": 60_000, "max.block.ms": 20_000}
        with producer_of(broker.bootstrap_servers, {**small, "delivery.timeout.ms": 120_000}) as producer:
            written: list[Future[RecordMetadata]] = []
            sending = threading.Thread(target=lambda: written.append(producer.send(TOPIC, bytes(3_000))))

            def stand_still() -> None:
                monkeypatch.undo()  # the sender's thread hands over the message
                wait_until(lambda: pending_of(producer).empty)
                sending.start()
                wait_until(lambda: bool(written))

            producer.send(TOPIC, b"known", partition=0)
            producer.flush()
            producer.send_columns(TOPIC, numbered(0, 22), np.zeros(22, np.int32))
            after_each_call(monkeypatch, sender_of(producer), "put", stand_still)
            producer.flush()
            sending.join()
            assert len(written) == 1


def test_unknown_partition_is_named_despite_a_lost_metadata_reply(broker: FakeKafka) -> None:
    first = None

    def once(body: Any) -> Any:
        nonlocal first
        if (first := first or len(broker.request_bodies(METADATA))) == len(broker.request_bodies(METADATA)):
            return body
        return None

    with producer_of(broker.bootstrap_servers, {"max.block.ms": 1_000}) as producer:
        producer.client.topic(TOPIC)
        broker.edit_replies(METADATA, once)
        with pytest.raises(UsageError, match=f"partition 7 was requested, but topic {TOPIC} has "):
            producer.send_columns(TOPIC, numbered(0, 1), np.full(1, 7, np.int32))


@pytest.mark.parametrize(
    ("where", "raised"), [("encoding", MemoryError("as if")), ("waiting for room", KeyboardInterrupt())]
)
def test_interrupted_call_fails_rows_of_earlier_calls_too(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, where: str, raised: BaseException
) -> None:
    def come_between(*_: object, **__: object) -> None:
        raise raised

    with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000, "batch.size": 2_000}) as producer:
        earlier = [producer.send_columns(TOPIC, numbered(0, 3), np.full(3, number, np.int32)) for number in (0, 1)]
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
        producer.send_columns(TOPIC, numbered(7, 1), np.zeros(1, np.int32))
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


class TestClose:
    @pytest.mark.parametrize("end", [Producer.close, Producer.abort])
    def test_closed_producer_leaves_no_thread_and_socket(
        self, broker: FakeKafka, end: Callable[[Producer], None]
    ) -> None:
        before = open_sockets()
        producer = producer_of(broker.bootstrap_servers)
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        producer.flush()
        opened, thread = open_sockets() - before, thread_of(producer)
        end(producer)
        assert not thread.is_alive()
        assert len(opened - open_sockets()) >= 3, "one connection and two ends of a pipe"

    def test_abort_ends_soon_despite_a_hanging_broker(self, broker: FakeKafka) -> None:
        broker.handlers[PRODUCE] = lambda body, version: None
        producer = producer_of(broker.bootstrap_servers)
        sent = producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        waiting = producer.send(TOPIC, b"not on its way yet")
        wait_until(lambda: producer.requests >= 1)
        began_s = time.monotonic()
        producer.abort()
        assert time.monotonic() - began_s < 15
        assert not thread_of(producer).is_alive()
        for error in (sent.errors()[2], waiting.exception(0)):
            assert isinstance(error, UsageError)
            assert "closed" in str(error)

    def test_garbage_collected_producer_ends(self, broker: FakeKafka) -> None:
        producer = producer_of(broker.bootstrap_servers)
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32)).result()
        thread = thread_of(producer)
        del producer
        gc.collect()
        thread.join(WAIT_S)
        assert not thread.is_alive()

    def test_sender_failure_is_raised_in_all_calls(self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        producer = producer_of(broker.bootstrap_servers)
        fail_sender(monkeypatch, lambda sender: sender.busy)
        sent = producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        with pytest.raises(UsageError, match=r"its sender has failed, .*: ZeroDivisionError"):
            sent.result(10_000)
        wait_until(lambda: not thread_of(producer).is_alive())
        for call in (lambda: producer.send(TOPIC, b"more"), lambda: producer.send_columns(TOPIC, numbered(3, 1))):
            with pytest.raises(UsageError, match=r"its sender has failed, .*: ZeroDivisionError"):
                call()
        producer.abort()

    def test_rows_waiting_when_the_sender_fails_fail_the_next_flush(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000})
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        fail_sender(monkeypatch)
        sender_of(producer).wake()
        thread_of(producer).join(WAIT_S)
        with pytest.raises(UsageError, match=r"its sender has failed, .*: ZeroDivisionError"):
            producer.flush()
        producer.abort()

    def test_fork_raises_in_the_child_and_the_parent_continues(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers) as producer:
            producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32)).result()
            child = os.fork()
            if not child:
                _in_the_child(producer)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            producer.send_columns(TOPIC, numbered(3, 3), np.zeros(3, np.int32)).result()
        assert broker.log(TOPIC).end_offset == 6

    def test_close_in_a_child_ends_although_a_lock_was_held_at_the_fork(self, broker: FakeKafka) -> None:
        def refused() -> None:
            for call in (lambda: producer.acknowledged, producer.close):
                with pytest.raises(UsageError, match="before a fork"):
                    call()

        event, over = threading.Event(), threading.Event()

        def hold(pending: PendingRows) -> None:
            pending.wait_for_room(lambda: event.set() or over.wait(WAIT_S), 0.0, despite_failures=True)

        with producer_of(broker.bootstrap_servers) as producer:
            thread = threading.Thread(target=hold, args=(pending_of(producer),))
            thread.start()
            assert event.wait(WAIT_S)
            try:
                check_in_child(refused)
            finally:
                over.set()
                thread.join()

    def test_close_in_several_threads_raises_nothing_if_all_is_written(self, broker: FakeKafka) -> None:
        for _ in range(10):
            broker.delay_replies(PRODUCE, 0.05, 2)
            producer = producer_of(broker.bootstrap_servers, {"linger.ms": 0})
            futures = [producer.send(TOPIC, b"v", partition=number % 2) for number in range(8)]
            with ThreadPoolExecutor(3) as threads:
                closed = [threads.submit(producer.close) for _ in range(3)]
            assert [future.result(WAIT_S) for future in closed] == [None] * 3
            assert all(future.result(WAIT_S) for future in futures)


def _in_the_child(producer: Producer) -> None:
    code = 1
    try:
        for call in (
            lambda: producer.send_columns(TOPIC, numbered(0, 1)),
            lambda: producer.send(TOPIC, b"v"),
            producer.flush,
            producer.close,
        ):
            with pytest.raises(UsageError, match="before a fork"):
                call()
        producer.abort()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@pytest.mark.parametrize("version", ["idempotent", "1"])
def test_delivery_timeout_applies_while_the_coordinator_does_not_reply(version: str) -> None:
    brief = {"delivery.timeout.ms": 1_500, "request.timeout.ms": 500, "default.api.timeout.ms": 40_000, "linger.ms": 0}
    with FakeKafka(2, settings={} if version == "idempotent" else {"transaction.version": version}) as fake:
        fake.create_topic(TOPIC, 4)
        if version == "idempotent":
            producer = producer_of(fake.bootstrap_servers, brief)
            fake.edit_replies(INIT_PRODUCER_ID, lambda body: None)
        else:
            producer = TransactionalProducer(
                {"bootstrap.servers": fake.bootstrap_servers, "transactional.id": "x", **brief}
            )
            producer.init_transactions()
            producer.begin_transaction()
            fake.edit_replies(ADD_PARTITIONS_TO_TXN, lambda body: None)
        begin_s = time.monotonic()
        futures = [producer.send(TOPIC, b"unanswered", partition=number) for number in range(4)]
        assert {type(future.exception(WAIT_S)) for future in futures} <= {DeadlineExceeded, TransactionFailed}
        assert time.monotonic() - begin_s < WAIT_S, "default.api.timeout.ms is 40 s"
        producer.abort()


def test_batch_at_its_delivery_timeout_does_not_shorten_the_request_of_others(
    broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_s = PartitionProducer.deadline_s

    def soon_for_one(partition: PartitionProducer, batch: ProducerBatch) -> float:
        return deadline_s(partition, batch) if partition.partition else time.monotonic() + 0.06

    with producer_of(broker.bootstrap_servers, {"enable.idempotence": False, "retries": 0}) as producer:
        monkeypatch.setattr(PartitionProducer, "deadline_s", soon_for_one)
        broker.delay_replies(PRODUCE, 0.5)
        sent = producer.send_columns(TOPIC, numbered(0, 2), np.array([0, 1], np.int32))
        producer.flush()
        assert sent.result()["offset"].to_pylist() == [0, 0]
    assert len(broker.request_bodies(PRODUCE)) == 1


class TestStop:
    """An error while rows move, such as MemoryError, stops the producer: some rows may be in no place any more."""

    @pytest.fixture
    def producer(self, broker: FakeKafka) -> Iterator[Producer]:
        broker.create_topic("other", 1)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "batch.size": 2_000})
        yield producer
        producer.abort()

    @pytest.mark.parametrize("place", ["_take_rows", "_adjacent_slices", "groupby", "ReadyBatches", "SentRows"])
    @pytest.mark.parametrize("rows", [4, 60])
    def test_every_row_gets_a_result_and_flush_raises(
        self, broker: FakeKafka, producer: Producer, monkeypatch: pytest.MonkeyPatch, place: str, rows: int
    ) -> None:
        def no_memory(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise MemoryError("as if")

        earlier = [producer.send_columns(TOPIC, numbered(9, 3), np.full(3, number, np.int32)) for number in (0, 1)]
        futures = [producer.send(topic, b"value", partition=0) for topic in (TOPIC, "other")]
        monkeypatch.setattr(f"protocol.producer.accumulator.{place}", no_memory)
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

    def test_failed_sender_ends_flush_and_close_at_once(
        self, producer: Producer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_memory(*_: object) -> None:
            raise MemoryError("as if")

        monkeypatch.setattr(PendingRows, "complete", no_memory)
        begin_s = time.monotonic()
        future = producer.send(TOPIC, b"value", partition=0)
        for _ in range(2):
            with pytest.raises(UsageError, match="sender has failed, unacknowledged rows may be written or not"):
                producer.flush()
        producer.close()
        assert isinstance(future.exception(WAIT_S), UsageError)
        assert time.monotonic() - begin_s < 20

    def test_messages_that_linger_get_a_result(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_memory(*_: object) -> None:
            raise MemoryError("as if")

        clock = SkippingClock()
        producer = producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}, clock)
        monkeypatch.setattr("protocol.producer.accumulator._take_rows", no_memory)
        futures = [producer.send(TOPIC, b"value", partition=number) for number in (0, 1)]
        end_linger(producer, clock)
        assert [type(future.exception(WAIT_S)) for future in futures] == [UsageError] * 2
        with pytest.raises(UsageError, match="cannot continue"):
            producer.close()
        assert "MemoryError" in caplog.text

    def test_transaction_is_not_committed_without_its_rows(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_memory(*_: object) -> None:
            monkeypatch.undo()
            raise MemoryError("as if")

        properties = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 60_000, "transactional.id": "etl"}
        producer = TransactionalProducer(properties)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_columns(TOPIC, numbered(0, 3), np.zeros(3, np.int32))
        monkeypatch.setattr(Accumulator, "_output", no_memory)
        with pytest.raises(MemoryError):
            producer.commit_transaction()
        for _ in range(2):
            with pytest.raises(KafkaError, match="cannot continue"):
                producer.commit_transaction()
        with suppress(KafkaError):
            producer.close()
        with TransactionalProducer(properties) as later:
            later.init_transactions()
        assert not broker.records(TOPIC)


class TestFlush:
    def test_failure_raised_in_another_thread_does_not_end_a_flush(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ALWAYS, partition=(TOPIC, 0))
        broker.refuse(PRODUCE, ErrorCode.INVALID_RECORD, partition=(TOPIC, 1))
        with producer_of(broker.bootstrap_servers, {"linger.ms": 60_000}) as producer:
            pending, wait = pending_of(producer), pending_of(producer).wait
            raised: list[KafkaError] = []
            done: list[bool] = []

            def wait_while_another_flushes(deadline: Deadline, **options: bool) -> list[ProducerBatch]:
                late = wait(deadline, **options)
                raised.extend(pending.take_failures())
                return late

            def flush() -> None:
                producer.flush()
                done.append(sent.done)

            monkeypatch.setattr(pending, "wait", wait_while_another_flushes)
            sent = producer.send_columns(TOPIC, numbered(0, 2), np.arange(2, dtype=np.int32))
            flusher = threading.Thread(target=flush)
            flusher.start()
            wait_until(lambda: bool(raised))
            broker.faults.clear()
            flusher.join(WAIT_S)
            assert done == [True]


class TestCallbacks:
    def test_callback_may_send_but_not_wait(self, broker: FakeKafka) -> None:
        results: list[object] = []
        with producer_of(broker.bootstrap_servers) as producer:

            def on_written(future: Future[RecordMetadata]) -> None:
                try:
                    producer.flush()
                except KafkaError as error:
                    results.append(error)
                results.append(producer.send(TOPIC, b"second", partition=1))

            with nothing_written(broker):
                producer.send(TOPIC, b"first", partition=0).add_done_callback(on_written)
            wait_until(lambda: len(results) == 2)
            error, second = results
            assert isinstance(error, UsageError)
            assert "a callback of a future may only send" in str(error)
            assert isinstance(second, Future)
            assert second.result(WAIT_S) == RecordMetadata(TOPIC, 1, 0, second.result().timestamp_ms)

    def test_close_ends_the_lookup_of_a_callback(self, broker: FakeKafka) -> None:
        begun = threading.Event()
        refusals: list[KafkaError] = []

        def send_to_another_topic(_: object) -> None:
            broker.lose_requests(METADATA, ALWAYS)
            begun.set()
            try:
                producer.send("another", b"a")
            except KafkaError as error:
                refusals.append(error)

        producer = producer_of(
            broker.bootstrap_servers, {"request.timeout.ms": 600_000, "delivery.timeout.ms": 600_000}
        )
        producer.send(TOPIC, b"a").add_done_callback(send_to_another_topic)
        assert begun.wait(WAIT_S)
        producer.abort()
        assert not thread_of(producer).is_alive()
        assert refusals

    def test_failing_callback_does_no_harm(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers) as producer:
            first = producer.send(TOPIC, b"first", partition=0)
            first.add_done_callback(lambda future: 1 // 0)
            first.result(WAIT_S)
            assert producer.send(TOPIC, b"second", partition=0).result(WAIT_S).offset == 1


def test_partition_refused_forever_does_not_delay_others(broker: FakeKafka) -> None:
    broker.refuse(PRODUCE, ErrorCode.NOT_ENOUGH_REPLICAS, ALWAYS, partition=(TOPIC, 0))
    with producer_of(broker.bootstrap_servers) as producer:
        stuck = producer.send(TOPIC, b"stuck", partition=0)
        for number in range(5):
            assert producer.send(TOPIC, b"goes on", partition=1).result(WAIT_S).offset == number
        assert not stuck.done()
        producer.abort()


def test_half_a_reply_of_one_broker_stalls_no_write_to_another() -> None:
    with FakeKafka(2) as kafka:
        kafka.create_topic(TOPIC, 2)
        for number in (0, 1):
            kafka.move_leader(TOPIC, number, number + 1)
        clock = SkippingClock()
        with producer_of(kafka.bootstrap_servers, clock=clock) as producer:
            for number in (0, 1):
                producer.send(TOPIC, b"first", partition=number).result(WAIT_S)
            kafka.edit_replies(PRODUCE, lambda body: b"\0\0", 1, broker=2)
            stalled = producer.send(TOPIC, b"stalled", partition=1)
            wait_until(lambda: len(kafka.log(TOPIC, 1).batches) == 2)
            for _ in range(5):
                producer.send(TOPIC, b"healthy", partition=0).result(WAIT_S)
            assert not stalled.done()
            clock.skip(60)  # above request.timeout.ms
            sender_of(producer).wake()
            stalled.result(WAIT_S)
