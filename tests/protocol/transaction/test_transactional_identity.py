"""Identity of a transactional producer after fencing, epoch exhaustion, or expiry of its id."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, ProducerFenced, TransactionFailed
from protocol.group.commits.committed_offsets import CommittedOffset
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from protocol.wire.messages.m26_end_txn import END_TXN
from tests.protocol.producer.producing import send_numbered
from tests.protocol.transaction.producing import GROUP, begin_with, commit_numbers, send_and_flush, started, visible


def send_offsets(producer: TransactionalProducer) -> None:
    producer.send_offsets_to_transaction({("orders", 0): CommittedOffset(1)}, GROUP)


class TestFencing:
    @pytest.mark.parametrize(
        "call", [TransactionalProducer.commit_transaction, send_offsets], ids=["commit", "send offsets"]
    )
    def test_producer_with_a_newer_one_can_only_be_closed(
        self, client: Client, producer: TransactionalProducer, call: Callable[[TransactionalProducer], None]
    ) -> None:
        begin_with(producer, 0, 10)
        newer = started(client, "etl-0")
        with pytest.raises(ProducerFenced, match="a newer producer"):
            call(producer)
        assert_refused(producer.commit_transaction, producer.abort_transaction, producer.begin_transaction)
        commit_numbers(newer, 10, 10)
        assert visible(client) == list(range(10, 20))

    def test_fenced_producer_cannot_send_or_commit(self, client: Client, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        commit_numbers(started(client, "etl-0"), 10, 10)
        for call in (lambda: send_and_flush(producer, 0, 10), producer.commit_transaction):
            with pytest.raises(KafkaError):
                call()
        assert visible(client) == list(range(10, 20))

    def test_producer_fenced_by_a_leader_cannot_abort(self, fake: FakeKafka, producer: TransactionalProducer) -> None:
        producer.begin_transaction()
        fake.refuse(PRODUCE, ErrorCode.PRODUCER_FENCED, 3)
        with pytest.raises(KafkaError):
            send_and_flush(producer, 0, 10)
        with pytest.raises(ProducerFenced):
            producer.abort_transaction()

    def test_producer_over_transaction_timeout_is_fenced(
        self, client: Client, clock: ManualClock, producer: TransactionalProducer
    ) -> None:
        begin_with(producer, 0, 10)
        clock.advance(61)
        with pytest.raises(ProducerFenced):
            producer.commit_transaction()
        assert visible(client) == []


class TestEpochExhaustion:
    """After epoch 32,766 follows another producer id."""

    @pytest.mark.parametrize(
        ("epoch", "lost"), [(32_764, 0), (32_764, 1), (32_766, 0)], ids=["answered", "an answer is lost", "at once"]
    )
    def test_producer_continues_with_another_producer_id(
        self, fake: FakeKafka, client: Client, epoch: int, lost: int
    ) -> None:
        first = started(client, "etl-0")
        fake.transactions.transactions["etl-0"].producer_epoch = epoch
        producer = started(client, "etl-0")
        for number in range(6):
            producer.begin_transaction()
            send_numbered(producer, "orders", 10 * number, 10, 3)
            fake.lose_replies(END_TXN, lost)
            if number in (1, 3):
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        assert visible(client) == [*range(10), *range(20, 30), *range(40, 60)]
        assert fake.transactions.transactions["etl-0"].producer_epoch < 100, "a new producer id starts at sequence 0"
        assert_replaced(first)


class TestExpiredId:
    """After a week without use (`transactional.id.expiration.ms`) the coordinator forgets the producer."""

    def test_expired_producer_aborts_and_continues_with_another_id(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        for first in (0, 10):
            commit_numbers(producer, first, 10)
            fake.transactions.transactions.clear()
            producer.begin_transaction()
            with pytest.raises(BrokerError, match="INVALID_PRODUCER_ID_MAPPING"):
                send_and_flush(producer, 100, 10)
            with pytest.raises(TransactionFailed, match=r"call abort_transaction: .*INVALID_PRODUCER_ID_MAPPING"):
                producer.commit_transaction()
            producer.abort_transaction()
        assert visible(client) == list(range(20))
        assert len(fake.request_bodies(INIT_PRODUCER_ID)) == 2

    def test_commit_of_an_expired_producer_reports_no_commit(
        self, fake: FakeKafka, producer: TransactionalProducer
    ) -> None:
        begin_with(producer, 0, 10)
        fake.transactions.transactions.clear()
        with pytest.raises(TransactionFailed, match=r"nothing was committed.*INVALID_PRODUCER_ID_MAPPING"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.commit_transaction()

    def test_expired_producer_is_fenced_if_another_has_started(
        self, fake: FakeKafka, client: Client, producer: TransactionalProducer
    ) -> None:
        fake.transactions.transactions.clear()
        newer = started(client, "etl-0")
        assert_replaced(producer)
        commit_numbers(newer, 0, 10)
        assert visible(client) == list(range(10))


def assert_refused(*calls: Callable[[], object]) -> None:
    for call in calls:
        with pytest.raises(ProducerFenced, match="has a fatal error; close it"):
            call()


def assert_replaced(producer: TransactionalProducer) -> None:
    """Assert that another producer has replaced this one under its transactional id."""
    producer.begin_transaction()
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_ID_MAPPING"):
        send_offsets(producer)
    producer.abort_transaction()
    with pytest.raises(ProducerFenced):
        producer.begin_transaction()
