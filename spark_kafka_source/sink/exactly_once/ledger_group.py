"""Read and rewrite a query's ledger in Kafka, in a transaction of the query's own transactional id.

A rewrite reads, changes and writes the ledger exclusively: InitProducerId fences concurrent writers, so only the last
one commits, and its change applies to the ledger that it has read. Runs in tasks (takeover) and on the driver
(decision).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from protocol.admin.transactions import list_transactions
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, TransactionEffect, broker_error, error_row
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, UnsupportedVersion, UsageError
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.transaction.coordinator import add_offsets, init_producer_id
from protocol.transaction.end_transaction import TransactionOutcome, end_transaction
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.exactly_once.ledger import Ledger, from_offsets, to_offsets
from spark_kafka_source.sink.exactly_once.query import Query

L = TypeVar("L", bound="Ledger | None")

# The offsets of a committed transaction become visible with a delay.
_VISIBLE_AFTER_MS = 10_000
_POLL_S = 0.1


def read_ledger(client: Client, query: Query, deadline: Deadline, *, require_stable: bool = False) -> Ledger | None:
    """Return the last committed ledger. `require_stable`: wait until no transaction is rewriting it.

    None if there is none, or if the user lacks Describe on its topic: the coordinator omits such offsets.
    """
    return from_offsets(fetch_offsets(client, query.transactional_id, None, deadline, require_stable=require_stable))


def read_written_ledger(client: Client, query: Query, deadline: Deadline, *, require_stable: bool = False) -> Ledger:
    """Return a ledger that was written before, as `read_ledger`. Raises `UsageError` if it cannot be read."""
    visible_by = Deadline.after_ms(_VISIBLE_AFTER_MS, client.clock)
    while (ledger := read_ledger(client, query, deadline, require_stable=require_stable)) is None:
        if visible_by.passed:
            raise UsageError(
                f"the ledger of {query.transactional_id} was deleted, or the user may not read it. It says which batch "
                "was written last. Give the user Read on the topic that the query wrote to first. If that topic or the "
                "group was deleted, or the query was idle for longer than offsets.retention.minutes, set a "
                f"transactionalIdPrefix other than {query.prefix}; the rows of a batch that the query could not "
                "complete may then be in Kafka twice."
            )
        client.clock.sleep_s(_POLL_S)
    return ledger


def _is_written(client: Client, query: Query, deadline: Deadline) -> bool:
    """Return True if the ledger was written before: every task writes it before its first transaction.

    False before Kafka 3.0, which does not list transactional ids.
    """
    with suppress(UnsupportedVersion):
        return bool(list_transactions(client, deadline, prefix=query.task_prefix))
    return False


def rewrite_ledger(
    client: Client,
    query: Query,
    change: Callable[[Ledger | None], L],
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    fence_first: bool = False,
) -> L:
    """Change the ledger in one try, and return it.

    This process remembers the identity of its last write, and uses it again without InitProducerId until it is fenced.

    `change`: returns the new ledger, or the same one to write nothing. After an error the caller retries with the same
    `change`, which may then get a newer ledger.
    `fence_first`: fence all other writers and read the ledger before `change` is called, so that it may act on the
    ledger.
    Raises `UsageError`: a ledger was written that cannot be read. `KafkaError`: as `change`; or a retriable error if
    another writer interfered, or if the outcome is unknown. The next try reads the ledger.
    """
    # The key has the process id, because a forked child must not use its parent's producer identity.
    key = (os.getpid(), query)
    remembered: tuple[TransactionalIdentity, Ledger | None] | None = PROCESS.ledger_identities.pop(key, None)
    if remembered is None or fence_first:
        identity = init_producer_id(client, query.transactional_id, transaction_timeout_ms, deadline)
        before = read_ledger(client, query, deadline, require_stable=True)
        if before is None and _is_written(client, query, deadline):
            before = read_written_ledger(client, query, deadline)
    else:
        identity, before = remembered
    after = change(before)
    if after is None or after == before:
        return after
    offsets = to_offsets(after, len(client.topic(after.topic, deadline).partitions))
    try:
        add_offsets(client, identity, query.transactional_id, offsets, deadline)
    except BrokerError as error:
        if error_row(error.code).transaction_effect in (TransactionEffect.FENCED, TransactionEffect.NEEDS_PRODUCER_ID):
            raise _contended(query, error) from error
        # Else tasks would wait for the end of this transaction until it times out.
        end_transaction(client, identity, commit=False, deadline=deadline)
        raise
    ended = end_transaction(client, identity, commit=True, deadline=deadline)
    if ended.outcome is not TransactionOutcome.COMMITTED:
        raise _contended(query, ended.cause) from ended.cause
    if not ended.repeated:  # else the first request may still be in flight, and end the next transaction, too
        PROCESS.ledger_identities[key] = ended.identity, after
    return after


def _contended(query: Query, cause: KafkaError | None) -> BrokerError:
    why = "" if cause is None else f" ({cause})"
    return broker_error(ErrorCode.CONCURRENT_TRANSACTIONS, f"the ledger of {query.transactional_id}{why}")
