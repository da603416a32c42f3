"""The thread of a producer: its work while callers are away, and results that they wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.errors import DeadlineExceeded, KafkaError, TransactionFailed, UsageError
from protocol.producer import sender
from protocol.producer.partition_producer import PartitionProducer
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
from tests.protocol.producer.producing import (
    TOPIC,
    WAIT_S,
    SkippingClock,
    columns_of,
    numbered,
    producer_of,
    send_rows,
    skip_a_minute,
    trouble,
    values_of,
)
from tests.support.internals import assembler_of, pending_of, sender_of
from tests.support.wait_until import wait_until


def send_slowly(producer: Producer, clock: SkippingClock, count: int) -> list[Future[RecordMetadata]]:
    """Send numbers to partition 0. `linger.ms` (100) ends after each."""
    waiting, futures = assembler_of(producer).messages, []
    for number in range(count):
        futures.append(producer.send(TOPIC, b"%d" % number, partition=0))
        clock.skip(0.2)
        sender_of(producer).wake()
        wait_until(lambda: waiting.oldest_s is None)
    return futures


def before_each_wait(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Call `action` whenever the sender's thread is about to wait."""
    wait = Sender.wait
    monkeypatch.setattr(Sender, "wait", lambda self, *moments: (action(), wait(self, *moments)))


class TestWhileCallersAreAway:
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

    def test_refused_batch_is_retried_also_when_the_retry_is_due_just_before_the_wait(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a busy machine the thread may pause just before it waits."""
        clock = SkippingClock()
        before_each_wait(monkeypatch, lambda: clock.skip(1.0))
        broker.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, 5)
        with producer_of(broker.bootstrap_servers, clock=clock) as producer:
            send_rows(producer, 0, 3)
            wait_until(lambda: broker.log(TOPIC).end_offset == 3)
        assert len(broker.request_bodies(PRODUCE)) == 6

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

    def test_sender_sleeps_without_work(self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sender, "_MAX_WAIT_S", 0.1)
        waits_at_s: list[float] = []
        before_each_wait(monkeypatch, lambda: waits_at_s.append(time.monotonic()))
        with producer_of(broker.bootstrap_servers) as producer:
            send_rows(producer, 0, 3)
            producer.flush()
            broker.handlers[PRODUCE] = lambda body, version: None
            send_rows(producer, 3, 3)
            wait_until(lambda: producer.requests == 2)
            before = len(waits_at_s)
            wait_until(lambda: len(waits_at_s) > before + 6)
            assert waits_at_s[-1] - waits_at_s[before] > 0.4, "one request is in flight, and no thread calls"
            producer.abort()

    def test_threads_send_in_their_own_order(self, broker: FakeKafka) -> None:
        with producer_of(broker.bootstrap_servers, {"batch.size": 500}) as producer:

            def send(number: int) -> None:
                for first in range(number * 1_000, number * 1_000 + 300, 10):
                    send_rows(producer, first, 10)

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(send, range(4)))
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
            skip_a_minute(producer, clock)
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
            unanswered = send_rows(producer, 0, 39)
            wait_until(lambda: producer.requests == 1)
            send_rows(producer, 0, 30, partition=1)
            keyed = columns_of(b"of other columns").append_column("key", columns_of(b"k")["value"])
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
                send_rows(producer, 0, 39)
            assert producer.held_bytes > 2_000
            producer.send(TOPIC, bytes(18_000), partition=1)
            assert broker.records(TOPIC)

    def test_memory_is_free_when_replies_arrive_before_the_call_that_passed_the_batches_returns(
        self, broker: FakeKafka, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        small = {"batch.size": 4_000, "buffer.memory": 5_000, "linger.ms": 60_000, "max.block.ms": 20_000}
        with producer_of(broker.bootstrap_servers, {**small, "delivery.timeout.ms": 120_000}) as producer:
            written: list[Future[RecordMetadata]] = []
            put = sender_of(producer).put

            def put_and_stand_still(*batches: Any) -> None:
                put(*batches)
                monkeypatch.undo()  # the sender's thread hands over the message
                wait_until(lambda: pending_of(producer).empty)
                with ThreadPoolExecutor(1) as threads:
                    written.append(threads.submit(producer.send, TOPIC, bytes(3_000)).result(WAIT_S))

            producer.send(TOPIC, b"known", partition=0)
            producer.flush()
            send_rows(producer, 0, 22)
            monkeypatch.setattr(sender_of(producer), "put", put_and_stand_still)
            producer.flush()
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
            send_rows(producer, 0, 1, partition=7)


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


def test_outdated_topics_of_a_round_are_resolved_with_one_request() -> None:
    """As after the death of a broker, which makes the metadata of all its topics outdated."""
    topics = [f"topic-{number}" for number in range(20)]
    with FakeKafka() as kafka:
        for topic in topics:
            kafka.create_topic(topic)
        with producer_of(kafka.bootstrap_servers, {"linger.ms": 3_600_000}) as producer:
            for topic in topics:
                producer.send(topic, b"value")
            producer.client.expire_metadata(topics)
            requests = len(kafka.request_bodies(METADATA))
            producer.flush()
            [body] = kafka.request_bodies(METADATA)[requests:]
            assert sorted(row["name"] for row in body["topics"]) == sorted(topics)


def test_failed_lookup_of_one_topic_delays_no_other(broker: FakeKafka) -> None:
    broker.create_topic("other")
    properties = {"linger.ms": 3_600_000, "request.timeout.ms": 300, "retry.backoff.ms": 60_000}
    with producer_of(broker.bootstrap_servers, properties) as producer:
        futures = [producer.send(topic, b"value") for topic in (TOPIC, "other")]
        producer.client.expire_metadata([TOPIC])
        broker.delay_replies(METADATA, 3_600, ALWAYS)
        with ThreadPoolExecutor() as pool:
            flush = pool.submit(producer.flush)
            assert futures[1].result(WAIT_S).offset == 0
            assert not futures[0].done()
            producer.abort()
            assert flush.exception(WAIT_S) is not None
