"""End a batch write: afterwards no attempt of its tasks begins a transaction, and none stays open.

Attempts may still run when the driver ends the write: Spark kills the other tasks seconds after one fails, and a lost
executor may still run. No later start would end their transactions. So the driver first initialises the write's own
transactional id, as a mark, then fences the attempts that it finds. An attempt checks for the mark once it has its
producer id: either it sees the mark, or the driver finds the attempt. Brokers before Kafka 3.0 lack the requests
(KIP-664): there a late attempt continues, and its transaction times out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, ProducerFenced, UnsupportedVersion
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.end_transaction import EndedTransaction, TransactionOutcome, end_transactions
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.query import Query

# The driver begins no transaction under these ids, and every broker allows this timeout.
_TRANSACTION_TIMEOUT_MS = 1_000
_MAX_CONCURRENT = 16
# States of running attempts. The filter excludes ids whose last transaction was committed or aborted.
_ATTEMPT_STATES = ("Empty", "Ongoing")


def fence_other_attempts(
    client: Client, query: Query, prepared: Collection[TransactionalIdentity], tasks_without_transaction: Iterable[int]
) -> None:
    """Fence every attempt that has no prepared transaction, before the prepared transactions are committed.

    Runs on the driver.

    `tasks_without_transaction`: an earlier attempt may have left one.
    Raises `KafkaError`: an attempt may still run.
    """
    failures = _fence(client, [query.transactional_id])
    failures += _fence_others(
        client, query, {identity.transactional_id for identity in prepared}, tasks_without_transaction
    )
    for failure in failures:
        raise failure


def abort_failed_write(
    client: Client, query: Query, prepared: Collection[TransactionalIdentity], silent_tasks: Iterable[int]
) -> None:
    """Abort the prepared transactions, and those of tasks without a message.

    Runs on the driver. Continues after errors, then raises the first `KafkaError`.
    """
    failures = _fence(client, [query.transactional_id])
    ended = end_transactions(client, prepared, commit=False, deadline=_deadline(client))
    ended_ids = {identity.transactional_id for identity, transaction in ended.items() if _has_ended(transaction)}
    prepared_tasks = [int(identity.transactional_id.removeprefix(query.task_prefix)) for identity in prepared]
    failures += _fence_others(client, query, ended_ids, [*prepared_tasks, *silent_tasks])
    for failure in failures:
        raise failure


def require_not_ended(client: Client, query: Query, deadline: Deadline) -> None:
    """Raise `ProducerFenced` if the write has ended.

    A task calls it before InitProducerId, which would abort a prepared transaction of another attempt, and again
    between InitProducerId and the begin of its transaction.
    """
    try:
        ended = describe_transactions(client, [query.transactional_id], deadline)
    except UnsupportedVersion:
        return
    if ended:
        raise ProducerFenced(
            f"the batch write {query.transactional_id} has ended: it was committed without this attempt of the task, "
            "or another task of it has failed"
        )


def _fence_others(
    client: Client, query: Query, excluded_ids: Collection[str], fallback_tasks: Iterable[int]
) -> list[KafkaError]:
    """Fence the write's transactional ids without `excluded_ids`; those of `fallback_tasks` if listing them fails."""
    try:
        transactions = list_transactions(client, _deadline(client), prefix=query.task_prefix, states=_ATTEMPT_STATES)
        fenced_ids = {transaction.transactional_id for transaction in transactions}
    except KafkaError:
        fenced_ids = {query.task(task) for task in fallback_tasks}
    return _fence(client, fenced_ids.difference(excluded_ids))


def _has_ended(ended: EndedTransaction) -> bool:
    """Return False if a late copy of the task has begun another transaction, which must be fenced."""
    cause = ended.cause
    nothing_open = isinstance(cause, BrokerError) and cause.code == ErrorCode.INVALID_TXN_STATE
    return ended.outcome is TransactionOutcome.ABORTED or nothing_open


def _fence(client: Client, transactional_ids: Collection[str]) -> list[KafkaError]:
    """Fence the producers of these ids and abort their transactions, in parallel; return the failures."""
    deadline = _deadline(client)
    with ThreadPoolExecutor(_MAX_CONCURRENT) as threads:
        fenced = [
            threads.submit(init_producer_id, client, transactional_id, _TRANSACTION_TIMEOUT_MS, deadline)
            for transactional_id in transactional_ids
        ]
    errors = [error for future in fenced if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, KafkaError):
            raise error
    return [error for error in errors if isinstance(error, KafkaError)]


def _deadline(client: Client) -> Deadline:
    """Return the deadline of one of four steps: fence the write, abort, list, fence the others.

    Each has a third of `default.api.timeout.ms`: a failed write should not take much longer than one call.
    """
    return client.deadline(client.config.default_api_timeout_ms // 3)
