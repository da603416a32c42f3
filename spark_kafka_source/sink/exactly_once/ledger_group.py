"""A query's ledger in Kafka: read, and rewritten in a transaction of the query's own id.

To rewrite is to read, to change and to write while nobody else does: InitProducerId fences whoever is about to, so of
several only the last one commits, and what it has changed is what it has read. Runs in tasks (a start takes over) and
in the driver (a batch is decided).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from protocol.broker_errors import ErrorCode, TransactionEffect, broker_error, error_row
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError
from protocol.group.committed_offsets import fetch_offsets
from protocol.transaction.coordinator import add_offsets, init_producer_id
from protocol.transaction.end_transaction import TransactionOutcome, end_transaction
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.ledger import Ledger, from_offsets, to_offsets
from spark_kafka_source.sink.exactly_once.query import Query

L = TypeVar("L", bound="Ledger | None")

# By process, since a forked child is another producer.
_held: dict[tuple[int, Query], tuple[TransactionalIdentity, Ledger | None]] = {}


def read_ledger(client: Client, query: Query, deadline: Deadline, *, settled: bool = False) -> Ledger | None:
    """The ledger as it was committed last. `settled`: not while somebody rewrites it, who may be dead."""
    return from_offsets(fetch_offsets(client, query.transactional_id, None, deadline, require_stable=settled))


def rewrite_ledger(
    client: Client,
    query: Query,
    change: Callable[[Ledger | None], L],
    transaction_timeout_ms: int,
    deadline: Deadline,
    *,
    anew: bool = False,
) -> L:
    """What `change` makes of the ledger, committed; if it changes nothing, what is there, with nobody writing.

    One try. Who has written the ledger last still has the identity under which it is written next: if nobody else has
    come since, nothing need be asked before. `anew`: everybody else is fenced, and the ledger is read, before `change`
    is called: which may then act on what it is given.

    Raises what `change` does, and a retriable error when another has come in between, or when it is not known whether
    this one was committed: the next try reads it.
    """
    key = (os.getpid(), query)
    held = _held.pop(key, None)
    if held is None or anew:
        identity = init_producer_id(client, query.transactional_id, transaction_timeout_ms, deadline)
        before = read_ledger(client, query, deadline, settled=True)
    else:
        identity, before = held
    after = change(before)
    if after is None or after == before:
        return after
    offsets = to_offsets(after, len(client.topic(after.topic, deadline).partitions))
    try:
        add_offsets(client, identity, query.transactional_id, offsets, deadline)
    except BrokerError as error:
        if error_row(error.code).transaction_effect in (TransactionEffect.FENCED, TransactionEffect.NEEDS_PRODUCER_ID):
            raise _contended(query, error) from error
        raise
    ended = end_transaction(client, identity, commit=True, deadline=deadline)
    if ended.outcome is not TransactionOutcome.COMMITTED:
        raise _contended(query, ended.cause) from ended.cause
    if not ended.repeated:  # else that request may still be on its way, and end the next transaction, too
        _held[key] = ended.identity, after
    return after


def _contended(query: Query, cause: KafkaError | None) -> BrokerError:
    return broker_error(ErrorCode.CONCURRENT_TRANSACTIONS, f"the ledger of {query.transactional_id} ({cause})")
