"""Commit the transactions of a decided batch, and find those that timed out.

A task handles its own transaction, the driver those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.cluster.client import Client
from protocol.group.committed_offsets import fetch_offsets
from protocol.transaction.end_transaction import TransactionOutcome, end_transactions
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.query import StreamBatch


def missing_tasks(client: Client, batch: StreamBatch, ledger: Ledger, tasks: Iterable[int]) -> list[int]:
    """Commit the decided transactions of `tasks`, and return the tasks whose rows are missing.

    Once a transactional id has a later transaction, brokers no longer report the outcome of an earlier one. Then the
    task's marker does. None of the tasks may have an open transaction: it hides the marker.

    Raises
    ------
    BrokerError, DeadlineExceeded
    """
    query = batch.query
    decided = {task: ledger.transactions[task] for task in tasks if task in ledger.transactions}
    identities = dict(zip(decided, query.identities(decided), strict=True))
    ended = end_transactions(client, identities.values(), commit=True, deadline=client.deadline(), asked_before=True)

    def is_there(task: int) -> bool:
        if ended[identities[task]].outcome is TransactionOutcome.COMMITTED:
            return True
        markers = fetch_offsets(client, query.task(task), [ledger.marker_key], client.deadline())
        return ledger.marker_key in markers and markers[ledger.marker_key].offset > batch.batch_id

    return [task for task in decided if not is_there(task)]
