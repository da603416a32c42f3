"""Find open transactions at their coordinators, and commit those of a decided batch.

Brokers before Kafka 3.0 lack the requests (KIP-664): the state of transactions is unknown there.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import UnsupportedVersion
from protocol.group.commits.committed_offsets import fetch_offsets
from protocol.transaction.end_transaction import TransactionOutcome, end_transactions
from protocol.transaction.states import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.query import StreamBatch

_ONGOING = "Ongoing"


def list_open_transactions(client: Client, prefix: str, deadline: Deadline) -> list[TransactionalIdentity]:
    """Return the open transactions whose transactional id begins with `prefix`."""
    try:
        transactions = list_transactions(client, deadline, prefix=prefix, states=[_ONGOING])
        return _ongoing(client, [transaction.transactional_id for transaction in transactions], deadline)
    except UnsupportedVersion:
        return []


def describe_open_transactions(
    client: Client, transactional_ids: Iterable[str], deadline: Deadline
) -> set[TransactionalIdentity] | None:
    """Return the open transactions of these ids; None if brokers lack the request."""
    try:
        return set(_ongoing(client, transactional_ids, deadline))
    except UnsupportedVersion:
        return None


def _ongoing(client: Client, transactional_ids: Iterable[str], deadline: Deadline) -> list[TransactionalIdentity]:
    descriptions = describe_transactions(client, transactional_ids, deadline).values()
    return [transaction.identity for transaction in descriptions if transaction.state == _ONGOING]


def commit_decided(client: Client, batch: StreamBatch, ledger: Ledger, tasks: Iterable[int]) -> list[int]:
    """Commit the decided transactions of `tasks`, and return the tasks whose rows are missing.

    Once a transactional id has a later transaction, brokers no longer report the outcome of an earlier one. Then the
    task's marker does. No later transaction of these tasks may be open, since the request for the marker waits for its
    end. Callers have taken over, which ends those of earlier starts, and have not begun their own.

    Raises `BrokerError` or `DeadlineExceeded`.
    """
    query = batch.query
    decided = {task: ledger.transactions[task] for task in tasks if task in ledger.transactions}
    identities = dict(zip(decided, query.identities(decided), strict=True))
    ended = end_transactions(client, identities.values(), commit=True, deadline=client.deadline(), maybe_ended=True)

    def is_committed(task: int) -> bool:
        if ended[identities[task]].outcome is TransactionOutcome.COMMITTED:
            return True
        markers = fetch_offsets(client, query.task(task), [ledger.marker_key], client.deadline())
        return ledger.marker_key in markers and markers[ledger.marker_key].offset > batch.batch_id

    return [task for task in decided if not is_committed(task)]
