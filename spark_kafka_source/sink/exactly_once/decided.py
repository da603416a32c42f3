"""Transactions of a decided batch: committed as they were written, unless brokers have timed them out since.

Used by a task for its own transaction, and by the driver for all of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.cluster.client import Client
from protocol.group.committed_offsets import fetch_offsets
from protocol.transaction.end_transaction import TransactionOutcome, end_transactions
from spark_kafka_source.sink.exactly_once.ledger import Ledger
from spark_kafka_source.sink.exactly_once.query import StreamBatch


def missing_tasks(client: Client, batch: StreamBatch, ledger: Ledger, tasks: Iterable[int]) -> list[int]:
    """Commit what was decided of `tasks`, and return those whose rows are not there.

    Brokers do not say whether a transaction was committed once its transactional id has a later one. Then its marker
    tells. No task of these may have a transaction open: brokers do not tell its marker until that has ended.

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
