"""Takeover of the ledger by the tasks of a new start: one task takes over, the others wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from protocol.admin.transactions import describe_transactions
from protocol.base.clock import Deadline
from protocol.errors import BrokerError, DeadlineExceeded
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages.m22_init_producer_id import INIT_PRODUCER_ID
from spark_kafka_source.sink.exactly_once import batch_write_end, takeover
from spark_kafka_source.sink.exactly_once.batch_write_end import fence_other_attempts
from spark_kafka_source.sink.exactly_once.ledger_group import read_ledger
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch
from spark_kafka_source.sink.exactly_once.takeover import LedgerProducer, TakeoverBackoff, take_over
from tests.protocol.fetch.consuming import client_of

TASKS = 30
QUERY = Query("many", "query")


@pytest.fixture
def cluster(kafka_fake: FakeKafka) -> FakeKafka:
    kafka_fake.create_topic("written")
    return kafka_fake


def start_all_tasks(cluster: FakeKafka, start: str, tasks: int) -> None:
    """Start all tasks at once, each with its own client, as in separate processes."""
    together = Barrier(tasks)

    def task(_: int) -> str:
        with client_of(cluster.bootstrap_servers) as client:
            client.metadata(["written"], client.deadline())
            together.wait(30)
            ledger = take_over(client, StreamBatch(QUERY, start, 1), "written", 60_000, client.deadline())
            return ledger.start_id

    with ThreadPoolExecutor(tasks) as threads:
        assert set(threads.map(task, range(tasks))) == {start}


@pytest.mark.parametrize("before", [True, False], ids=["an older start", "no ledger yet"])
def test_takeover_by_many_concurrent_tasks_is_done_by_few(
    cluster: FakeKafka, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    # Requests of so many threads of one process may take longer than the usual delay.
    monkeypatch.setattr(takeover, "_JITTER_S", 2.0)
    if before:
        start_all_tasks(cluster, "older", 1)
    requests_before = len(cluster.request_bodies(INIT_PRODUCER_ID))
    start_all_tasks(cluster, "newer", TASKS)
    requests = len(cluster.request_bodies(INIT_PRODUCER_ID)) - requests_before
    assert 1 <= requests <= TASKS // 2
    with client_of(cluster.bootstrap_servers) as client:
        ledger = read_ledger(client, QUERY, client.deadline())
    assert ledger.starts == (("older", "newer") if before else ("newer",))


# -- the back-off of one task, with a manual clock ----------------------------------------------------


def producer(epoch: int, is_idle: bool) -> LedgerProducer:
    return LedgerProducer(TransactionalIdentity("query", 1, epoch), is_idle)


IDLE, BUSY = producer(0, True), producer(1, False)


@pytest.mark.parametrize(
    ("replies", "least_s", "most_s"),
    [
        pytest.param([IDLE], 0, 0.1, id="no competitor"),
        pytest.param([BUSY], 0.5, 1.1, id="another task takes over"),
        pytest.param([IDLE, BUSY], 0.5, 1.3, id="another task begins to take over"),
        # Since KIP-890 each decision bumps the epoch; between decisions the producer has no open transaction.
        pytest.param([producer(n, True) for n in range(5)], 0, 0.1, id="a driver that still decides batches"),
        pytest.param(
            [producer(n, False) for n in range(5)], 0.5 + 1 + 2 + 4 + 8.0001, 60, id="one task after the other"
        ),
    ],
)
def test_task_waits_while_others_take_over(replies: list[LedgerProducer], least_s: float, most_s: float) -> None:
    """`replies` describe the ledger's producer, in order; the last one repeats."""
    clock, remaining = ManualClock(), iter(replies)
    backoff = TakeoverBackoff(lambda: next(remaining, replies[-1]), Deadline.after_ms(60_000, clock))
    while not backoff.is_due():
        backoff.wait()
    assert least_s <= clock.at_s <= most_s


def test_task_waiting_for_others_fails_at_deadline() -> None:
    clock = ManualClock()
    backoff = TakeoverBackoff(lambda: producer(int(clock.at_s * 1000), False), Deadline.after_ms(5_000, clock))
    while not backoff.is_due() and clock.at_s < 5:
        backoff.wait()
    with pytest.raises(DeadlineExceeded, match="another task of this start"):
        backoff.wait()


def test_refused_ledger_leaves_no_open_transaction() -> None:
    """Before KIP-890, a separate request begins the transaction; tasks would wait until that transaction times out."""
    with FakeKafka(settings={"transaction.version": "1"}) as cluster:
        cluster.create_topic("written")
        with client_of(cluster.bootstrap_servers) as client:
            cluster.refuse("TxnOffsetCommit", "OFFSET_METADATA_TOO_LARGE", 1)
            with pytest.raises(BrokerError):
                take_over(client, StreamBatch(QUERY, "newer", 1), "written", 60_000, client.deadline())
            described = describe_transactions(client, [QUERY.transactional_id], client.deadline())
            assert described[QUERY.transactional_id].state != "Ongoing"


def test_attempt_that_could_not_be_fenced_is_no_success(cluster: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("as if")

    monkeypatch.setattr(batch_write_end, "init_producer_id", fail)
    with client_of(cluster.bootstrap_servers) as client, pytest.raises(MemoryError):
        fence_other_attempts(client, Query("many", "write"), [], [0])
