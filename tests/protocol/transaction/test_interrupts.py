"""Ctrl-C in a commit: a repeated commit tells the truth, and the transaction can always be ended."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.cluster.client import COORDINATOR, Client
from protocol.errors import KafkaError, OutcomeLost
from protocol.net.connection import Reply
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.schema import Body
from tests.protocol.transaction.producing import begin_with, started, visible
from tests.support.interrupts import interrupted_at
from tests.support.wait_until import wait_until

_CODE = (
    "protocol.producer",
    "protocol.transaction",
    "protocol.base.interrupts",
    "protocol.base.condition",
    "contextlib",
)
# Interrupt at every `_STEP`-th place.
_STEP = 19


def test_commit_repeated_after_an_interrupt_and_a_newer_producer_tells_the_truth(client: Client) -> None:
    place, reached, repeated, committed = 1, True, 0, 0
    while reached:
        producer = started(client, f"etl-{place}")
        begin_with(producer, 0, 3)
        before = len(visible(client))
        try:
            with interrupted_at(place, _CODE) as was_reached:
                producer.commit_transaction()
        except KeyboardInterrupt:
            if producer.transaction_state is TransactionState.COMMITTING_TRANSACTION:
                started(client, f"etl-{place}").close()
                repeated += 1
                is_visible = len(visible(client)) > before
                committed += is_visible
                with pytest.raises(KafkaError) as refused:
                    producer.commit_transaction()
                assert isinstance(refused.value, OutcomeLost) or not is_visible, place
        reached = was_reached()
        producer.close()
        place += _STEP
    assert 0 < committed <= repeated


def test_late_request_of_an_interrupted_commit_does_not_end_the_next_transaction(
    fake: FakeKafka, client: Client, producer: TransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending: list[tuple[Body, int]] = []

    def hold(body: Body, version: int) -> None:
        pending.append((body, version))

    result = Reply.result

    def interrupt(reply: Reply, deadline: Deadline) -> dict[str, Any]:
        if reply.api is END_TXN:
            raise KeyboardInterrupt
        return result(reply, deadline)

    begin_with(producer, 0, 3)
    fake.handlers[END_TXN] = hold
    with monkeypatch.context() as patch:
        patch.setattr(Reply, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.commit_transaction()
    wait_until(lambda: pending)
    client.hang_up(COORDINATOR)
    fake.handlers.clear()
    producer.commit_transaction()
    begin_with(producer, 3, 3)
    ((body, version),) = pending
    for broker in fake.brokers:  # one of them is the coordinator
        fake.ask(broker, END_TXN, body, version)
    producer.abort_transaction()
    assert visible(client) == [0, 1, 2]
