"""Administration of transactions on the model: routing to coordinators, and retries. `tests/contract` covers the
rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from protocol import Client
from protocol.admin.transactions import (
    OpenTransaction,
    abort_hanging,
    abort_transaction,
    describe_transactions,
    list_transactions,
)
from protocol.broker_errors import ErrorCode
from protocol.config import parse_client
from protocol.errors import BrokerError
from protocol.testing import FakeKafka
from protocol.testing.fake_kafka.handlers import VERSIONS
from protocol.transaction.coordinator import add_partitions, init_producer_id
from protocol.transaction.end_transaction import TransactionOutcome, end_transaction
from protocol.wire.messages.m10_find_coordinator import TRANSACTION
from protocol.wire.messages.m27_write_txn_markers import WRITE_TXN_MARKERS
from tests.support.misdirected import misdirect_coordinators

NAMES = [f"etl-{number}" for number in range(9)]


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(3) as fake:
        fake.create_topic("orders")
        yield fake


@pytest.fixture
def client(fake: FakeKafka) -> Iterator[Client]:
    with Client(parse_client({"bootstrap.servers": fake.bootstrap_servers, "retry.backoff.ms": 10})) as client:
        for name in NAMES:
            init_producer_id(client, name, 5_000, client.deadline())
        yield client


def test_coordinators_are_asked_once_each(fake: FakeKafka, client: Client) -> None:
    transactions = describe_transactions(client, [*NAMES, "nobody-knows"])
    assert set(transactions) == set(NAMES)
    assert {transaction.timeout_ms for transaction in transactions.values()} == {5_000}
    assert {transaction.coordinator for transaction in transactions.values()} == {1, 2, 3}
    requested = [body["transactional_ids"] for body in fake.request_bodies("DescribeTransactions")]
    assert len(requested) == 3
    assert sorted(name for names in requested for name in names) == sorted([*NAMES, "nobody-knows"])
    assert describe_transactions(client, []) == {}


def test_transaction_that_all_brokers_list_during_a_move_comes_once(fake: FakeKafka, client: Client) -> None:
    row = {"transactional_id": "etl", "producer_id": 7, "transaction_state": "Ongoing"}
    fake.edit_replies("ListTransactions", lambda body: {**body, "transaction_states": [row]})
    assert [(listing.transactional_id, listing.producer_id) for listing in list_transactions(client)] == [("etl", 7)]


def test_transactions_of_moved_or_loading_coordinators_are_asked_again(fake: FakeKafka, client: Client) -> None:
    describe_transactions(client, NAMES)
    for name in NAMES[:4]:
        fake.move_coordinator(name, fake.coordinator(TRANSACTION, name) % 3 + 1, TRANSACTION)
    fake.refuse("DescribeTransactions", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 3)
    fake.lose_replies("DescribeTransactions")
    transactions = describe_transactions(client, NAMES)
    assert {name: transaction.coordinator for name, transaction in transactions.items()} == {
        name: fake.coordinator(TRANSACTION, name) for name in NAMES
    }


def test_transactions_are_described_after_connections_have_reached_other_brokers(client: Client) -> None:
    misdirect_coordinators(client, NAMES)
    assert set(describe_transactions(client, NAMES, client.deadline(2_000))) == set(NAMES)


def test_describe_without_authorisation_is_an_error(fake: FakeKafka, client: Client) -> None:
    fake.refuse("DescribeTransactions", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        describe_transactions(client, NAMES)


def test_abort_fences_without_a_new_producer_id(client: Client) -> None:
    identity = init_producer_id(client, "etl-0", 5_000, client.deadline())
    add_partitions(client, identity, [("orders", 0)], client.deadline())
    after = abort_transaction(client, "etl-0")
    assert after.producer_epoch > identity.producer_epoch
    assert (
        end_transaction(client, identity, commit=True, deadline=client.deadline()).outcome is TransactionOutcome.FENCED
    )
    with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        abort_transaction(client, "nobody-knows")
    assert [transaction.transactional_id for transaction in list_transactions(client)] == NAMES


def test_hanging_transaction_is_aborted_at_the_new_leader(
    fake: FakeKafka, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERSIONS, WRITE_TXN_MARKERS, (1, 2))

    def reply(broker_id: int) -> Any:
        leads = fake.controller.image.topics["orders"].partitions[0].leader == broker_id
        row = {"partition_index": 0, "error_code": ErrorCode.NONE if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER}
        return {"markers": [{"producer_id": 7, "topics": [{"name": "orders", "partitions": [row]}]}]}

    for broker_id, listener in fake.listeners.items():
        listener.handlers[WRITE_TXN_MARKERS] = lambda body, version, broker_id=broker_id: reply(broker_id)
    client.leader("orders", 0)  # remembered by the client
    fake.shuffle_leaders()
    abort_hanging(client, OpenTransaction("orders", 0, 5, 7, 0, -1, 0), client.deadline(5_000))
    assert len(fake.request_bodies(WRITE_TXN_MARKERS)) == 2
