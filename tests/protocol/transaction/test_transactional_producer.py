"""The transactional producer on a model of a cluster: valid calls in each state, errors, and guarantees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_producer
from protocol.errors import (
    BrokerError,
    ConfigurationError,
    DeadlineExceeded,
    KafkaError,
    OutcomeLost,
    OutcomeUnknown,
    ProducerFenced,
    TransactionFailed,
    UsageError,
)
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.end_transaction import end_transaction
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import (
    GROUP,
    begin_with,
    commit_numbers,
    numbers_in,
    producer_of,
    send_and_flush,
    started,
    visible,
)
from tests.support.wait_until import wait_until

LATE_S = 10
# Above transaction.timeout.ms.
TIMEOUT_S = 61


def send_without_reply(fake: FakeKafka, producer: TransactionalProducer) -> None:
    """Send one record in a new transaction; its reply comes after `LATE_S` of the cluster's clock."""
    producer.begin_transaction()
    fake.delay_replies(PRODUCE, LATE_S)
    producer.send("orders", b"%09d" % 0, partition=0)
    wait_until(lambda: bool(fake.request_bodies(PRODUCE)))


def assert_next_transaction_is_visible(client: Client, producer: TransactionalProducer) -> None:
    """Assert that the records of the next transaction are the only committed ones."""
    commit_numbers(producer, 10, 10)
    assert visible(client) == list(range(10, 20))


class TestTransactions:
    def test_abort_drops_unsent_records(self, client: Client) -> None:
        producer = started(client, "etl-0", linger_ms=60_000)
        for first, end in ((0, producer.commit_transaction), (10, producer.abort_transaction), (20, None)):
            producer.begin_transaction()
            send_numbered(producer, "orders", first, 10, 3)
            (end or producer.commit_transaction)()
        assert visible(client) == [*range(10), *range(20, 30)]
        assert numbers_in(client, "orders", 3, "read_uncommitted") == numbers_in(client, "orders", 3)

    @pytest.mark.parametrize("end", [TransactionalProducer.commit_transaction, TransactionalProducer.abort_transaction])
    def test_transaction_without_records_ends_without_a_request(
        self, fake: FakeKafka, producer: TransactionalProducer, end: Callable[[TransactionalProducer], None]
    ) -> None:
        for _ in range(2):
            producer.begin_transaction()
            end(producer)
        assert fake.request_bodies(END_TXN) == []
        assert producer.transaction_state is TransactionState.READY

    def test_partitions_are_added_together_and_once(
        self, fake: FakeKafka, producer: TransactionalProducer, transaction_version: str
    ) -> None:
        producer.begin_transaction()
        for first in (0, 300):
            send_numbered(producer, "orders", first, 300, 3)
            producer.flush()
        producer.commit_transaction()
        added = [body["v3_and_below_topics"] for body in fake.request_bodies(ADD_PARTITIONS_TO_TXN)]
        if transaction_version == "2":
            assert added == []
        else:
            assert sorted(number for rows in added for row in rows for number in row["partitions"]) == [0, 1, 2]

    def test_producer_after_prepare_continues_with_another_transactional_id(
        self, client: Client, producer: TransactionalProducer
    ) -> None:
        handed_over = []
        for number in range(3):
            if number:
                producer.init_transactions(transactional_id=f"etl-{number}")
            producer.begin_transaction()
            send_numbered(producer, "orders", 10 * number, 10, 3)
            with pytest.raises(UsageError, match=f"etl-{number} has a transaction"):
                producer.init_transactions(transactional_id="other")
            handed_over.append(producer.prepare_transaction())
        producer.close()
        assert [identity.transactional_id for identity in handed_over] == ["etl-0", "etl-1", "etl-2"]
        for identity, commit in zip(handed_over, (True, False, True), strict=True):
            end_transaction(client, identity, commit=commit, deadline=client.deadline())
        assert visible(client) == [*range(10), *range(20, 30)]

    def test_close_aborts_the_open_transaction(self, client: Client, fake: FakeKafka) -> None:
        def fails_in_the_middle() -> None:
            with started(client, "etl-0") as producer:
                begin_with(producer, 0, 1_000)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails_in_the_middle()
        assert {transaction.state.value for transaction in fake.transactions.transactions.values()} == {"CompleteAbort"}


class TestCallOrder:
    """Calls in a wrong state."""

    def test_calls_are_refused_with_the_call_that_is_missing(self, client: Client) -> None:
        producer = producer_of(client, "etl-0")

        def send() -> None:
            producer.send_columns("orders", numbered(0, 1))

        def send_offsets() -> None:
            producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(1)}, GROUP)

        def assert_refused(message: str, *calls: Callable[[], object]) -> None:
            for call in calls:
                with pytest.raises(UsageError, match=message):
                    call()

        assert_refused("call init_transactions", producer.begin_transaction, send)
        producer.init_transactions()
        ends = producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction
        assert_refused("call begin_transaction", *ends, send, send_offsets)
        producer.begin_transaction()
        assert_refused("has a transaction", producer.begin_transaction, producer.init_transactions)

    def test_producer_class_must_match_transactional_id(self, client: Client) -> None:
        with pytest.raises(UsageError, match=r"transactional\.id is for a TransactionalProducer"):
            Producer(client, parse_producer({"transactional.id": "etl-0"}))
        with pytest.raises(UsageError, match=r"needs transactional\.id"):
            TransactionalProducer(client, parse_producer({}))
        with pytest.raises(ConfigurationError, match=r"requires enable\.idempotence=true"):
            parse_producer({"transactional.id": "etl-0", "acks": "1"})


class TestErrors:
    def test_refused_records_fail_only_their_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        fake.refuse(PRODUCE, ErrorCode.INVALID_RECORD)
        send_numbered(producer, "orders", 0, 10, 3)
        with pytest.raises(BrokerError, match="INVALID_RECORD"):
            producer.flush()
        for call in (producer.commit_transaction, lambda: send_numbered(producer, "orders", 0, 10, 3)):
            with pytest.raises(TransactionFailed, match=r"call abort_transaction: .*INVALID_RECORD"):
                call()
        producer.abort_transaction()
        assert_next_transaction_is_visible(client, producer)

    @pytest.mark.parametrize("answered", [True, False])
    def test_abort_without_added_partitions_succeeds(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer, answered: bool
    ) -> None:
        """Before KIP-890 the coordinator then has no transaction to abort, and replies so."""
        for first in (0, 10):
            producer.begin_transaction()
            if first and answered:
                fake.refuse(ADD_PARTITIONS_TO_TXN, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 3)
            if first and not answered:
                fake.lose_requests(PRODUCE, 1_000)
                fake.lose_requests(ADD_PARTITIONS_TO_TXN, 1_000)
            send_numbered(producer, "orders", first, 10, 3)
            with suppress(KafkaError):
                producer.commit_transaction(300 if first and not answered else 5_000)
        if producer.transaction_state is not TransactionState.READY:
            fake.faults.clear()
            producer.abort_transaction()
        commit_numbers(producer, 20, 10)
        assert {*range(10), *range(20, 30)} <= set(visible(client))

    def test_name_of_a_group_is_not_taken_for_its_metadata(self, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        with pytest.raises(UsageError, match="group_metadata is str"):
            producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(7)}, "etl")  # type: ignore[arg-type]
        producer.commit_transaction()

    def test_refused_send_fails_the_transaction(self, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        with pytest.raises(UsageError, match="1 partitions were given for 2 rows"):
            producer.send_columns("orders", numbered(0, 2), np.zeros(1, np.int32))
        with pytest.raises(TransactionFailed):
            producer.commit_transaction()
        producer.abort_transaction()

    @pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
    def test_sequence_numbers_do_not_restart_within_a_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer, code: ErrorCode
    ) -> None:
        """With a new epoch the earlier records would be lost, and the rest committed alone."""
        begin_with(producer, 0, 30)
        fake.refuse(PRODUCE, code, 1)
        with pytest.raises(KafkaError):
            send_and_flush(producer, 30, 30)
        with pytest.raises(TransactionFailed):
            producer.commit_transaction()
        assert len(fake.request_bodies(INIT_PRODUCER_ID)) == 1
        producer.abort_transaction()
        commit_numbers(producer, 0, 60)
        assert visible(client) == list(range(60))

    def test_abortable_error_of_the_coordinator_requires_an_abort(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        fake.refuse(END_TXN, ErrorCode.TRANSACTION_ABORTABLE)
        with pytest.raises(TransactionFailed, match="TRANSACTION_ABORTABLE"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert visible(client) == []

    @pytest.mark.parametrize("code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_REQUEST])
    def test_refused_initialization_is_fatal(self, fake: FakeKafka, client: Client, code: ErrorCode) -> None:
        producer = producer_of(client, "etl-0")
        fake.refuse(INIT_PRODUCER_ID, code)
        with pytest.raises(BrokerError, match=code.name):
            producer.init_transactions()
        with pytest.raises(TransactionFailed, match="has a fatal error"):
            producer.init_transactions()

    def test_silent_coordinator_times_out(self, fake: FakeKafka, client: Client) -> None:
        producer = producer_of(client, "etl-0")
        fake.lose_requests(INIT_PRODUCER_ID, 1_000)
        with pytest.raises(DeadlineExceeded):
            producer.init_transactions(100)
        fake.faults.clear()
        producer.init_transactions()


class TestRecordsInFlight:
    """The end of a transaction while a leader does not reply."""

    @pytest.mark.timeout(15)
    def test_abort_ends_at_its_deadline_and_may_be_repeated(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer, clock: ManualClock
    ) -> None:
        send_without_reply(fake, producer)
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match="batches in flight"):
                producer.abort_transaction(50)
        assert fake.request_bodies(END_TXN) == []
        clock.advance(LATE_S)
        producer.abort_transaction()
        assert_next_transaction_is_visible(client, producer)

    @pytest.mark.timeout(15)
    def test_close_aborts_the_transaction_if_that_fences_late_records(
        self, fake: FakeKafka, producer: TransactionalProducer, transaction_version: str
    ) -> None:
        send_without_reply(fake, producer)
        if transaction_version == "2":
            producer.close(2_000)
            assert [body["committed"] for body in fake.request_bodies(END_TXN)] == [False]
        else:
            with pytest.raises(DeadlineExceeded, match="batches in flight"):
                producer.close(50)
            assert fake.request_bodies(END_TXN) == []
        with pytest.raises(UsageError, match="closed"):
            producer.flush()


class TestUnknownOutcomes:
    def test_late_end_request_does_not_end_the_next_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        """Found by Jepsen: the request whose reply was lost is still in flight."""
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        fake.lose_replies(END_TXN)
        producer.commit_transaction()
        (_, version, late) = next(request for request in fake.requests if request[0] == "EndTxn")
        begin_with(producer, 10, 10)
        answers = [fake.ask(broker, END_TXN, late, version)["error_code"] for broker in fake.brokers]
        assert ErrorCode.PRODUCER_FENCED in answers
        assert visible(client) == list(range(10))
        producer.abort_transaction()
        assert visible(client) == list(range(10))

    def test_commit_without_a_reply_is_never_reported(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        begin_with(producer, 0, 10)
        fake.lose_replies(END_TXN, 1_000)
        with pytest.raises(OutcomeUnknown):
            producer.commit_transaction(500)
        with pytest.raises(UsageError, match="is committing; call commit_transaction again"):
            producer.abort_transaction()
        fake.faults.clear()
        producer.commit_transaction()
        assert visible(client) == list(range(10))
        producer.begin_transaction()

    @pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
    def test_repeated_calls_end_after_the_coordinator_aborted_the_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer, clock: ManualClock, end: str
    ) -> None:
        """A lost abort committed nothing, but a lost commit may have."""
        begin_with(producer, 0, 10)
        fake.lose_requests(END_TXN, 1_000)
        with pytest.raises(OutcomeUnknown):
            getattr(producer, end)(500)
        fake.faults.clear()
        clock.advance(TIMEOUT_S)
        assert visible(client) == []
        lost: type[KafkaError] = OutcomeLost if end == "commit_transaction" else ProducerFenced
        with suppress(lost):  # since KIP-890, a repeated abort succeeds
            getattr(producer, end)()
        if producer.transaction_state is TransactionState.FATAL_ERROR:
            for call in (getattr(producer, end), producer.begin_transaction):
                with pytest.raises(lost, match="has a fatal error; close it"):
                    call()
        else:
            assert end == "abort_transaction"

    def test_outcome_is_lost_after_fencing(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        begin_with(producer, 0, 10)
        fake.lose_replies(END_TXN, 1_000)
        with pytest.raises(OutcomeUnknown):
            producer.commit_transaction(500)
        fake.faults.clear()
        started(client, "etl-0")
        for _ in range(2):
            with pytest.raises(OutcomeLost, match="PRODUCER_FENCED"):
                producer.commit_transaction()
        assert producer.transaction_state is TransactionState.FATAL_ERROR, "another request would not help"
