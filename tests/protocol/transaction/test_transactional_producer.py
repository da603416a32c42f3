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
    OutcomeUnknown,
    ProducerFenced,
    TransactionFailed,
    UsageError,
)
from protocol.group.member import ConsumerGroupMetadata, GroupMember
from protocol.group.offsets import CommittedOffset, fetch_offsets
from protocol.producer.producer import Producer
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.transaction.end_transaction import Outcome, end_transaction
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m24_add_partitions_to_txn import ADD_PARTITIONS_TO_TXN
from protocol.wire.messages.m26_end_txn import END_TXN
from tests.fake_kafka.server import FakeKafka
from tests.protocol.producer.producing import numbered, send_numbered
from tests.protocol.transaction.producing import GROUP, numbers_in, producer_of, send_and_flush, started, visible


class TestTransactions:
    def test_what_is_committed_is_visible_and_what_is_aborted_is_not(
        self, client: Client, producer: TransactionalProducer
    ) -> None:
        for first in range(0, 600, 100):
            producer.begin_transaction()
            send_numbered(producer, "orders", first, 100, 3)
            if first % 200:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        expected = [number for number in range(600) if number % 200 < 100]
        assert numbers_in(client, "orders", 3) == [[n for n in expected if n % 3 == part] for part in range(3)]

    def test_an_abort_drops_what_is_not_sent(self, client: Client) -> None:
        producer = started(client, "etl-0", linger_ms=60_000)
        for first, end in ((0, producer.commit_transaction), (10, producer.abort_transaction), (20, None)):
            producer.begin_transaction()
            send_numbered(producer, "orders", first, 10, 3)
            (end or producer.commit_transaction)()
        assert visible(client) == [*range(10), *range(20, 30)]
        assert numbers_in(client, "orders", 3, "read_uncommitted") == numbers_in(client, "orders", 3)

    @pytest.mark.parametrize("end", [TransactionalProducer.commit_transaction, TransactionalProducer.abort_transaction])
    def test_one_without_records_ends_without_a_request(
        self, fake: FakeKafka, producer: TransactionalProducer, end: Callable[[TransactionalProducer], None]
    ) -> None:
        for _ in range(2):
            producer.begin_transaction()
            end(producer)
        assert fake.asked(END_TXN) == []
        assert producer.transaction_state is TransactionState.READY

    def test_partitions_are_added_together_and_once(
        self, fake: FakeKafka, producer: TransactionalProducer, transaction_version: str
    ) -> None:
        producer.begin_transaction()
        for first in (0, 300):
            send_numbered(producer, "orders", first, 300, 3)
            producer.flush()
        producer.commit_transaction()
        added = [body["v3_and_below_topics"] for body in fake.asked(ADD_PARTITIONS_TO_TXN)]
        if transaction_version == "2":
            assert added == []
        else:
            assert sorted(number for rows in added for row in rows for number in row["partitions"]) == [0, 1, 2]

    def test_offsets_are_committed_with_it(self, client: Client, producer: TransactionalProducer) -> None:
        for offset, end in ((5, producer.commit_transaction), (9, producer.abort_transaction)):
            producer.begin_transaction()
            producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(offset)}, GROUP)
            end()
        assert fetch_offsets(client, "etl", None, client.deadline())["orders", 0].offset == 5

    def test_another_process_may_end_it(self, client: Client, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        identity = producer.prepare_transaction()
        with pytest.raises(UsageError, match="handed its transaction over"):
            producer.commit_transaction()
        producer.close()
        assert visible(client) == []
        assert end_transaction(client, identity, commit=True, deadline=client.deadline()).outcome is Outcome.COMMITTED
        assert visible(client) == list(range(10))
        again = started(client, "etl-0")
        again.begin_transaction()
        send_numbered(again, "orders", 10, 10, 3)
        again.prepare_transaction()
        again.init_transactions()
        assert visible(client) == list(range(10)), "a transaction not ended by then is aborted"

    def test_who_has_handed_over_goes_on_under_another_transactional_id(
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
        assert [each.transactional_id for each in handed_over] == ["etl-0", "etl-1", "etl-2"]
        for identity, commit in zip(handed_over, (True, False, True), strict=True):
            end_transaction(client, identity, commit=commit, deadline=client.deadline())
        assert visible(client) == [*range(10), *range(20, 30)]

    def test_an_error_under_another_transactional_id_names_that_one(
        self, client: Client, producer: TransactionalProducer, fake: FakeKafka
    ) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        producer.prepare_transaction()
        fake.refuse(INIT_PRODUCER_ID, ErrorCode.PRODUCER_FENCED, 1)
        with pytest.raises(ProducerFenced, match="etl-1") as raised:
            producer.init_transactions(transactional_id="etl-1")
        assert "etl-0" not in str(raised.value)

    def test_one_that_is_closed_aborts_what_is_open(self, client: Client, fake: FakeKafka) -> None:
        def fails_in_the_middle() -> None:
            with started(client, "etl-0") as producer:
                producer.begin_transaction()
                send_and_flush(producer, 0, 1_000)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fails_in_the_middle()
        assert {each.state.value for each in fake.transactions.transactions.values()} == {"CompleteAbort"}


class TestOrder:
    """Calls in a wrong state."""

    def test_before_init(self, client: Client) -> None:
        producer = producer_of(client, "etl-0")
        with pytest.raises(UsageError, match="call init_transactions"):
            producer.begin_transaction()
        with pytest.raises(UsageError, match="call init_transactions"):
            producer.send_columns("orders", numbered(0, 1))

    def test_without_a_transaction(self, producer: TransactionalProducer) -> None:
        for call in (
            producer.commit_transaction,
            producer.abort_transaction,
            producer.prepare_transaction,
            lambda: producer.send_columns("orders", numbered(0, 1)),
            lambda: producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(1)}, GROUP),
        ):
            with pytest.raises(UsageError, match="call begin_transaction"):
                call()

    def test_within_one(self, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        for call in (producer.begin_transaction, producer.init_transactions):
            with pytest.raises(UsageError, match="has a transaction"):
                call()

    def test_which_producer_for_which_properties(self, client: Client) -> None:
        with pytest.raises(UsageError, match=r"transactional\.id is for a TransactionalProducer"):
            Producer(client, parse_producer({"transactional.id": "etl-0"}))
        with pytest.raises(UsageError, match=r"needs transactional\.id"):
            TransactionalProducer(client, parse_producer({}))
        with pytest.raises(ConfigurationError, match=r"enable\.idempotence is off"):
            parse_producer({"transactional.id": "etl-0", "acks": "1"})


class TestErrors:
    def test_records_that_are_refused_break_the_transaction_alone(
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
        producer.begin_transaction()
        send_numbered(producer, "orders", 10, 10, 3)
        producer.commit_transaction()
        assert visible(client) == list(range(10, 20))

    @pytest.mark.parametrize("answered", [True, False])
    def test_partitions_that_were_never_added_do_not_keep_it_from_going_on(
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
                producer.commit_transaction(client.deadline(300 if first and not answered else 5_000))
        if producer.transaction_state is not TransactionState.READY:
            fake.faults.clear()
            producer.abort_transaction()
        producer.begin_transaction()
        send_numbered(producer, "orders", 20, 10, 3)
        producer.commit_transaction()
        assert {*range(10), *range(20, 30)} <= set(visible(client))

    def test_a_record_that_no_request_can_hold_breaks_it_too(
        self, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        producer.send_columns("orders", numbered(0, 1))
        producer.send_columns("orders", numbered(1, 1, 2_000_000))
        for call in (producer.commit_transaction, lambda: producer.send_columns("orders", numbered(2, 1))):
            with pytest.raises(TransactionFailed, match=r"max\.request\.size"):
                call()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_columns("orders", numbered(3, 1))
        producer.commit_transaction()
        assert visible(client) == [3]

    def test_what_was_not_taken_in_breaks_it_too(self, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        with pytest.raises(UsageError, match="1 partitions were given for 2 rows"):
            producer.send_columns("orders", numbered(0, 2), np.zeros(1, np.int32))
        with pytest.raises(TransactionFailed):
            producer.commit_transaction()
        producer.abort_transaction()

    @pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
    def test_numbers_that_broke_off_never_begin_anew_within_it(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer, code: ErrorCode
    ) -> None:
        """With a new epoch the earlier records would be lost, and the rest committed alone."""
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 30, 3)
        producer.flush()
        fake.refuse(PRODUCE, code, 1)
        with pytest.raises(KafkaError):
            send_and_flush(producer, 30, 30)
        with pytest.raises(TransactionFailed):
            producer.commit_transaction()
        assert len(fake.asked(INIT_PRODUCER_ID)) == 1
        producer.abort_transaction()
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 60, 3)
        producer.commit_transaction()
        assert visible(client) == list(range(60))

    def test_the_coordinator_demands_an_abort(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        fake.refuse(END_TXN, ErrorCode.TRANSACTION_ABORTABLE)
        with pytest.raises(TransactionFailed, match="TRANSACTION_ABORTABLE"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert visible(client) == []

    def test_a_member_that_has_lost_its_claims(self, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        stranger = ConsumerGroupMetadata("etl", GroupMember("nobody", generation_id=3))
        with pytest.raises(BrokerError):
            producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(1)}, stranger)
        with pytest.raises(TransactionFailed):
            producer.commit_transaction()
        producer.abort_transaction()

    def test_nobody_may_use_the_id(self, fake: FakeKafka, client: Client) -> None:
        producer = producer_of(client, "etl-0")
        fake.refuse(INIT_PRODUCER_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        with pytest.raises(BrokerError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            producer.init_transactions()
        with pytest.raises(TransactionFailed, match="failed for good"):
            producer.init_transactions()

    def test_a_coordinator_that_does_not_answer(self, fake: FakeKafka, client: Client) -> None:
        producer = producer_of(client, "etl-0")
        fake.lose_requests(INIT_PRODUCER_ID, 1_000)
        with pytest.raises(DeadlineExceeded):
            producer.init_transactions(client.deadline(100))
        fake.faults.clear()
        producer.init_transactions()


class TestUnknownOutcomes:
    def test_a_lost_answer_is_asked_for_again(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        for first in (0, 10, 20):
            producer.begin_transaction()
            send_numbered(producer, "orders", first, 10, 3)
            fake.lose_replies(END_TXN)
            producer.commit_transaction()
        assert visible(client) == list(range(30))

    def test_one_that_is_late_does_not_end_the_next_transaction(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        """Found by Jepsen: the request whose reply was lost is still in flight."""
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        fake.lose_replies(END_TXN)
        producer.commit_transaction()
        (_, version, late) = next(each for each in fake.requests if each[0] == "EndTxn")
        producer.begin_transaction()
        send_numbered(producer, "orders", 10, 10, 3)
        producer.flush()
        answers = [fake.ask(broker, END_TXN, late, version)["error_code"] for broker in fake.brokers]
        assert ErrorCode.PRODUCER_FENCED in answers
        assert visible(client) == list(range(10))
        producer.abort_transaction()
        assert visible(client) == list(range(10))

    def test_without_any_answer_a_commit_is_never_reported(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        producer.flush()
        fake.lose_replies(END_TXN, 1_000)
        with pytest.raises(OutcomeUnknown):
            producer.commit_transaction(client.deadline(200))
        with pytest.raises(UsageError, match="commits; call commit_transaction again"):
            producer.abort_transaction()
        fake.faults.clear()
        producer.commit_transaction()
        assert visible(client) == list(range(10))
        producer.begin_transaction()

    def test_nobody_can_tell_any_more(self, fake: FakeKafka, client: Client, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        send_numbered(producer, "orders", 0, 10, 3)
        producer.flush()
        fake.lose_replies(END_TXN, 1_000)
        with pytest.raises(OutcomeUnknown):
            producer.commit_transaction(client.deadline(200))
        fake.faults.clear()
        started(client, "etl-0")
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match="PRODUCER_FENCED"):
                producer.commit_transaction()
        assert producer.transaction_state is TransactionState.FATAL_ERROR, "another request would not help"
