"""Tasks and drivers of several starts of one query, on a real broker: writes, fencing and visible records.

The tests make Spark's calls themselves: `write` of a task on an executor, `commit` and `abort` on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest

from protocol.admin.transactions import abort_transaction
from protocol.errors import BrokerError, ConfigurationError, KafkaError, OutcomeUnknown, ProducerFenced, UsageError
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.transaction.coordinator import init_producer_id
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.exactly_once import batch_commit, ledger_group
from spark_kafka_source.sink.exactly_once.open_transactions import list_open_transactions
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite
from tests.conftest import TopicFactory
from tests.support.exactly_once_query import Query, paused_at
from tests.support.soak import SOAK
from tests.support.spark_task import spark_task
from tests.support.transaction_version import transactions_before_kip_890
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.soak


# `test_random_deaths` and `test_late_attempts` run with version 1, too.
_VERSIONS = ["transaction.version 2", "transaction.version 1"]


@pytest.fixture(params=_VERSIONS if SOAK else _VERSIONS[:1], scope="module", autouse=True)
def _protocol(request: pytest.FixtureRequest, kafka1: LocalKafka) -> Iterator[None]:
    PROCESS.reset()
    if request.param.endswith("1"):
        with transactions_before_kip_890(kafka1):
            yield
    else:
        yield
    PROCESS.reset()


@pytest.fixture
def query(kafka1: LocalKafka) -> Query:
    return Query(kafka1.bootstrap_servers)


@pytest.fixture
def short_timeout(query: Query) -> Query:
    """Return the query with a transaction timeout that is only a little longer than a task."""
    return Query(query.bootstrap_servers, query.query_id, {"kafka.transaction.timeout.ms": "2500"})


@pytest.fixture
def name(topic1: TopicFactory) -> str:
    return topic1()


def test_older_of_two_drivers_is_fenced(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    second = [query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)]
    message = "the query .* was started again elsewhere"
    with pytest.raises(ProducerFenced, match=message):
        query.commit(*first)
    query.abort(*first)
    with pytest.raises(ProducerFenced, match=message):
        query.task("A", 1, 0, (name, "A"))
    query.commit(*second)
    with pytest.raises(ProducerFenced, match=message):
        query.commit(*first)
    assert query.committed_values(name) == [b"B0", b"B1"]


def test_driver_cannot_decide_after_one_task_of_newer_start(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    second = query.task("B", 0, 1, (name, "B1"))
    assert query.left_open() == ["1"], "what the older one had written was aborted"
    with pytest.raises(ProducerFenced):
        query.decide(*first)
    query.commit(query.task("B", 0, 0, (name, "B0")), second)
    assert query.committed_values(name) == [b"B0", b"B1"]


def test_driver_with_identity_of_last_decision_is_fenced_by_newer_start(query: Query, name: str) -> None:
    query.commit(query.task("A", 0, 0, (name, "A0")))
    first = query.task("A", 1, 0, (name, "A1"))
    assert query.held["A"]
    second = query.task("B", 1, 0, (name, "B1"))
    with pytest.raises(ProducerFenced):
        query.decide(first)
    query.commit(second)
    assert query.committed_values(name) == [b"A0", b"B1"]


def test_task_of_older_start_is_fenced(query: Query, name: str) -> None:
    query.task("A", 0, 0, (name, "A0"))
    query.task("B", 0, 0, (name, "B0"))
    with pytest.raises(ProducerFenced, match="was started again elsewhere"):
        query.task("A", 0, 1, (name, "A1"))
    query.commit(query.task("B", 0, 0, (name, "B0")))
    assert query.committed_values(name) == [b"B0"]


def test_older_task_paused_after_ledger_read_leaves_no_open_transaction(query: Query, name: str) -> None:
    """A newer start writes the batch between the older task's read of the ledger and its InitProducerId."""

    def meanwhile() -> None:
        query.commit(query.task("B", 0, 0, (name, "B0")))

    fenced = pytest.raises(ProducerFenced, match="was started again elsewhere")
    with fenced, paused_at(TransactionalProducer, "init_transactions", meanwhile):
        query.task("A", 0, 0, (name, "A0"))
    assert query.left_open() == [], "it would stay open: Spark kills the other tasks when the first one fails"
    assert query.committed_values(name) == [b"B0"]


def test_driver_fenced_after_decision_reports_decided_batches_committed(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]

    def meanwhile() -> None:
        query.commit(*(query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)))
        query.commit(*(query.task("B", 1, task, (name, f"C{task}")) for task in (0, 1)))

    message = r"was started again elsewhere.* decided are committed"
    with pytest.raises(ProducerFenced, match=message), paused_at(batch_commit, "_commit", meanwhile):
        query.commit(*first)
    query.abort(*first)
    assert query.committed_values(name) == [b"A0", b"A1", b"C0", b"C1"]


def test_decided_batch_is_committed_unchanged_when_its_rows_change(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    query.decide(*first)
    second = [query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)]
    assert [write.topics for write in second] == [{}, {}]
    query.commit(*second)
    assert query.committed_values(name) == [b"A0", b"A1"]
    query.commit(*(query.task("B", 1, task, (name, f"C{task}")) for task in (0, 1)))
    assert query.committed_values(name) == [b"A0", b"A1", b"C0", b"C1"]


def test_reused_worker_reads_ledger_again_before_takeover(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    query.held["B"] = query.held.pop("A")  # executors of A are reused by the driver of B
    query.decide(*first)
    query.commit(*(query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)))
    assert query.committed_values(name) == [b"A0", b"A1"]


def test_decided_batch_is_committed_when_no_task_has_rows(query: Query, name: str) -> None:
    query.decide(query.task("A", 0, 0, (name, "A0")), query.task("A", 0, 1, (name, "A1")))
    query.commit(query.task("B", 0, 0), query.task("B", 0, 1))
    assert query.committed_values(name) == [b"A0", b"A1"]


def time_out(query: Query, task: int) -> None:
    """End the task's transaction as the coordinator does after the transaction timeout."""
    init_producer_id(query.client, query.transactional_id(task), 60_000, query.client.deadline())


def test_timed_out_transaction_of_decided_batch_alone_is_written_again(query: Query, name: str) -> None:
    query.decide(*(query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)))
    time_out(query, 1)
    second = [query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)]
    query.commit(*second)
    assert query.committed_values(name) == [b"A0", b"B1"]
    third = [query.task("C", 0, task, (name, f"C{task}")) for task in (0, 1)]
    query.commit(*third)
    assert query.committed_values(name) == [b"A0", b"B1"], "the one that was written again is marked as the first was"


def test_rewritten_transaction_is_decided_again(query: Query, name: str) -> None:
    query.decide(*(query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)))
    time_out(query, 1)
    write = query.task("B", 0, 0, (name, "B0"))

    def start_again() -> None:
        query.task("C", 0, 0, (name, "C0"))

    with paused_at(TransactionalProducer, "begin_transaction", start_again):
        again = query.task("B", 0, 1, (name, "B1"))
    with pytest.raises(ProducerFenced, match="was started again elsewhere"):
        query.commit(write, again)
    query.abort(write, again)
    third = [query.task("C", 0, task, (name, f"C{task}")) for task in (0, 1)]
    query.decide(*third)
    query.commit(*(query.task("D", 0, task, (name, f"D{task}")) for task in (0, 1)))
    assert query.committed_values(name) == [b"A0", b"C1"]


def assert_only_task_1_is_written_again(
    query: Query, name: str, first: Sequence[PreparedWrite], end_task_1: Callable[[], None]
) -> None:
    """Check a batch in which task 1's transaction ends between decision and commit, and task 0's is committed."""
    message = r"1 of 2 transactions .* Batch 0 is decided: start the query again"
    with pytest.raises(OutcomeUnknown, match=message), paused_at(batch_commit, "_commit", end_task_1):
        query.commit(*first)
    query.abort(*first)
    query.commit(*(query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)))
    assert query.committed_values(name) == [b"A0", b"B1"]


def test_transaction_timed_out_after_decision_is_written_again(query: Query, short_timeout: Query, name: str) -> None:
    first = [query.task("A", 0, 0, (name, "A0")), short_timeout.task("A", 0, 1, (name, "A1"))]

    def wait_for_time_out() -> None:
        wait_until(lambda: query.left_open() == ["0"], timeout_s=60, every_s=0.1)

    assert_only_task_1_is_written_again(query, name, first, wait_for_time_out)


def test_committed_batch_is_detected_after_next_batch_began(query: Query, name: str) -> None:
    query.commit(query.task("A", 0, 0, (name, "A0")))
    query.task("A", 1, 0, (name, "A1"))
    query.commit(query.task("B", 0, 0, (name, "B0")))
    query.commit(query.task("B", 1, 0, (name, "B1")))
    query.commit(query.task("C", 1, 0, (name, "C1")))
    assert query.committed_values(name) == [b"A0", b"B1"]


def test_reset_checkpoint_is_refused_and_running_start_continues(query: Query, name: str) -> None:
    for batch in range(3):
        query.commit(query.task("A", batch, 0, (name, f"A{batch}")))
    with pytest.raises(UsageError, match=r"batch 1 .* up to batch 2 before.* its checkpoint was reset"):
        query.task("B", 1, 0, (name, "B1"))
    query.commit(query.task("A", 3, 0, (name, "A3")))
    assert query.committed_values(name) == [b"A0", b"A1", b"A2", b"A3"]


def test_start_behind_running_older_start_fails_with_remedy(query: Query, name: str) -> None:
    """The newer start has read batch 1 from the checkpoint; meanwhile the older start has written batch 2."""
    for batch in range(3):
        query.commit(query.task("A", batch, 0, (name, f"A{batch}")))
    with pytest.raises(UsageError, match=r"still runs, stop it there and start it again: every row is written once"):
        query.task("B", 1, 0, (name, "A1"))
    query.commit(query.task("C", 2, 0, (name, "A2")))
    query.commit(query.task("C", 3, 0, (name, "C3")))
    assert query.committed_values(name) == [b"A0", b"A1", b"A2", b"C3"]


@pytest.mark.parametrize("lost", [False, True])
def test_decided_batch_with_other_task_count_fails_only_if_rows_are_missing(
    query: Query, name: str, lost: bool
) -> None:
    query.decide(query.task("A", 0, 0, (name, "A0")), query.task("A", 0, 1, (name, "A1")))
    if lost:
        time_out(query, 1)
        with pytest.raises(KafkaError, match=r"decided with 2 tasks .* and has 1 now"):
            query.commit(query.task("B", 0, 0, (name, "B0")))
    else:
        query.commit(query.task("B", 0, 0, (name, "B0")))
    assert query.committed_values(name) == [b"A0"] if lost else [b"A0", b"A1"]


def test_transaction_timed_out_before_decision_fails_whole_batch(query: Query, short_timeout: Query, name: str) -> None:
    first = [query.task("A", 0, 0, (name, "A0")), short_timeout.task("A", 0, 1, (name, "A1"))]
    wait_until(lambda: query.left_open() == ["0"], timeout_s=60, every_s=0.1)
    with pytest.raises(KafkaError, match=r"1 of 2 transactions ended .* kafka.transaction.timeout.ms"):
        query.commit(*first)
    query.abort(*first)
    assert query.committed_values(name) == []


def test_queries_with_one_prefix_are_independent(query: Query, name: str) -> None:
    other = Query(query.bootstrap_servers)
    other_tasks = [other.task("X", 0, task, (name, f"X{task}")) for task in (0, 1)]
    first = query.task("A", 0, 0, (name, "A0"))
    query.abort(query.task("B", 0, 0, (name, "B0")), None)  # the newer start B has aborted A's open transaction
    query.abort(first, None)
    assert other.left_open() == ["0", "1"]
    other.commit(*other_tasks)
    second = query.task("B", 0, 0, (name, "B0"))
    third = other.task("X", 1, 0, (name, "X2"))
    query.commit(second)
    other.commit(third)
    assert query.committed_values(name) == [b"B0", b"X0", b"X1", b"X2"]


# -- transactions that are aborted from outside (`pykafka txn abort`) ------------------------------


def test_task_with_externally_aborted_transaction_fails_and_writes_again(query: Query, name: str) -> None:
    def end() -> None:
        abort_transaction(query.client, query.transactional_id(0))

    with (
        pytest.raises(KafkaError, match="newer producer"),
        paused_at(TransactionalProducer, "prepare_transaction", end),
    ):
        query.task("A", 0, 0, (name, "A0"))
    query.commit(query.task("A", 0, 0, (name, "again")))
    assert query.committed_values(name) == [b"again"]


def test_transaction_aborted_before_decision_fails_whole_batch(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    abort_transaction(query.client, query.transactional_id(1))
    with pytest.raises(KafkaError, match=r"1 of 2 transactions ended .*pykafka txn abort"):
        query.commit(*first)
    query.abort(*first)
    query.commit(*(query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)))
    assert query.committed_values(name) == [b"B0", b"B1"]


def test_transaction_aborted_after_decision_is_written_again(query: Query, name: str) -> None:
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]

    def end() -> None:
        abort_transaction(query.client, query.transactional_id(1))

    assert_only_task_1_is_written_again(query, name, first, end)


def test_aborted_decision_is_retried_by_driver(query: Query, name: str) -> None:
    def end() -> None:
        abort_transaction(query.client, query.transactional_id())

    for batch in range(3):
        written = query.task("A", batch, 0, (name, f"A{batch}"))
        with paused_at(ledger_group, "end_transaction", end):
            query.commit(written)
        end()  # fences the producer, although no transaction is open
    assert query.committed_values(name) == [b"A0", b"A1", b"A2"]


# -- aborted batches, and replays with other tasks -------------------------------------------------


def test_abort_of_batch_keeps_decided_transactions_open(query: Query, name: str) -> None:
    query.abort(query.task("A", 0, 0, (name, "A0")), None)
    assert query.left_open() == []
    first = [query.task("A", 0, task, (name, f"A{task}")) for task in (0, 1)]
    query.decide(*first)
    query.abort(*first)
    assert query.left_open() == ["0", "1"]
    query.commit(query.task("B", 0, 0), query.task("B", 0, 1))
    assert query.committed_values(name) == [b"A0", b"A1"]


def test_abort_of_batch_write_ends_transaction_of_late_task_copy(query: Query, name: str) -> None:
    """A late task of an earlier stage attempt fences the later attempt's transaction and prepares another one."""
    writer = query.writer(streaming=False)
    with spark_task(0):
        reported, _ = (
            writer.write([pa.record_batch({"topic": [name], "value": [value]})]) for value in ("reported", "late")
        )
    with pytest.raises(KafkaError, match="1 of 1 transactions ended"):
        guarantee.commit(query.options, [reported])
    guarantee.abort(query.options, writer, [reported])
    assert writer.batch_write is not None
    assert list_open_transactions(query.client, writer.batch_write.task_prefix, query.client.deadline()) == []
    assert query.committed_values(name) == []


@pytest.mark.parametrize("further", [0, 1])
@pytest.mark.parametrize("call", ["init_transactions", "begin_transaction", "prepare_transaction"])
def test_aborted_batch_write_with_running_task_leaves_no_open_transaction(
    query: Query, name: str, call: str, further: int
) -> None:
    """Spark kills the other tasks of a failed job, but only seconds later."""
    writer = query.writer(streaming=False)

    def write(task: int) -> PreparedWrite:
        with spark_task(task):
            return writer.write([pa.record_batch({"topic": [name], "value": [f"{task}"]})])

    prepared = [write(task) for task in range(further)]

    def give_up() -> None:
        guarantee.abort(query.options, writer, [*prepared, None, None])

    with pytest.raises(KafkaError), paused_at(TransactionalProducer, call, give_up):
        write(further)
    assert writer.batch_write is not None
    assert list_open_transactions(query.client, writer.batch_write.task_prefix, query.client.deadline()) == []
    assert query.committed_values(name) == []


def test_open_transactions_of_killed_tasks_are_aborted_with_the_batch(query: Query, name: str) -> None:
    written, _ = query.task("A", 0, 0, (name, "A0")), query.task("A", 0, 1, (name, "A1"))
    query.abort(written, None)
    assert query.committed_values(name) == []


def test_abort_by_older_driver_keeps_transactions_of_newer_start(query: Query, name: str) -> None:
    first = query.task("A", 0, 0, (name, "A0"))
    second = [query.task("B", 0, task, (name, f"B{task}")) for task in (0, 1)]
    query.abort(first, None)
    query.commit(*second)
    assert query.committed_values(name) == [b"B0", b"B1"]


def test_takeover_with_fewer_tasks_aborts_transactions_of_all_earlier_tasks(query: Query, name: str) -> None:
    for task in range(4):
        query.task("A", 0, task, (name, f"A{task}"))
    query.commit(query.task("B", 0, 0, (name, "B0")))
    assert query.committed_values(name) == [b"B0"]


def test_empty_tasks_and_several_topics_commit_every_row_once(query: Query, topic1: TopicFactory) -> None:
    first, second = topic1(), topic1()
    assert query.task("A", 0, 0).identity is None
    query.commit(query.task("A", 0, 0), query.task("A", 0, 1))
    query.commit(query.task("A", 1, 0), query.task("A", 1, 1, (first, "1"), (second, "2")))
    query.decide(query.task("A", 2, 0, (second, "3")), query.task("A", 2, 1))
    query.commit(query.task("B", 2, 0, (first, "4")), query.task("B", 2, 1, (first, "5")))
    assert query.committed_values(first, second) == [b"1", b"2", b"3"]


def test_failed_task_leaves_no_open_transaction(kafka1: LocalKafka, name: str) -> None:
    query = Query(kafka1.bootstrap_servers, settings={"kafka.batch.size": "1"})  # send rows at once
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        query.task("A", 0, 0, (name, "A0"), ("no topic of this name", "A1"))
    assert query.committed_values(name) == []


def test_transaction_timeout_above_broker_maximum_is_refused(kafka1: LocalKafka, name: str) -> None:
    query = Query(kafka1.bootstrap_servers, settings={"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(ConfigurationError, match=r"kafka.transaction.timeout.ms is 900001.* at most 900000"):
        query.task("A", 0, 0, (name, "A0"))
