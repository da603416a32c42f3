"""Signal handlers that call the producer that they interrupt."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from protocol.errors import UsageError
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from tests.protocol.producer.producing import TOPIC, values_of
from tests.support import read_committed
from tests.support.interrupts import interrupted_at

pytestmark = pytest.mark.soak

_CODE = ("protocol.producer", "protocol.transaction", "protocol.base.interrupts", "contextlib")

_S = TransactionState


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC)
        yield kafka


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


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_call_of_a_signal_handler_within_commit_is_refused_or_comes_before_or_after(call: str) -> None:
    refused: list[UsageError] = []
    succeeded: list[int] = []

    def handle(*_: object) -> None:
        try:
            getattr(producer, call)()
        except UsageError as error:
            refused.append(error)
        else:
            succeeded.append(place)

    with FakeKafka() as broker:
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
            place += 13
        producer.close()
        assert "this thread is already in a call of the transaction" in str(refused)
        assert read_committed.by_this_project(broker.bootstrap_servers, TOPIC)[0] == committed
    assert place > 100, "the commit was interrupted"
