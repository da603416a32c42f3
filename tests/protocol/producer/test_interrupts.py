"""Signal handlers that call the producer that they interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from contextlib import suppress

import pytest

from protocol.errors import KafkaError, OutcomeLost, TransactionFailed, UsageError
from protocol.producer.producer import Producer
from protocol.producer.results import MessageFuture
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from tests.support import read_committed
from tests.support.interrupts import interrupted_at

pytestmark = pytest.mark.soak

TOPIC = "t"
_CODE = ("protocol.producer", "protocol.transaction", "protocol.base.interrupts", "contextlib")

_S = TransactionState


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC)
        yield kafka


def values_of(broker: FakeKafka) -> list[bytes]:
    return [record.value or b"" for record in broker.records(TOPIC, isolation_level="read_uncommitted")]


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
        properties = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "x", "linger.ms": 0}
        producer = TransactionalProducer(properties)
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
        properties = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"x{place}", "linger.ms": 0}
        producer = TransactionalProducer(properties)
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
        code = ("threading", "concurrent.futures", "protocol.base.condition")
        with suppress(KeyboardInterrupt, TimeoutError), interrupted_at(place, code) as was_reached:
            future.result(0.001)
        reached = was_reached()
        thread = threading.Thread(target=future.done, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), place
        place += 1
    assert place > 5
