"""Random transactions on a model of a cluster with lost replies, fencing, timeouts and moves: each is atomic, and
readers of committed records see the reported results."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError, OutcomeLost, OutcomeUnknown
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionState
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m10_find_coordinator import TRANSACTION
from protocol.wire.messages.m26_end_txn import END_TXN
from tests.protocol.producer.producing import send_numbered
from tests.protocol.transaction.conftest import QUICK
from tests.protocol.transaction.producing import numbers_in, started

pytestmark = pytest.mark.soak

ID, PARTITIONS, ROWS = "etl-0", 3, 6
CALLS = ("begin", "send", "flush", "commit", "abort", "restart", "newer producer writes")
FAULTS = (
    "EndTxn reply is lost",
    "EndTxn is lost",
    "EndTxn gets no reply",
    "Produce reply is lost",
    "records are refused",
    "producer id is unknown",
    "time passes",
    "coordinator moves",
    "leaders move",
)
# Transactions are mostly undisturbed; faults occur in between.
EVENTS = st.lists(
    st.one_of(
        st.just(("begin", "send", "commit")),
        st.just(("begin", "send", "flush", "abort")),
        st.sampled_from(CALLS).map(lambda call: (call,)),
        st.sampled_from(FAULTS).map(lambda fault: (fault,)),
        st.sampled_from(FAULTS).map(lambda fault: ("begin", "send", fault, "send", "commit", "commit")),
    ),
    max_size=12,
)


class Program:
    """A producer and the results it reported: each transaction is the list of its numbers."""

    def __init__(self, fake: FakeKafka, clock: ManualClock, client: Client) -> None:
        self.fake = fake
        self.clock = clock
        self.client = client
        self.producer = started(client, ID)
        self.next = 0
        self.open: set[int] = set()
        self.committed: list[set[int]] = []
        self.unknown: list[set[int]] = []

    def perform(self, event: str) -> None:
        try:
            getattr(self, event.replace(" ", "_"))()
        except KafkaError:
            if self.producer.transaction_state is TransactionState.FATAL_ERROR:
                self.restart()

    def begin(self) -> None:
        self.producer.begin_transaction()
        self.open = set()

    def send(self) -> None:
        if self.producer.transaction_state is not TransactionState.IN_TRANSACTION:
            return
        self.open |= set(range(self.next, self.next + ROWS))
        self.next += ROWS
        send_numbered(self.producer, "orders", self.next - ROWS, ROWS, PARTITIONS)

    def flush(self) -> None:
        self.producer.flush()

    def commit(self) -> None:
        try:
            self.producer.commit_transaction(60)
        except (OutcomeUnknown, OutcomeLost):
            self.fake.faults.clear()
            if self.open not in self.unknown:
                self.unknown.append(self.open)
            raise
        self.committed.append(self.open)

    def abort(self) -> None:
        try:
            self.producer.abort_transaction(60)
        except (OutcomeUnknown, OutcomeLost):
            self.fake.faults.clear()
            raise

    def restart(self) -> None:
        """As after a crash: only the next `init_transactions` ends the open transaction."""
        TransactionalProducer.abort(self.producer)
        self.fake.faults.clear()
        self.producer = started(self.client, ID)

    def newer_producer_writes(self) -> None:
        self.fake.faults.clear()
        newer = started(self.client, ID)
        newer.begin_transaction()
        numbers = set(range(self.next, self.next + ROWS))
        self.next += ROWS
        send_numbered(newer, "orders", min(numbers), ROWS, PARTITIONS)
        newer.commit_transaction()
        self.committed.append(numbers)

    # -- faults -------------------------------------------------------------------------------

    def EndTxn_reply_is_lost(self) -> None:
        self.fake.lose_replies(END_TXN)

    def EndTxn_is_lost(self) -> None:
        self.fake.lose_requests(END_TXN)

    def EndTxn_gets_no_reply(self) -> None:
        self.fake.lose_replies(END_TXN, 1_000)

    def Produce_reply_is_lost(self) -> None:
        self.fake.lose_replies(PRODUCE)

    def records_are_refused(self) -> None:
        self.fake.refuse(PRODUCE, ErrorCode.INVALID_RECORD)

    def producer_id_is_unknown(self) -> None:
        self.fake.refuse(PRODUCE, ErrorCode.UNKNOWN_PRODUCER_ID)

    def time_passes(self) -> None:
        self.clock.advance(61)

    def coordinator_moves(self) -> None:
        coordinator = self.fake.coordinator(TRANSACTION, ID)
        self.fake.move_coordinator(ID, coordinator % len(self.fake.brokers) + 1, TRANSACTION)

    def leaders_move(self) -> None:
        for number in range(PARTITIONS):
            self.fake.move_leader("orders", number, 1 + (number + self.next) % 2)


@pytest.mark.parametrize("version", ["1", "2"], ids=["before KIP-890", "since KIP-890"])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS)
def test_reported_results_of_transactions_match_what_readers_see(version: str, events: list[tuple[str, ...]]) -> None:
    clock = ManualClock()
    with FakeKafka(2, clock=clock, settings={"transaction.version": version}) as fake:
        fake.create_topic("orders", PARTITIONS, 2)
        with Client(parse_client({"bootstrap.servers": fake.bootstrap_servers, **QUICK})) as client:
            program = Program(fake, clock, client)
            for event in (event for together in events for event in together):
                program.perform(event)
            fake.faults.clear()
            program.restart()
            program.producer.close()
            observed = numbers_in(client, "orders", PARTITIONS)
    numbers = [number for partition in observed for number in partition]
    visible = set(numbers)
    assert len(numbers) == len(visible), "no number is repeated"
    assert all(partition == sorted(partition) for partition in observed), "numbers are in order"
    union = set().union(*program.committed)
    assert union <= visible, "reported commits are visible"
    for transaction in program.unknown:
        assert transaction <= visible or not transaction & visible, "each transaction is atomic"
    assert visible <= union.union(*program.unknown), "no other number is visible"
