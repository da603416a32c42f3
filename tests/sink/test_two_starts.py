"""Tasks and drivers of several starts of one query: writes, fencing and visible records.

The tests make Spark's calls themselves: `write` of a task on an executor, `commit` and `abort` on the driver.
"""

from __future__ import annotations

import pytest

from protocol.admin.transactions import abort_transaction
from protocol.errors import BrokerError, ConfigurationError, KafkaError, OutcomeUnknown, ProducerFenced, UsageError
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.coordinator import init_producer_id
from spark_kafka_source.sink.exactly_once import batch_commit, ledger_group
from tests.support.exactly_once_query import TOPIC, BatchWrite, Query, paused_at


def test_older_of_two_drivers_is_fenced_and_aborts_nothing_of_the_newer(query: Query) -> None:
    first = query.tasks("A")
    second = query.tasks("B")
    message = "the query .* was started again elsewhere"
    with pytest.raises(ProducerFenced, match=message):
        query.commit(*first)
    query.abort(first[0], None)
    with pytest.raises(ProducerFenced, match=message):
        query.task("A", 1, 0, (TOPIC, "A"))
    query.commit(*second)
    with pytest.raises(ProducerFenced, match=message):
        query.commit(*first)
    assert query.committed_values() == ["B0", "B1"]


def test_older_task_paused_after_ledger_read_leaves_no_open_transaction(query: Query) -> None:
    """A newer start writes the batch between the older task's read of the ledger and its InitProducerId."""
    newer = paused_at(
        TransactionalProducer, "init_transactions", lambda: query.commit(query.task("B", 0, 0, (TOPIC, "B0")))
    )
    with pytest.raises(ProducerFenced, match="was started again elsewhere"), newer:
        query.task("A", 0, 0, (TOPIC, "A0"))
    assert query.left_open() == [], "it would stay open: Spark kills the other tasks when the first one fails"
    assert query.committed_values() == ["B0"]


def test_driver_fenced_after_decision_reports_decided_batches_committed(query: Query) -> None:
    first = query.tasks("A")

    def meanwhile() -> None:
        query.commit(*query.tasks("B"))
        query.commit(*query.tasks("B", 1, "C"))

    message = r"was started again elsewhere.* decided are committed"
    with pytest.raises(ProducerFenced, match=message), paused_at(batch_commit, "_commit", meanwhile):
        query.commit(*first)
    query.abort(*first)
    assert query.committed_values() == ["A0", "A1", "C0", "C1"]


def test_decided_batch_is_not_aborted_and_is_committed_unchanged_when_its_rows_change(query: Query) -> None:
    query.abort(query.task("A", 0, 0, (TOPIC, "A0")), None)
    assert query.left_open() == []
    first = query.tasks("A")
    query.decide(*first)
    query.abort(*first)
    assert query.left_open() == ["0", "1"]
    second = query.tasks("B")
    assert [write.topics for write in second] == [{}, {}]
    query.commit(*second)
    assert query.committed_values() == ["A0", "A1"]
    query.commit(*query.tasks("B", 1, "C"))
    assert query.committed_values() == ["A0", "A1", "C0", "C1"]


def test_reused_worker_reads_ledger_again_before_takeover(query: Query) -> None:
    first = query.tasks("A")
    query.identities["B"] = query.identities.pop("A")  # executors of A are reused by the driver of B
    query.decide(*first)
    query.commit(*query.tasks("B"))
    assert query.committed_values() == ["A0", "A1"]


def time_out(query: Query, task: int) -> None:
    """End the task's transaction as the coordinator does after the transaction timeout."""
    init_producer_id(query.client, query.transactional_id(task), 60_000, query.client.deadline())


def test_timed_out_transaction_of_decided_batch_alone_is_written_again(query: Query) -> None:
    query.decide(*query.tasks("A"))
    time_out(query, 1)
    second = query.tasks("B")
    query.commit(*second)
    assert query.committed_values() == ["A0", "B1"]
    third = query.tasks("C")
    query.commit(*third)
    assert query.committed_values() == ["A0", "B1"], "the one that was written again is marked as the first was"


def test_rewritten_transaction_is_decided_again(query: Query) -> None:
    query.decide(*query.tasks("A"))
    time_out(query, 1)
    write = query.task("B", 0, 0, (TOPIC, "B0"))
    with paused_at(TransactionalProducer, "begin_transaction", lambda: query.task("C", 0, 0, (TOPIC, "C0"))):
        again = query.task("B", 0, 1, (TOPIC, "B1"))
    with pytest.raises(ProducerFenced, match="was started again elsewhere"):
        query.commit(write, again)
    query.abort(write, again)
    third = query.tasks("C")
    query.decide(*third)
    query.commit(*query.tasks("D"))
    assert query.committed_values() == ["A0", "C1"]


def test_committed_batch_is_detected_after_next_batch_began(query: Query) -> None:
    query.commit(query.task("A", 0, 0, (TOPIC, "A0")))
    query.task("A", 1, 0, (TOPIC, "A1"))
    query.commit(query.task("B", 0, 0, (TOPIC, "B0")))
    query.commit(query.task("B", 1, 0, (TOPIC, "B1")))
    query.commit(query.task("C", 1, 0, (TOPIC, "C1")))
    assert query.committed_values() == ["A0", "B1"]


def test_start_behind_the_ledger_is_refused_with_remedies_and_other_starts_continue(query: Query) -> None:
    """Its checkpoint was reset, or an older start has written batch 2 since it read the checkpoint."""
    for batch in range(3):
        query.commit(query.task("A", batch, 0, (TOPIC, f"A{batch}")))
    remedies = "still runs, stop it there and start it again: every row is written once.* its checkpoint was reset"
    with pytest.raises(UsageError, match=rf"batch 1 .* up to batch 2 before.*{remedies}"):
        query.task("B", 1, 0, (TOPIC, "B1"))
    query.commit(query.task("A", 3, 0, (TOPIC, "A3")))
    for batch in (3, 4):
        query.commit(query.task("C", batch, 0, (TOPIC, f"C{batch}")))
    assert query.committed_values() == ["A0", "A1", "A2", "A3", "C4"]


def test_queries_with_one_prefix_are_independent(query: Query) -> None:
    second_query = Query(query.bootstrap_servers)
    other_tasks = [second_query.task("X", 0, task, (TOPIC, f"X{task}")) for task in (0, 1)]
    first = query.task("A", 0, 0, (TOPIC, "A0"))
    query.abort(query.task("B", 0, 0, (TOPIC, "B0")), None)  # the newer start B has aborted A's open transaction
    query.abort(first, None)
    assert second_query.left_open() == ["0", "1"]
    second_query.commit(*other_tasks)
    second = query.task("B", 0, 0, (TOPIC, "B0"))
    third = second_query.task("X", 1, 0, (TOPIC, "X2"))
    query.commit(second)
    second_query.commit(third)
    assert query.committed_values() == ["B0", "X0", "X1", "X2"]


def test_transaction_aborted_before_decision_fails_whole_batch(query: Query) -> None:
    first = query.tasks("A")
    abort_transaction(query.client, query.transactional_id(1))
    with pytest.raises(KafkaError, match=r"1 of 2 transactions ended .*pykafka txn abort"):
        query.commit(*first)
    query.abort(*first)
    query.commit(*query.tasks("B"))
    assert query.committed_values() == ["B0", "B1"]


def test_transaction_aborted_after_decision_is_written_again(query: Query) -> None:
    first = query.tasks("A")
    aborted = paused_at(batch_commit, "_commit", lambda: abort_transaction(query.client, query.transactional_id(1)))
    message = r"1 of 2 transactions .* Batch 0 is decided: start the query again"
    with pytest.raises(OutcomeUnknown, match=message), aborted:
        query.commit(*first)
    query.abort(*first)
    query.commit(*query.tasks("B"))
    assert query.committed_values() == ["A0", "B1"]


def test_aborted_decision_is_retried_by_driver(query: Query) -> None:
    def end() -> None:
        abort_transaction(query.client, query.transactional_id())

    for batch in range(3):
        written = query.task("A", batch, 0, (TOPIC, f"A{batch}"))
        with paused_at(ledger_group, "end_transaction", end):
            query.commit(written)
        end()  # fences the producer, although no transaction is open
    assert query.committed_values() == ["A0", "A1", "A2"]


def test_abort_of_batch_write_ends_transaction_of_late_task_copy(query: Query) -> None:
    """A late task of an earlier stage attempt fences the later attempt's transaction and prepares another one."""
    write = BatchWrite(query)
    reported, _ = write.task(0, "reported"), write.task(0, "late")
    with pytest.raises(KafkaError, match="1 of 1 transactions ended"):
        write.commit(reported)
    write.abort(reported)
    assert write.left_open() == []
    assert query.committed_values() == []


@pytest.mark.parametrize("further", [0, 1])
@pytest.mark.parametrize("call", ["init_transactions", "begin_transaction", "prepare_transaction"])
def test_aborted_batch_write_with_running_task_leaves_no_open_transaction(
    query: Query, call: str, further: int
) -> None:
    """Spark kills the other tasks of a failed job, but only seconds later."""
    write = BatchWrite(query)
    prepared = [write.task(task, f"{task}") for task in range(further)]
    given_up = paused_at(TransactionalProducer, call, lambda: write.abort(*prepared, None, None))
    with pytest.raises(KafkaError), given_up:
        write.task(further, f"{further}")
    assert write.left_open() == []
    assert query.committed_values() == []


def test_empty_tasks_and_several_topics_commit_every_row_once(cluster: FakeKafka, query: Query) -> None:
    first, second = TOPIC, "another"
    cluster.create_topic(second)
    assert query.task("A", 0, 0).identity is None
    query.commit(query.task("A", 0, 0), query.task("A", 0, 1))
    query.commit(query.task("A", 1, 0), query.task("A", 1, 1, (first, "1"), (second, "2")))
    query.decide(query.task("A", 2, 0, (second, "3")), query.task("A", 2, 1))
    query.commit(query.task("B", 2, 0, (first, "4")), query.task("B", 2, 1, (first, "5")))
    assert query.committed_values(first, second) == ["1", "2", "3"]


def test_failed_task_leaves_no_open_transaction(cluster: FakeKafka) -> None:
    query = Query(cluster.bootstrap_servers, settings={"kafka.batch.size": "1"})  # send rows at once
    with pytest.raises(BrokerError, match="INVALID_TOPIC"):
        query.task("A", 0, 0, (TOPIC, "A0"), ("no topic of this name", "A1"))
    assert query.committed_values() == []


def test_transaction_timeout_above_broker_maximum_is_refused(cluster: FakeKafka) -> None:
    query = Query(cluster.bootstrap_servers, settings={"kafka.transaction.timeout.ms": "900001"})
    with pytest.raises(ConfigurationError, match=r"kafka.transaction.timeout.ms is 900001.* at most 900000"):
        query.task("A", 0, 0, (TOPIC, "A0"))
