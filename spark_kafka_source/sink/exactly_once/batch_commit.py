"""Commit a batch on the driver after all tasks have written: record the decision in the ledger, then commit.

The decision completes a batch. Before it, the transactions are aborted and the batch is written again. After it, the
transactions of the decision are always committed, by this start of the query or the next one. A batch write has no
ledger, since it is never resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from protocol.base.listing import listed
from protocol.cluster.client import Client
from protocol.errors import KafkaError, OutcomeUnknown
from protocol.transaction.end_transaction import TransactionOutcome, end_transactions
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.batch_write_end import abort_failed_write, fence_other_attempts
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.ledger_group import read_ledger, read_written_ledger, rewrite_ledger
from spark_kafka_source.sink.exactly_once.open_transactions import (
    commit_decided,
    describe_open_transactions,
    list_open_transactions,
)
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch
from spark_kafka_source.sink.exactly_once.takeover import report_fenced, require_newest
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite

log = logging.getLogger(__name__)

L = TypeVar("L", bound="Ledger | None")


def commit_batch(client: Client, messages: Sequence[WriterCommitMessage | None], transaction_timeout_ms: int) -> None:
    """Commit the transactions of the tasks.

    For a stream in this order: check that all transactions are open. Decide: a newer start would have fenced the
    decision. Abort open transactions of other attempts: before the decision they might be a newer start's. Commit.

    Raises `KafkaError`: before the decision: no record of the batch is visible, and it is written again. After it: the
    next start of the query completes the commit, as the message says.
    """
    prepared = [message for message in messages if isinstance(message, PreparedWrite)]
    if not prepared:
        return
    identities = _identities(prepared)
    batch = prepared[0].batch
    if batch is None:
        tasks_without = [write.task for write in prepared if write.identity is None]
        fence_other_attempts(client, prepared[0].query, identities, tasks_without)
        _require_open(client, prepared)
        _commit(client, identities, "the committed part of this write stays, and the rest is lost")
        return
    with report_fenced(client, batch):
        _require_same_tasks(client, batch, prepared, len(messages))
        leftover = _require_open(client, prepared)
        if identities:
            decide(client, prepared, batch, transaction_timeout_ms)
        elif leftover and (ledger := read_ledger(client, batch.query, client.deadline())) is not None:
            require_newest(ledger, batch)
        # This start was the newest after the check, so only its own attempts can have left these transactions.
        _abort_leftover(client, leftover)
        consequence = f"batch {batch.batch_id} is decided: start the query again to commit the rest"
        _commit(client, identities, consequence)


def abort_batch(
    client: Client,
    batch_write: Query | None,
    messages: Sequence[WriterCommitMessage | None],
    transaction_timeout_ms: int,
) -> None:
    """Abort the transactions of an undecided batch, so that readers need not wait for them.

    For a stream, one message suffices to find the query: transactions of killed tasks are aborted, too. Logs errors
    instead of raising them: remaining transactions end at the next start of the query, or time out.
    """
    prepared = [message for message in messages if isinstance(message, PreparedWrite)]
    reported = _identities(prepared)
    try:
        if batch_write is not None:
            silent_tasks = [task for task, message in enumerate(messages) if message is None]
            abort_failed_write(client, batch_write, reported, silent_tasks)
        elif prepared and (batch := prepared[0].batch) is not None:
            # List them before reading the ledger: if this start is the newest in it, all of them are its own.
            open_transactions = {*reported, *list_open_transactions(client, batch.query.task_prefix, client.deadline())}
            open_transactions = _undecided(client, batch, reported, open_transactions, transaction_timeout_ms)
            end_transactions(client, open_transactions, commit=False, deadline=client.deadline())
    except KafkaError as error:
        log.warning(
            "transactions may stay open until they time out%s: %s",
            "" if batch_write is not None else ", or the query starts again",
            client.format_error(error),
        )


def _undecided(
    client: Client,
    batch: StreamBatch,
    reported: Collection[TransactionalIdentity],
    open_transactions: Collection[TransactionalIdentity],
    transaction_timeout_ms: int,
) -> set[TransactionalIdentity]:
    """Return the undecided transactions: of all open ones if this start is the newest, else of the reported ones.

    Reported ones have epochs of this start, so no transaction of a newer one is ended.
    """
    ledger = read_ledger(client, batch.query, client.deadline())
    if ledger is None or not ledger.is_fenced(batch.start_id):
        # A decision of this driver may still be in flight.
        ledger = _rewrite(client, batch, lambda before: before, transaction_timeout_ms, fence_first=True)
    if ledger is None:
        return set(reported)
    candidates = open_transactions if ledger.start_id == batch.start_id else reported
    return set(candidates).difference(batch.query.identities(ledger.transactions))


def _identities(prepared: Sequence[PreparedWrite]) -> list[TransactionalIdentity]:
    """Return the identities of the prepared transactions."""
    return [
        identity
        for write in prepared
        if write.identity is not None
        for identity in write.query.identities({write.task: write.identity})
    ]


def _require_same_tasks(client: Client, batch: StreamBatch, prepared: Sequence[PreparedWrite], task_count: int) -> None:
    """Raise `KafkaError` if an earlier start decided the batch with another task count, and rows of it are missing.

    The task count changes with the number of cores and by adaptive query execution. If no row is missing, any count is
    correct, since no task writes.
    """
    decided_task_count = next(
        (write.decided_task_count for write in prepared if write.decided_task_count is not None), task_count
    )
    if decided_task_count == task_count:
        return
    missing = len(_identities(prepared))
    if not missing:
        ledger = read_written_ledger(client, batch.query, client.deadline())
        require_newest(ledger, batch)
        missing = len(commit_decided(client, batch, ledger, ledger.transactions))
    if missing:
        raise KafkaError(
            f"batch {batch.batch_id} was decided with {decided_task_count} tasks by an earlier start of the query, and "
            f"has {task_count} now. Brokers have timed out at least {missing} of its transactions, whose rows are "
            "unknown. Run the batch with as many tasks as before; later batches may have another number."
        )


def _require_open(client: Client, prepared: Sequence[PreparedWrite]) -> list[TransactionalIdentity]:
    """Raise `KafkaError` if a transaction has ended: then none may be committed.

    Returns open transactions of tasks without a prepared one, left by a killed or lost attempt.
    """
    identities = _identities(prepared)
    open_transactions = describe_open_transactions(
        client, [write.query.task(write.task) for write in prepared], client.deadline()
    )
    if open_transactions is None:
        return []
    ended = [identity.transactional_id for identity in identities if identity not in open_transactions]
    if ended:
        raise KafkaError(
            f"{len(ended)} of {len(identities)} transactions ended before they could be committed: {listed(ended)}. "
            "The broker times them out after transaction.timeout.ms, which must be longer than a batch takes; or "
            "they were aborted (pykafka txn abort); or the same query also runs elsewhere. "
            "No record of this batch is visible; it is written again.",
            settings=("transaction.timeout.ms",),
        )
    return [identity for identity in open_transactions if identity not in identities]


def _abort_leftover(client: Client, leftover: Sequence[TransactionalIdentity]) -> None:
    """Abort transactions of failed attempts, which delay readers of committed records."""
    ended = end_transactions(client, leftover, commit=False, deadline=client.deadline())
    for transaction in ended.values():
        if transaction.outcome is not TransactionOutcome.ABORTED:
            log.warning("%s may stay open until it times out: %s", transaction.identity, transaction.cause)


def decide(client: Client, prepared: Sequence[PreparedWrite], batch: StreamBatch, transaction_timeout_ms: int) -> None:
    """Record the decision; for a decided batch, replace transactions that timed out by those written again."""
    transactions = {write.task: write.identity for write in prepared if write.identity is not None}

    def with_decision(before: Ledger | None) -> Ledger:
        if before is None:
            raise KafkaError(
                f"the ledger of {batch.query.transactional_id} no longer exists: was a topic or group deleted?"
            )
        require_newest(before, batch)
        earlier = before.transactions if before.batch_id == batch.batch_id else {}
        return before.decided(batch.batch_id, len(prepared), {**earlier, **transactions})

    _rewrite(client, batch, with_decision, transaction_timeout_ms)


def _rewrite(
    client: Client,
    batch: StreamBatch,
    change: Callable[[Ledger | None], L],
    transaction_timeout_ms: int,
    *,
    fence_first: bool = False,
) -> L:
    deadline = client.deadline()
    return client.retrying(
        f"decision of batch {batch.batch_id}",
        lambda: rewrite_ledger(client, batch.query, change, transaction_timeout_ms, deadline, fence_first=fence_first),
        deadline,
    )


def _commit(client: Client, identities: Sequence[TransactionalIdentity], consequence: str) -> None:
    ended = end_transactions(client, identities, commit=True, deadline=client.deadline())
    uncommitted = [
        transaction for transaction in ended.values() if transaction.outcome is not TransactionOutcome.COMMITTED
    ]
    if uncommitted:
        first = uncommitted[0]
        raise OutcomeUnknown(
            f"{len(uncommitted)} of {len(ended)} transactions could not be committed, the first of them "
            f"{first.identity}: {first.outcome.value} ({first.cause}). {consequence[0].upper()}{consequence[1:]}."
        ) from first.cause
