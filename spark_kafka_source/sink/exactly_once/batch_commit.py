"""How the driver ends a batch whose tasks have all written: it decides in the ledger, then commits every transaction.

The decision is what makes a batch come to be: before it, all is aborted and written anew; after it, whatever happens,
the transactions it names are committed, by this start of the query or the next. A batch write is in no ledger, since
nobody would come back to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from pyspark.sql.datasource import WriterCommitMessage

from protocol.cluster.client import Client, listed
from protocol.errors import KafkaError, OutcomeUnknown
from protocol.transaction.end_transaction import Outcome, end_transactions
from protocol.transaction.identity import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.given_up import give_up
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.ledger_group import read_ledger, rewrite_ledger
from spark_kafka_source.sink.exactly_once.open_transactions import no_longer_open, open_transactions
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch
from spark_kafka_source.sink.exactly_once.start import require_newest, told_if_superseded
from spark_kafka_source.sink.exactly_once.task_writer import PreparedWrite

log = logging.getLogger(__name__)

L = TypeVar("L", bound="Ledger | None")


def commit_batch(client: Client, messages: Sequence[WriterCommitMessage | None], transaction_timeout_ms: int) -> None:
    """Makes what the tasks have written readable.

    Raises `KafkaError`: before the decision nothing of the batch can be read, and it is written again; after it, the
    message says that the next start goes on with it.
    """
    prepared = [message for message in messages if isinstance(message, PreparedWrite)]
    identities = _identities(prepared)
    if not prepared or not prepared[0].batch:
        _require_open(client, identities)
        _commit(client, identities, "what was committed of this write stays, and the rest is gone")
        return
    batch = prepared[0].batch
    decided_task_count = next(
        (each.decided_task_count for each in prepared if each.decided_task_count is not None), None
    )
    if decided_task_count not in (None, len(messages)):
        raise KafkaError(
            f"batch {batch.batch_id} was decided with {decided_task_count} tasks by an earlier start of the query, and "
            f"has {len(messages)} now: which rows are missing cannot be told. Run it with as many tasks as before; "
            "after this batch their number may change."
        )
    if not identities:
        return
    with told_if_superseded(client, batch):
        _require_open(client, identities)
        _decide(client, prepared, batch, transaction_timeout_ms)
        then = f"batch {batch.batch_id} is decided: start the query again, and what is missing comes"
        _commit(client, identities, then)


def abort_batch(
    client: Client,
    batch_write: Query | None,
    messages: Sequence[WriterCommitMessage | None],
    transaction_timeout_ms: int,
) -> None:
    """Aborts what tasks have written of a batch that is not decided, so that no reader waits for it.

    Of a stream one message tells which query it is, so what tasks without one have left (they were killed) is aborted,
    too. Raises nothing: what stays open ends when the query is started again, or is timed out.
    """
    prepared = [message for message in messages if isinstance(message, PreparedWrite)]
    told = _identities(prepared)
    try:
        if batch_write is not None:
            unheard = [task for task, message in enumerate(messages) if message is None]
            give_up(client, batch_write, told, unheard)
        elif prepared and (batch := prepared[0].batch) is not None:
            # Before the look at the ledger: if this start is the newest then, all of them are its own.
            left = {*told, *open_transactions(client, batch.query.task_prefix, client.deadline())}
            left = _undecided(client, batch, told, left, transaction_timeout_ms)
            end_transactions(client, left, commit=False, deadline=client.deadline())
    except KafkaError as error:
        log.warning(
            "what was written may stay open until it times out%s: %s",
            "" if batch_write is not None else ", or the query starts again",
            client.words(error),
        )


def _undecided(
    client: Client,
    batch: StreamBatch,
    told: Collection[TransactionalIdentity],
    left: Collection[TransactionalIdentity],
    transaction_timeout_ms: int,
) -> set[TransactionalIdentity]:
    """Of the transactions that tasks of `batch` have `told`, and of all `left` open if its start is the newest."""
    ledger = read_ledger(client, batch.query, client.deadline())
    if ledger is None or not ledger.is_superseded(batch.start_id):
        # A decision of this driver may be on its way still.
        ledger = _rewritten(client, batch, lambda before: before, transaction_timeout_ms, anew=True)
    if ledger is None:
        return set(told)
    own = left if ledger.start_id == batch.start_id else told
    return set(own).difference(batch.query.identities(ledger.transactions))


def _identities(prepared: Sequence[PreparedWrite]) -> list[TransactionalIdentity]:
    """Of the transactions that there are."""
    return [
        identity
        for each in prepared
        if each.identity is not None
        for identity in each.query.identities({each.task: each.identity})
    ]


def _require_open(client: Client, identities: Sequence[TransactionalIdentity]) -> None:
    """Raises `KafkaError` if one cannot be committed any more: the others must not be, either."""
    over = [each.transactional_id for each in no_longer_open(client, identities, client.deadline())]
    if over:
        raise KafkaError(
            f"{len(over)} of {len(identities)} transactions are over before they could be committed: {listed(over)}. "
            "The broker times them out after transaction.timeout.ms, which must be more than a batch takes; or "
            "somebody has aborted them (pykafka txn abort); or the same query runs elsewhere, too. "
            "Nothing of this batch can be read; it is written again.",
            settings=("transaction.timeout.ms",),
        )


def _decide(client: Client, prepared: Sequence[PreparedWrite], batch: StreamBatch, transaction_timeout_ms: int) -> None:
    """Of a batch that is decided already it adds what was written again, in place of what was timed out."""
    transactions = {each.task: each.identity for each in prepared if each.identity is not None}

    def decided(before: Ledger | None) -> Ledger:
        if before is None:
            raise KafkaError(f"the ledger of {batch.query.transactional_id} is gone: was a topic or group deleted?")
        require_newest(before, batch)
        there = before.transactions if before.batch_id == batch.batch_id else {}
        return before.decided(batch.batch_id, len(prepared), {**there, **transactions})

    _rewritten(client, batch, decided, transaction_timeout_ms)


def _rewritten(
    client: Client,
    batch: StreamBatch,
    change: Callable[[Ledger | None], L],
    transaction_timeout_ms: int,
    *,
    anew: bool = False,
) -> L:
    deadline = client.deadline()
    return client.retrying(
        f"decision of batch {batch.batch_id}",
        lambda: rewrite_ledger(client, batch.query, change, transaction_timeout_ms, deadline, anew=anew),
        deadline,
    )


def _commit(client: Client, identities: Sequence[TransactionalIdentity], then: str) -> None:
    ended = end_transactions(client, identities, commit=True, deadline=client.deadline())
    lost = [each for each in ended.values() if each.outcome is not Outcome.COMMITTED]
    if lost:
        first = lost[0]
        raise OutcomeUnknown(
            f"{len(lost)} of {len(ended)} transactions could not be committed, the first of them {first.identity}: "
            f"{first.outcome.value} ({first.cause}). {then[0].upper()}{then[1:]}."
        ) from first.cause
