"""A batch write that has failed: nobody comes back to it, so nobody may begin a transaction for it any more.

Spark kills the tasks beside one that fails, some seconds later, and what they had open then would hold up readers until
it is timed out. So the driver takes the write's own transactional id before it fences the tasks that it finds, and a
task that has its producer id looks whether that was taken: either it sees it, or it is fenced. Brokers before Kafka 3.0
cannot tell (KIP-664): there such a transaction stays open until it is timed out.
"""

from __future__ import annotations

from collections.abc import Collection

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import ProducerFenced, UnsupportedVersion
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.end_transaction import end_transactions
from protocol.transaction.identity import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.query import Query

# No transaction is begun under what the driver takes, and this is allowed everywhere.
_TRANSACTION_TIMEOUT_MS = 1_000


def give_up(client: Client, write: Query, prepared: Collection[TransactionalIdentity], deadline: Deadline) -> None:
    """Aborts what tasks have `prepared`, and whatever else there is of `write`.

    Runs on the driver. Raises `KafkaError`.
    """
    init_producer_id(client, write.transactional_id, _TRANSACTION_TIMEOUT_MS, deadline)
    end_transactions(client, prepared, commit=False, deadline=deadline)
    over = {each.transactional_id for each in prepared}
    try:
        found = list_transactions(client, deadline, prefix=write.task_prefix)
    except UnsupportedVersion:
        return
    for each in found:
        if each.transactional_id not in over:
            init_producer_id(client, each.transactional_id, _TRANSACTION_TIMEOUT_MS, deadline)


def require_not_given_up(client: Client, write: Query, deadline: Deadline) -> None:
    """For a task that has its producer id. Raises `ProducerFenced`, and what requests to brokers do."""
    try:
        given_up = describe_transactions(client, [write.transactional_id], deadline)
    except UnsupportedVersion:
        return
    if given_up:
        raise ProducerFenced(f"the write {write.transactional_id} was given up, since another task of it has failed")
