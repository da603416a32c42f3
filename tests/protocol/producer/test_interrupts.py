"""Ctrl-C anywhere in a producer's code in the caller's thread: every row has one result, and the producer goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, TimeoutError
from contextlib import suppress

import pyarrow as pa
import pytest

from protocol.errors import KafkaError, OutcomeLost, TransactionFailed, UsageError
from protocol.kafka_terms import NO_PARTITION
from protocol.producer.interceptors import BatchMetadata, ProducerInterceptor
from protocol.producer.producer import Producer
from protocol.producer.results import MessageFuture, RecordMetadata
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from tests.support import read_committed
from tests.support.interrupts import interrupted_at
from tests.support.soak import SOAK
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak

TOPIC = "t"
WAIT_S = 20.0
_CODE = ("protocol.producer", "protocol.transaction", "protocol.interrupts", "contextlib")
# Interrupt at every `_STEP`-th place.
_STEP = 2 if SOAK else 11

_S = TransactionState

# The handler raises KeyboardInterrupt for both.
SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC)
        yield kafka


def values_of(broker: FakeKafka) -> list[bytes]:
    return [each.value or b"" for each in broker.records(TOPIC, isolation_level="read_uncommitted")]


def columns_of(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def succeeded(futures: list[tuple[bytes, Future[RecordMetadata]]]) -> list[bytes]:
    """Wait for all futures; return the values of the successful ones."""
    return [value for value, future in futures if future.exception(WAIT_S) is None]


@SIGNALS
def test_interrupted_producer_completes_every_row_once_and_frees_its_memory(
    broker: FakeKafka, number: signal.Signals
) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "0", "batch.size": "200"}
    acknowledged: list[bytes] = []
    with Producer(settings) as producer:
        place, reached = 1, True
        while reached:
            futures: list[tuple[bytes, Future[RecordMetadata]]] = []
            with suppress(KeyboardInterrupt, KafkaError), interrupted_at(place, _CODE, number) as was_reached:
                for nth in range(2):
                    value = b"%d.%d" % (place, nth)
                    futures.append((value, producer.send(TOPIC, value)))
                    producer.send_columns(TOPIC, columns_of(*(b"%s.%d" % (value, row) for row in range(3))))
                producer.flush()
            reached = was_reached()
            acknowledged += succeeded(futures)
            with suppress(KafkaError):  # of interrupted columns
                producer.flush()
            place += _STEP
        producer.send_columns(TOPIC, columns_of(b"last")).result(WAIT_S * 1000)
        wait_until(lambda: producer.held_bytes == 0, lambda: str(producer.held_bytes))
    written = values_of(broker)
    assert len(written) == len(set(written))
    assert set(acknowledged) <= set(written)
    assert place > 300, "the producer was interrupted"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("call", ["flush", "send"])
def test_call_of_a_signal_handler_within_send_succeeds_or_is_refused(broker: FakeKafka, call: str) -> None:
    refused: list[UsageError] = []

    def handle(*_: object) -> None:
        try:
            getattr(producer, call)(*((TOPIC, "of the handler") if call == "send" else ()))
        except UsageError as error:
            refused.append(error)

    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        place, reached = 1, True
        while reached:
            with interrupted_at(place, ("protocol.producer.messages",), signal.SIGUSR1, handle) as was_reached:
                sent = producer.send(TOPIC, b"%d" % place)
            producer.flush()
            assert sent.done()
            reached = was_reached()
            place += 1
    assert "this thread is already sending" in str(refused)
    assert [value for value in values_of(broker) if value != b"of the handler"] == [b"%d" % n for n in range(1, place)]


@SIGNALS
def test_interrupted_columns_get_the_result_of_a_refused_row_before_close(
    broker: FakeKafka, number: signal.Signals
) -> None:
    class Counting(ProducerInterceptor):
        failed = 0

        def on_acknowledgement_columns(self, metadata: BatchMetadata, error: KafkaError | None) -> None:
            if error is not None and metadata.partition == NO_PARTITION:
                self.failed += 1

    counting, place, reached = Counting(), 1, True
    settings = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "0", "max.request.size": "1000"}
    with Producer(settings, interceptors=[counting]) as producer:
        while reached:
            with suppress(KeyboardInterrupt, KafkaError), interrupted_at(place, _CODE, number) as was_reached:
                producer.send_columns(TOPIC, columns_of(b"small", b"x" * 2_000))
            reached = was_reached()
            with suppress(KafkaError):  # of the refused row
                producer.flush()
            place += _STEP
        producer.send_and_wait(TOPIC, b"after all others")
        before = counting.failed
    assert counting.failed == before
    assert place > 100, "the producer was interrupted"


def test_interrupted_abort_lets_later_transactions_send(broker: FakeKafka) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "batch.size": "200", "transactional.id": "x"}
    place, reached, committed = 1, True, 0
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        while reached:
            producer.begin_transaction()
            producer.send_columns(TOPIC, columns_of(b"aborted"))
            with suppress(KeyboardInterrupt), interrupted_at(place, _CODE) as was_reached:
                producer.abort_transaction()
            reached = was_reached()
            if producer.transaction_state is not _S.READY:
                producer.abort_transaction()
            producer.begin_transaction()
            producer.send_columns(TOPIC, columns_of(*[b"x" * 100] * 5))
            producer.commit_transaction()
            committed += 5
            place += _STEP
    assert read_committed.by_this_project(broker.bootstrap_servers, TOPIC)[0] == [b"x" * 100] * committed
    assert place > 100, "the producer was interrupted"


@SIGNALS
def test_transaction_committed_after_interrupts_has_all_of_its_rows(broker: FakeKafka, number: signal.Signals) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": "0", "transactional.id": "x"}
    wanted: list[bytes] = []
    with TransactionalProducer(settings) as producer:
        producer.init_transactions()
        place, reached = 1, True
        while reached:
            producer.begin_transaction()
            sent: list[bytes] = []
            with suppress(KeyboardInterrupt, KafkaError), interrupted_at(place, _CODE, number) as was_reached:
                for nth in range(2):
                    value = b"%d.%d" % (place, nth)
                    producer.send(TOPIC, value)
                    sent.append(value)
                    rows = [b"%s.%d" % (value, row) for row in range(3)]
                    producer.send_columns(TOPIC, columns_of(*rows))
                    sent += rows
                producer.commit_transaction()
            reached = was_reached()
            if producer.transaction_state in (_S.IN_TRANSACTION, _S.COMMITTING_TRANSACTION):
                with suppress(KafkaError):
                    producer.commit_transaction()
            if producer.transaction_state is _S.READY:
                wanted += sent
            else:
                producer.abort_transaction()
            place += _STEP
    assert set(wanted) <= set(read_committed.by_this_project(broker.bootstrap_servers, TOPIC)[0])
    assert place > 300, "the producer was interrupted"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction", "begin_transaction"])
def test_call_of_a_signal_handler_within_commit_is_refused_or_comes_before_or_after(call: str, version: str) -> None:
    refused: list[UsageError] = []
    succeeded: list[int] = []

    def handle(*_: object) -> None:
        try:
            getattr(producer, call)()
        except UsageError as error:
            refused.append(error)
        else:
            succeeded.append(place)

    with FakeKafka(settings={"transaction.version": version}) as broker:
        broker.create_topic(TOPIC)
        given = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "linger.ms": 0}
        producer = TransactionalProducer(given)
        producer.init_transactions()
        place, reached, committed = 1, True, list[bytes]()
        while reached:
            if producer.transaction_state is _S.READY:
                producer.begin_transaction()
            producer.send(TOPIC, b"%d" % place)
            with interrupted_at(place, _CODE, signal.SIGUSR1, handle) as was_reached:
                try:
                    producer.commit_transaction()
                except UsageError as error:
                    assert succeeded[-1:] == [place], error  # noqa: PT017 - or else it ends the test
            if call != "abort_transaction" or place not in succeeded:
                committed.append(b"%d" % place)
            reached = was_reached()
            place += 7
        producer.close()
        assert "this thread is already in a call of the transaction" in str(refused)
        assert read_committed.by_this_project(broker.bootstrap_servers, TOPIC)[0] == committed
    assert place > 100, "the commit was interrupted"


def test_commit_during_which_a_signal_handler_closes_the_producer_is_not_to_be_repeated(broker: FakeKafka) -> None:
    outcomes: set[type[KafkaError] | None] = set()
    place, reached = 1, True
    while reached:
        given = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"x{place}", "linger.ms": 0}
        producer = TransactionalProducer(given)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"value")
        with interrupted_at(place, _CODE, signal.SIGUSR1, lambda *_: producer.close(1_000)) as was_reached:  # noqa: B023
            try:
                producer.commit_transaction()
            except KafkaError as error:
                outcomes.add(type(error))
        with pytest.raises(UsageError, match=r"closed|has no transaction"):
            producer.commit_transaction()
        reached = was_reached()
        place += 29
        producer.close()
    assert outcomes <= {UsageError, TransactionFailed, OutcomeLost}, outcomes


def test_interrupted_result_of_message_raises_ctrl_c_and_leaves_lock_free() -> None:
    future, place, reached = MessageFuture(), 1, True
    while reached:
        code = ("threading", "concurrent.futures", "protocol.condition")
        with suppress(KeyboardInterrupt, TimeoutError), interrupted_at(place, code) as was_reached:
            future.result(0.001)
        reached = was_reached()
        other = threading.Thread(target=future.done, daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive(), place
        place += 1
    assert place > 5
