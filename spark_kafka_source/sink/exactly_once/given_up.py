"""A batch write that has failed: nobody comes back to it, so nobody may begin a transaction for it any more.

Spark kills the tasks beside one that fails, some seconds later, and what they had open then would hold up readers until
it is timed out. So the driver takes the write's own transactional id before it fences the tasks that it finds, and a
task that has its producer id looks whether that was taken: either it sees it, or it is fenced (unless its coordinator
moves in the moment in which the driver looks). Brokers before Kafka 3.0 cannot tell (KIP-664): there a task that begins
later goes on, and what it leaves open is timed out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.broker_errors import ErrorCode
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import BrokerError, KafkaError, ProducerFenced, UnsupportedVersion
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.end_transaction import EndedTransaction, Outcome, end_transactions
from protocol.transaction.identity import TransactionalIdentity
from spark_kafka_source.sink.exactly_once.query import Query

# No transaction is begun under what the driver takes, and this is allowed everywhere.
_TRANSACTION_TIMEOUT_MS = 1_000
_AT_ONCE = 16


def give_up(
    client: Client, write: Query, prepared: Collection[TransactionalIdentity], unheard_tasks: Iterable[int]
) -> None:
    """Aborts what tasks have `prepared`, and whatever there is of tasks that have sent no message.

    Runs on the driver. Does all that can be done, then raises the first `KafkaError`.
    """
    failures = _fence(client, [write.transactional_id])
    ended = end_transactions(client, prepared, commit=False, deadline=_deadline(client))
    over = {identity.transactional_id for identity, each in ended.items() if _is_over(each)}
    try:
        left = {
            each.transactional_id for each in list_transactions(client, _deadline(client), prefix=write.task_prefix)
        }
    except KafkaError:
        left = {each.transactional_id for each in prepared} | {write.task(task) for task in unheard_tasks}
    for failure in failures + _fence(client, left - over):
        raise failure


def require_not_given_up(client: Client, write: Query, deadline: Deadline) -> None:
    """For a task that has its producer id. Raises `ProducerFenced`, and what requests to brokers do."""
    try:
        given_up = describe_transactions(client, [write.transactional_id], deadline)
    except UnsupportedVersion:
        return
    if given_up:
        raise ProducerFenced(f"the write {write.transactional_id} was given up, since another task of it has failed")


def _is_over(ended: EndedTransaction) -> bool:
    """Not when a late copy of the task has begun another one: that is to be fenced."""
    cause = ended.cause
    nothing_open = isinstance(cause, BrokerError) and cause.code == ErrorCode.INVALID_TXN_STATE
    return ended.outcome is Outcome.ABORTED or nothing_open


def _fence(client: Client, transactional_ids: Collection[str]) -> list[KafkaError]:
    """Whoever has these, and aborts what is open; what went wrong. One that takes long holds up no other."""
    deadline = _deadline(client)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        fenced = [
            threads.submit(init_producer_id, client, each, _TRANSACTION_TIMEOUT_MS, deadline)
            for each in transactional_ids
        ]
    return [error for each in fenced if isinstance(error := each.exception(), KafkaError)]


def _deadline(client: Client) -> Deadline:
    """Of one of four steps: who waits for a write that has failed should not wait for much longer."""
    return client.deadline(client.config.default_api_timeout_ms // 3)
