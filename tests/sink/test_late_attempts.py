"""Exactly-once writes with killed, lost or late task attempts: transactions that they leave open."""

from __future__ import annotations

from itertools import product

import pytest

from protocol.errors import ConfigurationError, KafkaError, ProducerFenced, UnsupportedVersion
from protocol.producer.transactional_producer import TransactionalProducer
from protocol.testing.fake_kafka.requests import Body
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.transaction.coordinator import init_producer_id
from protocol.wire.messages.m09_offset_fetch import OFFSET_FETCH
from protocol.wire.messages.m66_list_transactions import LIST_TRANSACTIONS
from spark_kafka_source.sink.exactly_once import batch_commit, batch_write_end, ledger_group, takeover
from spark_kafka_source.sink.exactly_once import open_transactions as open_transactions_module
from tests.support.exactly_once_query import TOPIC, BatchWrite, Query, paused_at


def test_exactly_once_task_shares_one_connection_per_broker_for_coordinators(query: Query) -> None:
    query.commit(query.task("A", 0, 0, (TOPIC, "row")))
    # The other two connections are for control requests and for Produce.
    assert len(query.client.pool) == 3


@pytest.mark.parametrize("kept", [["kept"], []], ids=["batch with rows", "batch without rows"])
def test_killed_stream_task_empty_on_retry_leaves_no_open_transaction(query: Query, kept: list[str]) -> None:
    query.task("A", 0, 0, (TOPIC, "of a killed attempt"))
    query.commit(query.task("A", 0, 0), query.task("A", 0, 1, *((TOPIC, value) for value in kept)))
    assert query.committed_values() == kept


def test_abort_of_stream_batch_ends_transaction_of_killed_attempt(query: Query) -> None:
    query.task("A", 0, 1, (TOPIC, "of a killed attempt"))
    query.abort(query.task("A", 0, 0, (TOPIC, "A0")), None)
    assert query.left_open() == []


def test_fenced_driver_aborts_no_transaction_of_newer_start(query: Query) -> None:
    first = [query.task("A", 0, 0), query.task("A", 0, 1, (TOPIC, "A1"))]
    empty = [query.task("A", 0, 0), query.task("A", 0, 1)]
    second = [query.task("B", 0, 0, (TOPIC, "B0")), query.task("B", 0, 1)]
    for messages in (first, empty):
        with pytest.raises(ProducerFenced, match="was started again elsewhere"):
            query.commit(*messages)
    query.commit(*second)
    assert query.committed_values() == ["B0"]


def test_killed_batch_write_task_empty_on_retry_leaves_no_open_transaction(query: Query) -> None:
    write = BatchWrite(query)
    write.task(0, "of a killed attempt")
    write.commit(write.task(0), write.task(1, "kept"))
    assert write.left_open() == []
    assert query.committed_values() == ["kept"]


@pytest.mark.parametrize("how", ["batch write", "stream"])
def test_write_to_brokers_without_describe_transactions_is_complete(
    query: Query, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Without these requests (Kafka before 3.0) only a batch write aborts a killed attempt of a task without rows."""

    def unsupported(*_: object, **__: object) -> None:
        raise UnsupportedVersion("no broker knows this request")

    write, remaining = BatchWrite(query), query.left_open
    with monkeypatch.context() as old:
        for module, call in product(
            (batch_write_end, ledger_group, open_transactions_module, takeover), ("describe", "list")
        ):
            old.setattr(module, f"{call}_transactions", unsupported, raising=False)
        if how == "stream":
            query.commit(query.task("A", 0, 0), query.task("A", 0, 1, (TOPIC, "kept")))
            query.commit(query.task("B", 1, 0), query.task("B", 1, 1, (TOPIC, "more")))
        else:
            write.task(0, "of a killed attempt")
            write.commit(write.task(0), write.task(1, "kept"), write.task(2, "more"))
    assert write.left_open() == remaining() == []
    assert query.committed_values() == ["kept", "more"]


@pytest.mark.parametrize("rows_before", [["written"], []], ids=["task with rows", "task without rows"])
def test_late_attempt_after_committed_batch_write_is_refused(query: Query, rows_before: list[str]) -> None:
    write = BatchWrite(query)
    write.commit(write.task(0, *rows_before), write.task(1, "other"))
    with pytest.raises(ProducerFenced, match="has ended: it was committed without this attempt"):
        write.task(0, "late")
    assert write.left_open() == []
    assert query.committed_values() == sorted(["other", *rows_before])


@pytest.mark.parametrize("call", ["init_transactions", "begin_transaction", "prepare_transaction"])
def test_empty_task_paused_during_batch_write_commit_leaves_no_open_transaction(query: Query, call: str) -> None:
    write = BatchWrite(query)
    paused = paused_at(TransactionalProducer, call, lambda: write.commit(write.task(0), write.task(1, "other")))
    with pytest.raises(KafkaError), paused:
        write.task(0, "late")
    assert write.left_open() == []
    assert query.committed_values() == ["other"]


def test_batch_write_lists_no_task_ids_of_completed_writes(cluster: FakeKafka, query: Query) -> None:
    """Brokers keep transactional ids for a week (`transactional.id.expiration.ms`)."""
    write = BatchWrite(query)
    write.commit(write.task(0, "row"))
    listed: list[object] = []

    def look(reply: Body) -> Body:
        listed.extend(reply["transaction_states"])
        return reply

    cluster.edit_replies(LIST_TRANSACTIONS, look)
    write = BatchWrite(query)
    write.commit(write.task(0, "row"))
    assert len(listed) == 3, "the ids of both batch writes, and the prepared task of the second"


def test_late_attempt_does_not_fence_commit_of_its_batch_write(query: Query) -> None:
    write = BatchWrite(query)
    prepared = write.task(0, "row")

    def late() -> None:
        with pytest.raises(ProducerFenced):
            write.task(0, "late")

    with paused_at(batch_commit, "_commit", late):
        write.commit(prepared)
    assert query.committed_values() == ["row"]


def test_late_attempt_of_earlier_stream_batch_is_refused(query: Query) -> None:
    for batch in (0, 1):
        query.commit(query.task("A", batch, 0, (TOPIC, f"{batch}")))
    prepared = query.task("A", 2, 0, (TOPIC, "2"))
    with pytest.raises(ProducerFenced, match=r"too late: batch 0 .* was decided without it.* up to batch 1"):
        query.task("A", 0, 0, (TOPIC, "late"))
    query.commit(prepared)
    assert query.committed_values() == ["0", "1", "2"]


def test_task_paused_before_its_takeover_is_refused_once_its_start_has_decided_later_batches(query: Query) -> None:
    """Its own look at the ledger is older than the takeover by another task and two batches."""

    def meanwhile() -> None:
        for batch in (0, 1):
            query.commit(query.task("A", batch, 0, (TOPIC, f"{batch}")))

    too_late = pytest.raises(ProducerFenced, match=r"too late: batch 0 .* up to batch 1")
    with too_late, paused_at(takeover, "rewrite_ledger", meanwhile):
        query.task("A", 0, 0, (TOPIC, "late"))
    assert query.left_open() == []
    assert query.committed_values() == ["0", "1"]


def test_late_attempt_waits_for_a_decision_that_is_being_written(cluster: FakeKafka, query: Query) -> None:
    """It would see the ledger before the decision, and leave a transaction open."""
    looks = 0

    def release_markers(_: Body) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            cluster.hold_markers(False)

    def meanwhile() -> None:
        attempts = query.task("A", 0, 0), query.task("A", 0, 1, (TOPIC, "other"))
        cluster.hold_markers()
        query.commit(*attempts)
        cluster.before[OFFSET_FETCH] = release_markers

    too_late = pytest.raises(ProducerFenced, match="too late")
    with too_late, paused_at(TransactionalProducer, "init_transactions", meanwhile):
        query.task("A", 0, 0, (TOPIC, "late"))
    assert looks > 1
    assert query.committed_values() == ["other"]


def test_task_that_reads_stale_ledger_writes(cluster: FakeKafka, query: Query) -> None:
    """A coordinator acknowledges a commit before OffsetFetch returns the committed offsets."""
    query.commit(query.task("A", 0, 0, (TOPIC, "0")))
    prepared = query.task("A", 1, 0, (TOPIC, "1"))
    cluster.hold_markers()
    query.commit(prepared)
    with paused_at(TransactionalProducer, "init_transactions", lambda: cluster.hold_markers(False)):
        query.commit(query.task("A", 2, 0, (TOPIC, "2")))
    assert query.committed_values() == ["0", "1", "2"]


@pytest.mark.parametrize("now", [1, 3])
def test_decided_batch_with_other_task_count_completes_if_all_transactions_committed(query: Query, now: int) -> None:
    query.decide(query.task("A", 0, 0, (TOPIC, "A0")), query.task("A", 0, 1, (TOPIC, "A1")))
    query.commit(*(query.task("B", 0, task, (TOPIC, f"B{task}")) for task in range(now)))
    assert query.committed_values() == ["A0", "A1"]
    query.commit(*(query.task("B", 1, task, (TOPIC, f"C{task}")) for task in range(now)))
    assert query.committed_values() == ["A0", "A1", *(f"C{task}" for task in range(now))]


@pytest.mark.parametrize(("now", "lost"), [(1, 1), (1, 0), (3, 0)])
def test_decided_batch_with_other_task_count_fails_if_transaction_timed_out(query: Query, now: int, lost: int) -> None:
    query.decide(query.task("A", 0, 0, (TOPIC, "A0")), query.task("A", 0, 1, (TOPIC, "A1")))
    init_producer_id(query.client, query.transactional_id(lost), 60_000, query.client.deadline())  # simulates a timeout
    second = [query.task("B", 0, task, (TOPIC, f"B{task}")) for task in range(now)]
    with pytest.raises(KafkaError, match=rf"decided with 2 tasks .* has {now} now.* timed out at least 1"):
        query.commit(*second)
    query.abort(*second)
    assert query.left_open() == []
    query.commit(*(query.task("C", 0, task, (TOPIC, f"C{task}")) for task in range(2)))
    assert query.committed_values() == sorted([f"A{1 - lost}", f"C{lost}"])


@pytest.mark.parametrize("value", ["true", "True", " TRUE "])
def test_speculation_is_refused_however_spark_spells_true(query: Query, value: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spark.speculation is true.*Set spark.speculation to false"):
        query.task("A", 0, 0, (TOPIC, "row"), spark_speculation=value)
