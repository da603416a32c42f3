"""Takeover by a new start of a query: it becomes the only writer, and ends the transactions of the previous start.

A task that finds an older start in the ledger takes over, or waits for another task that does, before it begins a
transaction. Afterwards no driver of an older start can decide a batch, so earlier decisions are final. Runs on
executors; the driver also checks for a newer start.

A takeover fences one in progress, and tasks cannot communicate. So each task observes the producer that writes the
ledger. If the producer is idle, and still is after a random delay, the task takes over. Otherwise another task has
begun, or the driver of the older start is deciding: the task waits for a limited time, since that producer may be dead.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from protocol.admin.transactions import describe_transactions
from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import (
    BrokerError,
    DeadlineExceeded,
    KafkaError,
    ProducerFenced,
    TransportError,
    UnsupportedVersion,
    UsageError,
)
from protocol.transaction.end_transaction import end_transactions
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.ledger_group import read_ledger, read_written_ledger, rewrite_ledger
from spark_kafka_source.sink.exactly_once.open_transactions import list_open_transactions
from spark_kafka_source.sink.exactly_once.query import Query, StreamBatch

log = logging.getLogger(__name__)

# Other states of a transactional id mean that its producer has a transaction or is about to begin one.
_IDLE_STATES = ("CompleteCommit", "CompleteAbort")
_JITTER_S = 0.1
_INITIAL_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 16.0
_POLL_S = 0.2


@dataclass(frozen=True)
class LedgerProducer:
    """The producer that writes the ledger.

    `identity`: None before Kafka 3.0, where only delays keep tasks apart.
    `is_idle`: its last transaction is complete, and no other one has begun.
    """

    identity: TransactionalIdentity | None
    is_idle: bool


class TakeoverBackoff:
    """Decides when a task may take over. `describe_producer` sends the request."""

    def __init__(self, describe_producer: Callable[[], LedgerProducer], deadline: Deadline) -> None:
        self._describe_producer = describe_producer
        self._deadline = deadline
        self._backoff_s = _INITIAL_BACKOFF_S
        self._ledger_producer = describe_producer()
        if self._ledger_producer.is_idle:
            self._due_at_s = self._now_s() + random.uniform(0, _JITTER_S)  # noqa: S311
        else:
            self._due_at_s = self._next_attempt_s()

    def is_due(self) -> bool:
        """Return True if the task may take over now. After a failed takeover, the next attempt is due later."""
        if self._now_s() < self._due_at_s:
            return False
        before, self._ledger_producer = self._ledger_producer, self._describe_producer()
        self._due_at_s = self._next_attempt_s()
        # Neither idle nor changed: the task that began a takeover is dead or slow.
        return self._ledger_producer.is_idle or self._ledger_producer.identity == before.identity

    def wait(self) -> None:
        """Wait until the next attempt is due, or until the ledger should be read again. Raises `DeadlineExceeded`."""
        if self._deadline.passed:
            raise DeadlineExceeded(
                "another task of this start began to take over the query's ledger, and has not completed"
            )
        wait_s = min(self._due_at_s - self._now_s(), _POLL_S * random.uniform(0.5, 1))  # noqa: S311
        self._deadline.clock.sleep_s(min(wait_s, self._deadline.remaining_s()))

    def _next_attempt_s(self) -> float:
        """Return the time of the next attempt, by which another task should be done; the wait doubles each time."""
        wait_s = self._backoff_s * random.uniform(1, 2)  # noqa: S311
        self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)
        return self._now_s() + wait_s

    def _now_s(self) -> float:
        return self._deadline.clock.now_s()


def take_over(
    client: Client, batch: StreamBatch, topic: str | None, transaction_timeout_ms: int, deadline: Deadline
) -> Ledger | None:
    """Return the ledger after this start has taken over. A task calls it before InitProducerId for its own id.

    Only the task whose rewrite has added this start aborts, and only transactions listed in that rewrite: later ones
    may be those of other tasks of this start.

    `topic`: topic for the offsets of a new ledger; None: return None if there is no ledger.
    Raises `ProducerFenced`: there is a newer start, or the batch was decided without this attempt. `UsageError`: the
    checkpoint was reset to an earlier batch. `KafkaError`: a request failed.
    """
    undecided: list[TransactionalIdentity] = []

    def add_start(before: Ledger | None) -> Ledger:
        undecided.clear()
        if before is None and topic is None:  # there was one a moment ago
            before = read_written_ledger(client, batch.query, deadline)
        if before is None:
            assert topic is not None
            return Ledger(topic, (batch.start_id,))
        _require_not_passed(before, batch)
        if before.start_id == batch.start_id:
            return before
        _require_checkpoint_not_reset(before, batch)
        decided = batch.query.identities(before.transactions)
        end_transactions(client, decided, commit=True, deadline=deadline, maybe_ended=True)
        open_transactions = list_open_transactions(client, batch.query.task_prefix, deadline)
        undecided.extend(identity for identity in open_transactions if identity not in decided)
        return before.started(batch.start_id)

    def current_ledger() -> Ledger | None:
        ledger = read_ledger(client, batch.query, deadline)
        if ledger is not None:
            _require_not_passed(ledger, batch)
        return ledger

    backoff: TakeoverBackoff | None = None

    def attempt() -> Ledger | None:
        nonlocal backoff
        is_due = False
        while True:
            # Read it again when the attempt is due: another task may have taken over meanwhile.
            ledger = current_ledger()
            if ledger is None and topic is None:
                return None
            # If an earlier try of this task has added the start without knowing it, the transactions that it listed are
            # not aborted: meanwhile the driver of the earlier start may have decided them. They time out.
            if ledger is not None and ledger.start_id == batch.start_id:
                return ledger
            if is_due:
                ledger = rewrite_ledger(
                    client, batch.query, add_start, transaction_timeout_ms, deadline, fence_first=True
                )
                _abort_undecided(client, batch.query, undecided, deadline)
                return ledger
            backoff = backoff or TakeoverBackoff(partial(_ledger_producer, client, batch.query, deadline), deadline)
            if not (is_due := backoff.is_due()):
                backoff.wait()

    return client.retrying(f"ledger of {batch.query.transactional_id}", attempt, deadline)


def _ledger_producer(client: Client, query: Query, deadline: Deadline) -> LedgerProducer:
    try:
        transaction = describe_transactions(client, [query.transactional_id], deadline).get(query.transactional_id)
    except UnsupportedVersion:
        transaction = None
    if transaction is None:
        return LedgerProducer(None, is_idle=True)
    return LedgerProducer(transaction.identity, is_idle=transaction.state in _IDLE_STATES)


def require_not_decided(client: Client, batch: StreamBatch, former_ledger: Ledger) -> None:
    """Check the ledger again once a task has its producer id; `former_ledger` is the ledger before.

    Waits for a decision that is being written. An attempt that is too late would otherwise see the ledger before it,
    and leave a transaction open that only the next batch or a timeout ends.

    Raises `ProducerFenced`: there is a newer start, or the batch was decided with another attempt of the task: a
    transaction of this attempt would stay open until it times out.
    """
    deadline, operation = client.deadline(), f"ledger of {batch.query.transactional_id}"
    read = partial(read_written_ledger, client, batch.query, deadline, require_stable=True)
    ledger = client.retrying(operation, read, deadline)
    require_newest(ledger, batch)
    # The first look may have been at the ledger before the previous batch.
    if ledger.start_id == batch.start_id and ledger.batch_id >= batch.batch_id and ledger != former_ledger:
        raise _too_late(ledger, batch)


def _require_not_passed(ledger: Ledger, batch: StreamBatch) -> None:
    """Raise `ProducerFenced` if there is a newer start, or this one has decided a later batch."""
    require_newest(ledger, batch)
    if ledger.start_id == batch.start_id and ledger.batch_id > batch.batch_id:
        raise _too_late(ledger, batch)


def _too_late(ledger: Ledger, batch: StreamBatch) -> ProducerFenced:
    return ProducerFenced(
        f"this attempt of a task is too late: batch {batch.batch_id} of the query {batch.query.query_id} was "
        f"decided without it, and the query has written up to batch {ledger.batch_id}"
    )


def require_newest(ledger: Ledger, batch: StreamBatch) -> None:
    """Raise `ProducerFenced` if there is a newer start than that of `batch`."""
    if ledger.is_fenced(batch.start_id):
        raise ProducerFenced(
            f"batch {batch.batch_id} is fenced: the query {batch.query.query_id} was started again elsewhere, and that "
            f"start now writes under transactionalIdPrefix {batch.query.prefix}. Batches that this start has decided "
            "are committed; its other records are not visible. Stop it, or give it a separate checkpoint."
        )


def _require_checkpoint_not_reset(ledger: Ledger, batch: StreamBatch) -> None:
    """Raise `UsageError` if the batch is older than the last one: Spark repeats only the last batch.

    The same happens if an older start decided batches while this one planned its first batch.
    """
    if ledger.batch_id > batch.batch_id:
        raise UsageError(
            f"this is batch {batch.batch_id} of the query {batch.query.query_id}, which has written up to batch "
            f"{ledger.batch_id} before. If the query ran elsewhere until now, or still runs, stop it there and start "
            "it again: every row is written once. Otherwise its checkpoint was reset, perhaps to an earlier copy, and "
            f"the rows in Kafka are unknown: set a transactionalIdPrefix other than {batch.query.prefix} to "
            f"write from batch {batch.batch_id} on again, or use a new checkpoint with other starting offsets."
        )


@contextmanager
def report_fenced(client: Client, batch: StreamBatch) -> Iterator[None]:
    """Convert errors in the block to `ProducerFenced` if there is a newer start, which is their cause.

    This includes a passed deadline, as of a suspended driver.
    """
    try:
        yield
    except KafkaError:
        with suppress(BrokerError, TransportError):  # the first error is more useful
            if (ledger := read_ledger(client, batch.query, client.deadline())) is not None:
                require_newest(ledger, batch)
        raise


def _abort_undecided(
    client: Client, query: Query, undecided: Collection[TransactionalIdentity], deadline: Deadline
) -> None:
    """Abort the transactions that an earlier start has left open. Call it once the ledger names the new start.

    Until then a driver of an earlier start may fence the takeover in turn, and decide them.
    """
    if undecided:
        log.info("%s: %d transactions of an earlier start are aborted", query.transactional_id, len(undecided))
        end_transactions(client, undecided, commit=False, deadline=deadline, maybe_ended=True)
