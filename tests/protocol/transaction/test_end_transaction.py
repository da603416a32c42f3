"""Ends of transactions: every outcome, lost replies, and many transactions at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.cluster.coordinators import CoordinatorKey, transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import AuthenticationFailed, ConnectFailed
from protocol.group.commits.committed_offsets import CommittedOffset, fetch_offsets
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.coordinator import add_offsets, init_producer_id
from protocol.transaction.end_transaction import EndedTransaction, TransactionOutcome, end_transaction, end_transactions
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR, TRANSACTION
from protocol.wire.messages.m26_end_txn import END_TXN
from protocol.wire.schema import Api
from tests.support.misdirected import misdirect_coordinators

ENDED = {True: TransactionOutcome.COMMITTED, False: TransactionOutcome.ABORTED}
MARKER = {("orders", 0): CommittedOffset(7)}


def begun(client: Client, transactional_id: str = "etl-0") -> TransactionalIdentity:
    """Begin a transaction that commits an offset of the group with the same name."""
    identity = init_producer_id(client, transactional_id, 10_000, client.deadline())
    add_offsets(client, identity, transactional_id, MARKER, client.deadline())
    return identity


def end(
    client: Client, identity: TransactionalIdentity, commit: bool = True, *, maybe_ended: bool = False
) -> EndedTransaction:
    return end_transaction(client, identity, commit=commit, deadline=client.deadline(), maybe_ended=maybe_ended)


def committed(client: Client, group: str = "etl-0") -> bool:
    return bool(fetch_offsets(client, group, None, client.deadline(), require_stable=False))


@pytest.mark.parametrize("commit", [True, False])
class TestExpectedEnd:
    def test_end_is_performed_once(self, client: Client, transaction_version: str, commit: bool) -> None:
        identity = begun(client)
        ended = end(client, identity, commit)
        raised = 1 if transaction_version == "2" else 0
        assert ended.outcome is ENDED[commit]
        assert ended.identity == replace(identity, producer_epoch=identity.producer_epoch + raised)
        assert (ended.cause, ended.repeated, committed(client)) == (None, False, commit)

    def test_end_is_requested_again_after_a_lost_reply(self, fake: FakeKafka, client: Client, commit: bool) -> None:
        identity = begun(client)
        fake.lose_replies(END_TXN, 2)
        ended = end(client, identity, commit)
        assert ended.outcome is ENDED[commit]
        assert ended.repeated, "an earlier request may still be in flight"
        again = end(client, identity, commit, maybe_ended=True)
        assert (again.outcome, again.identity) == (ended.outcome, ended.identity)
        assert committed(client) is commit

    def test_end_is_requested_again_until_the_markers_are_written(
        self, fake: FakeKafka, client: Client, commit: bool
    ) -> None:
        identity = begun(client)
        fake.lose_replies(END_TXN)
        fake.hold_markers()
        requested = iter(range(10))
        fake.before[END_TXN] = lambda _: fake.hold_markers(next(requested) < 3)
        ended = end(client, identity, commit)
        assert ended.outcome is ENDED[commit]
        assert next(requested) > 3

    def test_end_is_performed_by_a_moved_coordinator(self, fake: FakeKafka, client: Client, commit: bool) -> None:
        identity = begun(client)
        local = client.coordinator(transaction_coordinator("etl-0"), client.deadline()).node_id
        fake.move_coordinator("etl-0", local % 3 + 1, TRANSACTION)
        ended = end(client, identity, commit)
        assert ended.outcome is ENDED[commit]


class TestOtherEnd:
    def test_end_after_a_newer_producer_is_fenced(self, client: Client) -> None:
        old = begun(client)
        begun(client)
        ended = end(client, old)
        assert ended.outcome is TransactionOutcome.FENCED
        assert "PRODUCER_FENCED" in str(ended.cause)
        assert not committed(client), "the newer transaction is still open"

    def test_end_after_the_transaction_timeout_is_fenced(self, client: Client, clock: ManualClock) -> None:
        identity = begun(client)
        clock.advance(11)
        ended = end(client, identity)
        assert ended.outcome in (TransactionOutcome.FENCED, TransactionOutcome.ABORTED)
        assert not committed(client)

    def test_commit_after_an_abort_is_aborted(self, client: Client) -> None:
        identity = begun(client)
        end(client, identity, commit=False)
        assert end(client, identity).outcome is TransactionOutcome.ABORTED

    @pytest.mark.parametrize(
        ("kind", "code", "outcome"),
        [
            (FIND_COORDINATOR, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionOutcome.REFUSED),
            (END_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, TransactionOutcome.REFUSED),
            (END_TXN, ErrorCode.UNKNOWN_SERVER_ERROR, TransactionOutcome.UNKNOWN),
        ],
        ids=["no EndTxn was sent", "refused", "server error"],
    )
    def test_end_with_an_error_has_its_cause_and_may_be_repeated(
        self, fake: FakeKafka, client: Client, kind: Api, code: ErrorCode, outcome: TransactionOutcome
    ) -> None:
        identity = begun(client)
        client.forget_coordinator(transaction_coordinator("etl-0"), ConnectFailed("as if"))
        fake.refuse(kind, code)
        ended = end(client, identity)
        assert (ended.outcome, ended.repeated) == (outcome, outcome is TransactionOutcome.UNKNOWN)
        assert code.name in str(ended.cause)
        assert end(client, identity, maybe_ended=kind is END_TXN).outcome is TransactionOutcome.COMMITTED

    @pytest.mark.parametrize("earlier", ["lost", "not available", "another process"])
    def test_possible_earlier_commit_is_reported_as_unknown(
        self, fake: FakeKafka, client: Client, earlier: str
    ) -> None:
        """A newer producer starts after the commit, and before its reply."""
        identity = begun(client)
        newer = iter([lambda: None, lambda: _fence(fake, identity)])
        if earlier == "another process":
            end(client, identity)
            init_producer_id(client, "etl-0", 10_000, client.deadline())
        else:
            fake.before[END_TXN] = lambda _: next(newer, lambda: None)()
        if earlier == "lost":
            fake.lose_replies(END_TXN)
        if earlier == "not available":
            fake.edit_replies(END_TXN, lambda body: {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}, 1)
        assert end(client, identity, maybe_ended=earlier == "another process").outcome is TransactionOutcome.UNKNOWN
        assert committed(client)

    def test_end_without_a_reply_is_unknown(self, fake: FakeKafka, client: Client) -> None:
        identity = begun(client)
        fake.lose_replies(END_TXN, 1_000)
        ended = end_transaction(client, identity, commit=True, deadline=client.deadline(300))
        assert (ended.outcome, ended.repeated) == (TransactionOutcome.UNKNOWN, True)
        assert "EndTxn of etl-0" in str(ended.cause)


def _fence(fake: FakeKafka, identity: TransactionalIdentity) -> None:
    transaction = fake.transactions.transactions[identity.transactional_id]
    transaction.producer_epoch += 5


class TestManyTransactions:
    def test_transactions_are_ended_in_parallel(self, fake: FakeKafka, client: Client) -> None:
        identities = [begun(client, f"etl-{number}") for number in range(12)]
        fake.lose_replies(END_TXN, 2)
        newer = begun(client, "etl-7")
        ended = end_transactions(client, identities, commit=True, deadline=client.deadline())
        outcomes = {identity.transactional_id: ended[identity].outcome for identity in identities}
        assert outcomes.pop("etl-7") in (TransactionOutcome.FENCED, TransactionOutcome.UNKNOWN)
        assert set(outcomes.values()) == {TransactionOutcome.COMMITTED}
        assert [committed(client, f"etl-{number}") for number in range(12)] == [number != 7 for number in range(12)]
        assert end(client, newer).outcome is TransactionOutcome.COMMITTED

    def test_transactions_are_ended_after_connections_have_reached_other_brokers(
        self, fake: FakeKafka, client: Client
    ) -> None:
        identities = [begun(client, f"etl-{number}") for number in range(6)]
        misdirect_coordinators(client, [identity.transactional_id for identity in identities])
        ended = end_transactions(client, identities, commit=True, deadline=client.deadline(2_000))
        assert {transaction.outcome for transaction in ended.values()} == {TransactionOutcome.COMMITTED}
        assert len(fake.request_bodies(END_TXN)) == 2 * len(identities), "each connection is replaced once"


def test_one_that_cannot_be_ended_leaves_the_others_their_retries(fake: FakeKafka, client: Client) -> None:
    refused, retried = begun(client, "etl-0"), begun(client, "etl-1")
    fake.refuse(END_TXN, ErrorCode.CONCURRENT_TRANSACTIONS, 1)
    coordinator = client.coordinator

    def without_access(key: CoordinatorKey, deadline: Deadline) -> Broker:
        if key.key == "etl-0":
            raise AuthenticationFailed("as if")
        return coordinator(key, deadline)

    client.coordinator = without_access  # type: ignore[method-assign]
    ended = end_transactions(client, [refused, retried], commit=True, deadline=client.deadline())
    assert ended[refused].outcome is TransactionOutcome.UNKNOWN
    assert isinstance(ended[refused].cause, AuthenticationFailed)
    assert ended[retried].outcome is TransactionOutcome.COMMITTED
