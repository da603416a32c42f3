"""A start of a query takes over: from now on it alone writes, and what the one before left open is settled.

A task of a start that finds another one in the ledger does this, or waits for a task that does (`turn`), before it
touches any other transaction: from then on no driver of an older start can decide anything, so what it has decided
does not change any more. Runs in the
executors; whether a newer start has come the driver asks, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from protocol.admin.transactions import describe_transactions
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, ProducerFenced, TransportError, UnsupportedVersion, UsageError
from protocol.transaction.end_transaction import end_transactions
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.ledger_group import read_ledger, rewrite_ledger
from spark_kafka_source.sink.exactly_once.open_transactions import open_transactions
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch
from spark_kafka_source.sink.exactly_once.turn import Holder, TakeOverTurn

log = logging.getLogger(__name__)

# Of a transactional id: any other state means that its producer is about to begin a transaction, or has one.
_AT_REST = ("CompleteCommit", "CompleteAbort")


def ledger_of_start(
    client: Client, batch: StreamBatch, topic: str | None, transaction_timeout_ms: int, deadline: Deadline
) -> Ledger | None:
    """The ledger, once it is this start's. `topic` is to hold its keys, if there is none yet; None: then there is none.

    Raises `ProducerFenced`, `UsageError` for a checkpoint that was set back, and what requests to brokers do.
    """

    def begin(before: Ledger | None) -> Ledger:
        if before is None:
            assert topic is not None
            return Ledger(topic, (batch.start_id,))
        require_newest(before, batch)
        if before.start_id == batch.start_id:
            return before
        _require_not_set_back(before, batch)
        _settle(client, batch.query, before, deadline)
        return before.started(batch.start_id)

    def seen() -> Ledger | None:
        ledger = read_ledger(client, batch.query, deadline)
        if ledger is not None:
            require_newest(ledger, batch)
            if ledger.start_id == batch.start_id and ledger.batch_id > batch.batch_id:
                raise _too_late(ledger, batch)
        return ledger

    turn: TakeOverTurn | None = None

    def attempt() -> Ledger | None:
        nonlocal turn
        has_come = False
        while True:
            # Read after the turn has come, too: the producer is at rest again when another task has taken over.
            ledger = seen()
            if ledger.start_id == batch.start_id if ledger is not None else topic is None:
                return ledger
            if has_come:
                return rewrite_ledger(client, batch.query, begin, transaction_timeout_ms, deadline, anew=True)
            turn = turn or TakeOverTurn(partial(_holder, client, batch.query, deadline), deadline)
            if not (has_come := turn.has_come()):
                turn.wait()

    return client.retrying(f"ledger of {batch.query.transactional_id}", attempt, deadline)


def _holder(client: Client, query: Query, deadline: Deadline) -> Holder:
    try:
        found = describe_transactions(client, [query.transactional_id], deadline).get(query.transactional_id)
    except UnsupportedVersion:
        found = None
    if found is None:
        return Holder(None, is_at_rest=True)
    return Holder(found.identity, is_at_rest=found.state in _AT_REST)


def require_not_decided(client: Client, batch: StreamBatch, seen: Ledger) -> None:
    """Called by a task that has its producer id, to look once more at the ledger, which was as `seen` before.

    Raises `ProducerFenced` if a newer start has come since, or the batch was decided with another attempt of the task:
    a transaction that this one began would stay open until it is timed out.
    """
    deadline, what = client.deadline(), f"ledger of {batch.query.transactional_id}"
    ledger = client.retrying(what, lambda: read_ledger(client, batch.query, deadline), deadline)
    if ledger is None:
        return
    require_newest(ledger, batch)
    # The ledger may also be older than `seen`, or newer by the batch before: a commit is visible some time after it.
    if ledger.start_id == batch.start_id and ledger.batch_id >= batch.batch_id and ledger != seen:
        raise _too_late(ledger, batch)


def _too_late(ledger: Ledger, batch: StreamBatch) -> ProducerFenced:
    return ProducerFenced(
        f"this attempt of a task comes too late: batch {batch.batch_id} of the query {batch.query.query_id} was "
        f"decided without it, and the query has written up to batch {ledger.batch_id}"
    )


def require_newest(ledger: Ledger, batch: StreamBatch) -> None:
    """Raises `ProducerFenced` if there is a newer start than that of `batch`."""
    if ledger.is_superseded(batch.start_id):
        raise ProducerFenced(
            f"batch {batch.batch_id} is fenced: the query {batch.query.query_id} was started again elsewhere, and that "
            f"start writes under transactionalIdPrefix {batch.query.prefix} now. What this one has decided is "
            "committed; nothing else of it can be read. End it, or give it a checkpoint of its own."
        )


def _require_not_set_back(ledger: Ledger, batch: StreamBatch) -> None:
    """Spark repeats the last batch of a query, and none before it. Raises `UsageError`.

    To the ledger an older start that was at work while this one planned its first batch looks the same.
    """
    if ledger.batch_id > batch.batch_id:
        raise UsageError(
            f"this is batch {batch.batch_id} of the query {batch.query.query_id}, which has written up to batch "
            f"{ledger.batch_id} before. If the query ran elsewhere until now, or still runs, end it there and start it "
            "again: every row comes once. Otherwise its checkpoint was set back, perhaps to a copy of earlier, and "
            f"which rows are there cannot be told: set a transactionalIdPrefix other than {batch.query.prefix} to "
            f"write from batch {batch.batch_id} on again, or begin with a new checkpoint where it is to go on."
        )


@contextmanager
def told_if_superseded(client: Client, batch: StreamBatch) -> Iterator[None]:
    """An error in this block is `ProducerFenced` if a newer start has come: that is why, and it says so.

    So is a deadline that has passed: for a driver that stood still that long.
    """
    try:
        yield
    except KafkaError:
        with suppress(BrokerError, TransportError):  # the first error says more
            if (ledger := read_ledger(client, batch.query, client.deadline())) is not None:
                require_newest(ledger, batch)
        raise


def _settle(client: Client, query: Query, ledger: Ledger, deadline: Deadline) -> None:
    """Ends what the start before left open: commits what was decided, and aborts the rest."""
    decided = query.identities(ledger.transactions)
    end_transactions(client, decided, commit=True, deadline=deadline, asked_before=True)
    left = [each for each in open_transactions(client, query.task_prefix, deadline) if each not in decided]
    # If it has changed, another task of this start was quicker, and some of these may be its own.
    if left and read_ledger(client, query, deadline) == ledger:
        log.info("%s: %d transactions of an earlier start are aborted", query.transactional_id, len(left))
        end_transactions(client, left, commit=False, deadline=deadline, asked_before=True)
