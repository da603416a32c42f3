"""Sends of other threads while a transaction begins or ends, on a model of a cluster."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.admin.transactions import describe_transactions
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client, parse_producer
from protocol.errors import DeadlineExceeded, KafkaError, TransactionFailed, UsageError
from protocol.producer import transaction_session
from protocol.producer.interceptors import ProducerInterceptor
from protocol.producer.messages import ProducerMessage
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.end_transaction import end_transaction
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import commit_numbers, started, visible
from tests.support.internals import pending_of
from tests.support.wait_until import wait_until


def add_error(errors: list[KafkaError], call: Callable[..., object], *arguments: object) -> None:
    try:
        call(*arguments)
    except KafkaError as error:
        errors.append(error)


class TestConcurrentSends:
    """Sends during begin or end are refused, and do not change the reported result."""

    @pytest.mark.parametrize(
        "end", [TransactionalProducer.commit_transaction, TransactionalProducer.prepare_transaction]
    )
    def test_send_after_the_end_starts_is_refused(
        self, client: Client, end: Callable[[TransactionalProducer], object]
    ) -> None:
        producer = started(client, "etl-0", linger_ms=60_000)
        refused = list[KafkaError]()
        producer.begin_transaction()
        first = producer.send("orders", b"%09d" % 0)
        first.add_done_callback(lambda _: add_error(refused, producer.send, "orders", b"%09d" % 1))
        end(producer)
        assert "before its transaction ends; it accepts no records" in str(refused)

    @pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
    def test_send_admitted_before_the_end_belongs_to_the_transaction(
        self, client: Client, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch, commit: bool
    ) -> None:
        admitted, go_on, send, aborted = threading.Event(), threading.Event(), Producer._send, threading.Event()

        def pause(*arguments: Any) -> object:
            admitted.set()
            assert go_on.wait(20)
            return send(*arguments)

        def end_and_begin() -> None:
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
                aborted.set()
            producer.begin_transaction()

        monkeypatch.setattr(Producer, "_send", pause)
        producer.begin_transaction()
        with ThreadPoolExecutor(2) as threads:
            threads.submit(producer.send, "orders", b"%09d" % 0)
            assert admitted.wait(20)
            begun = threads.submit(end_and_begin)
            with pytest.raises(TimeoutError):
                begun.result(0.2)
            assert commit or aborted.wait(20), "an abort does not wait for senders"
            go_on.set()
            begun.result(20)
        monkeypatch.undo()
        producer.send("orders", b"%09d" % 1)
        producer.commit_transaction()
        assert visible(client) == ([0, 1] if commit else [1])

    @pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "prepare_transaction"])
    def test_callback_cannot_end_the_transaction(self, client: Client, call: str) -> None:
        errors, producer = list[KafkaError](), started(client, "etl-0", linger_ms=60_000)
        producer.begin_transaction()
        future = producer.send("orders", b"%09d" % 0)
        future.add_done_callback(lambda _: add_error(errors, getattr(producer, call)))
        producer.flush()
        wait_until(lambda: bool(errors))
        assert "a callback of a future may only send" in str(errors[0])
        producer.commit_transaction()
        assert visible(client) == [0]

    @pytest.mark.parametrize("call", ["commit_transaction", "prepare_transaction"])
    def test_call_within_send_cannot_end_the_transaction(self, client: Client, call: str) -> None:
        """A signal handler may interrupt `send` anywhere; an interceptor always runs inside it."""
        errors = list[KafkaError]()

        class Ending(ProducerInterceptor):
            def on_send(self, message: ProducerMessage) -> ProducerMessage:
                add_error(errors, getattr(producer, call))
                return message

        producer = TransactionalProducer(client, {"transactional.id": "etl-0"}, interceptors=[Ending()])
        with producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"%09d" % 0)
            producer.commit_transaction()
        assert "this thread is already in a call" in str(errors)
        assert visible(client) == [0]

    @pytest.mark.parametrize(
        "call",
        [
            lambda producer: producer.send("orders", bytes(8_000), partition=0),
            lambda producer: producer.send_columns("orders", numbered(0, 400), np.zeros(400, np.int32)),
        ],
        ids=["a message", "columns"],
    )
    def test_abort_does_not_wait_for_senders_blocked_by_memory(
        self, fake: FakeKafka, call: Callable[[TransactionalProducer], object]
    ) -> None:
        """The record in memory is not sent before the next retry, long after. The waiting record is not written."""
        slow = {"bootstrap.servers": fake.bootstrap_servers, "retry.backoff.ms": 30_000, "retry.backoff.max.ms": 30_000}
        with Client(parse_client(slow)) as client, ThreadPoolExecutor(1) as threads:
            producer = started(client, "etl-0", buffer_memory=10_000)
            producer.begin_transaction()
            fake.refuse(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ALWAYS)
            producer.send("orders", bytes(8_000), partition=0)
            wait_until(lambda: len(fake.request_bodies(PRODUCE)) == 1)
            waiting = threads.submit(call, producer)
            wait_until(lambda: pending_of(producer).waiting_for_room)
            began_s = time.monotonic()
            producer.abort_transaction()
            assert time.monotonic() - began_s < 15
            waiting.exception(20)
            fake.faults.clear()
            producer.begin_transaction()
            producer.send("orders", b"%09d" % 1)
            producer.commit_transaction()
            assert visible(client) == [1]
            producer.abort()

    def test_failed_flush_does_not_end_the_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        fake.lose_replies(PRODUCE, 1_000)
        send_numbered(producer, "orders", 0, 10, 3)
        with pytest.raises(DeadlineExceeded):
            producer.commit_transaction(50)
        assert producer.transaction_state is TransactionState.IN_TRANSACTION
        fake.faults.clear()
        send_numbered(producer, "orders", 10, 10, 3)
        producer.commit_transaction()
        assert visible(client) == list(range(20))

    def test_late_failure_after_end_does_not_fail_the_commit(
        self, client: Client, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end_late(*arguments: Any, **options: Any) -> object:
            producer._session.failed(TransactionFailed("the broker refuses what came after EndTxn"))
            return end_transaction(*arguments, **options)

        monkeypatch.setattr(transaction_session, "end_transaction", end_late)
        for first in (0, 10):
            commit_numbers(producer, first, 10)
        assert visible(client) == list(range(20))


def _without_leaders(body: Any) -> Any:
    """Return a Metadata reply in which no partition has a leader."""
    leaderless = {"leader_id": -1, "error_code": ErrorCode.LEADER_NOT_AVAILABLE}
    topics = [
        {**topic, "partitions": [{**row, **leaderless} for row in topic["partitions"]]} for topic in body["topics"]
    ]
    return {**body, "topics": topics}


class TestWaitsForOtherThreads:
    """A call keeps its time though another thread is in a send; a send goes on when memory is free."""

    @pytest.mark.parametrize("how", ["abort_transaction", "abort", "compressed"])
    def test_send_goes_on_when_the_memory_of_unsent_messages_is_free(
        self, fake: FakeKafka, client: Client, how: str
    ) -> None:
        config = {"buffer_memory": 100_000, "max_block_ms": 60_000, "batch_size": 1_000_000, "linger_ms": 60_000}
        compression = "gzip" if how == "compressed" else "none"
        producer = started(client, "etl-0", **config, compression_type=compression)
        producer.begin_transaction()
        if how == "compressed":
            fake.delay_replies(PRODUCE, 20)
        else:  # without a leader the message is not sent
            fake.edit_replies(METADATA, _without_leaders, ALWAYS)
            client.metadata(["orders"])
        producer.send("orders", b"x" * 40_000)
        with ThreadPoolExecutor(1) as executor:
            waiting = executor.submit(producer.send, "orders", b"y" * 70_000)
            since_s = time.monotonic()
            if how != "compressed":  # there it may have waited already
                wait_until(lambda: pending_of(producer).waiting_for_room)
                getattr(producer, how)()
            waiting.exception(20)
            assert time.monotonic() - since_s < 10
        if how == "abort_transaction":
            producer.begin_transaction(5_000)
        producer.abort()

    @pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction", "close"])
    def test_end_keeps_its_timeout_while_another_thread_chooses_partitions(self, client: Client, end: str) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def choose(topic: str, columns: pa.RecordBatch, *arguments: object) -> np.ndarray[Any, np.dtype[np.int32]]:
            inside.set()
            assert go_on.wait(20)
            return np.zeros(columns.num_rows, np.int32)

        producer = TransactionalProducer(client, parse_producer({"transactional.id": "etl-0"}), partitioner=choose)
        producer.init_transactions()
        producer.begin_transaction()
        with ThreadPoolExecutor(1) as executor:
            sent = executor.submit(producer.send_columns, "orders", numbered(0, 3))
            assert inside.wait(20)
            since_s = time.monotonic()
            try:
                getattr(producer, end)(timeout_ms=500)
            except DeadlineExceeded as error:
                assert "another thread" in str(error)  # noqa: PT017
            took_s = time.monotonic() - since_s
            assert end != "commit_transaction" or producer.transaction_state is TransactionState.IN_TRANSACTION
            go_on.set()
            sent.exception(20)
        producer.abort()
        assert took_s < 15, "the other thread needs 20 s"

    @pytest.mark.parametrize("stop", ["close", "abort"])
    def test_stop_ends_an_abort_that_waits_in_another_thread(self, fake: FakeKafka, client: Client, stop: str) -> None:
        producer = started(client, "etl-0")
        producer.begin_transaction()
        fake.delay_replies(PRODUCE, 20, ALWAYS)
        producer.send("orders", b"x")
        wait_until(lambda: fake.request_bodies(PRODUCE))
        with ThreadPoolExecutor(1) as executor:
            aborting = executor.submit(producer.abort_transaction, 60_000)
            wait_until(lambda: producer.transaction_state is TransactionState.ABORTING_TRANSACTION)
            since_s = time.monotonic()
            with suppress(KafkaError):
                producer.close(500) if stop == "close" else producer.abort()
            assert isinstance(aborting.exception(20), KafkaError)
            assert time.monotonic() - since_s < 10


class TestClose:
    def test_close_in_another_thread_aborts_what_waits_for_acknowledgements(
        self, fake: FakeKafka, client: Client, clock: ManualClock
    ) -> None:
        fake.delay_replies(PRODUCE, 1.0, 1)
        producer = started(client, "etl-0")
        producer.begin_transaction()
        producer.send("orders", b"%09d" % 0, partition=0)
        with ThreadPoolExecutor(2) as threads:
            committed = threads.submit(producer.commit_transaction)
            wait_until(lambda: bool(fake.request_bodies(PRODUCE)))
            wait_until(lambda: producer.transaction_state is TransactionState.FLUSHING)
            closed = threads.submit(producer.close)
            wait_until(lambda: producer.transaction_state is TransactionState.ABORTING_TRANSACTION)
            clock.advance(1.0)
            closed.result(20)
            assert isinstance(committed.exception(20), KafkaError)
        described = describe_transactions(client, ["etl-0"], client.deadline())
        assert described["etl-0"].state == "CompleteAbort"
        assert visible(client) == []

    def test_closed_producer_does_not_fence_its_successor(self, client: Client) -> None:
        closed = TransactionalProducer(client, {"transactional.id": "etl-0"})
        closed.close()
        successor = started(client, "etl-0")
        with pytest.raises(UsageError, match="closed"):
            closed.init_transactions()
        successor.begin_transaction()
        successor.send("orders", b"%09d" % 0)
        successor.commit_transaction()
        assert visible(client) == [0]
