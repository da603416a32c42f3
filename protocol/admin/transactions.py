"""List, describe and abort transactions, as Kafka's `TransactionsCommand` does.

Runs in the caller's thread. Sends requests to a transactional id's coordinator, to every broker, or to a partition's
leader, in the shared retry loop. All functions raise `DeadlineExceeded` or `BrokerError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.admin.resources import Operations, results_of_each
from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.call import call, call_partitions
from protocol.cluster.client import COORDINATOR, Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import BrokerError, Corrupt
from protocol.kafka_terms import TopicPartition
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.states import TransactionalIdentity
from protocol.wire.messages.m27_write_txn_markers import WRITE_TXN_MARKERS
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import FIRST_WITH_DURATION, LIST_TRANSACTIONS
from protocol.wire.parts import error_parts
from protocol.wire.schema import Body

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence")
"""Kafka's names of the states of a transactional id."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States that hold back last stable offsets. In the last two the outcome is decided, but not yet in every log."""


@dataclass(frozen=True)
class ListedTransaction:
    """A transactional id; `coordinator` is its broker, `state` one of `STATES`."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionDescription:
    """State and partitions of a transactional id.

    Attributes
    ----------
    coordinator
        The node id of its broker.
    state
        One of `STATES`.
    start_ms
        Start of the open transaction in milliseconds since 1970; None without one.
    partitions
        Partitions in the transaction; includes partitions of `__consumer_offsets` if it commits offsets.
    """

    identity: TransactionalIdentity
    coordinator: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class OpenTransaction:
    """An open transaction: a partition's last stable offset cannot pass its `start_offset`; reported by the leader."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int


@dataclass(frozen=True)
class ProducerState:
    """An idempotent or transactional producer, as a partition's leader knows it.

    Attributes
    ----------
    last_timestamp_ms
        Milliseconds since 1970.
    transaction_start_offset
        First offset of its open transaction; None without one.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int | None


# The timeout of an id that is created by fencing; a producer sets its own.
_FENCE_TIMEOUT_MS = 60_000


def list_transactions(
    client: Client,
    deadline: Deadline | None = None,
    *,
    prefix: str = "",
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    running_ms: int | None = None,
) -> list[ListedTransaction]:
    """Return the transactional ids of all brokers, sorted by name, as `Admin.list_transactions`."""
    deadline = deadline or client.deadline()
    if running_ms is not None:
        states = states or OPEN_STATES
    body = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
    at_least = 0
    if running_ms is not None:
        body, at_least = {**body, "duration_filter": running_ms}, FIRST_WITH_DURATION
    # By id: two brokers may list a transactional id while its coordinator moves.
    transactions = {
        row["transactional_id"]: ListedTransaction(
            row["transactional_id"], broker.node_id, row["producer_id"], row["transaction_state"]
        )
        for broker in client.metadata([], deadline).brokers.values()
        for row in call(client, LIST_TRANSACTIONS, body, deadline, to=broker, at_least=at_least)["transaction_states"]
        if row["transactional_id"].startswith(prefix)
    }
    return [transactions[name] for name in sorted(transactions)]


def describe_transactions(
    client: Client, transactional_ids: Iterable[str], deadline: Deadline | None = None
) -> dict[str, TransactionDescription]:
    """Describe transactional ids with one request per coordinator; the result lacks ids that no coordinator knows."""
    deadline = deadline or client.deadline()
    missing = {name: transaction_coordinator(name) for name in transactional_ids}
    operation = f"DescribeTransactions of {listed(list(missing))}"
    transactions: dict[str, TransactionDescription] = {}

    def attempt() -> None:
        ids_by_coordinator: dict[Broker, list[str]] = {}
        for name, key in missing.items():
            ids_by_coordinator.setdefault(client.coordinator(key, deadline), []).append(name)
        bodies: dict[Broker, Body] = {
            broker: {"transactional_ids": names} for broker, names in ids_by_coordinator.items()
        }
        replies, failure = client.ask_many(bodies, DESCRIBE_TRANSACTIONS, deadline, purpose=COORDINATOR)
        refusals: dict[str, BrokerError] = {}
        for broker, reply in replies.items():
            for row in reply["transaction_states"]:
                name, code = row["transactional_id"], row["error_code"]
                if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                    failure = refusals[name] = broker_error(code, operation, transactional_id=name)
                elif missing.pop(name, None) is not None and code == ErrorCode.NONE:
                    transactions[name] = _described(row, broker.node_id)
        if missing and failure is None:
            failure = Corrupt(f"{operation}: the replies leave out {next(iter(missing))}")
        if failure is not None:
            for name, key in missing.items():
                client.forget_coordinator(key, refusals.get(name))
            raise failure

    client.retrying(operation, attempt, deadline)
    return transactions


def _described(row: Mapping[str, Any], coordinator: int) -> TransactionDescription:
    started_ms = row["transaction_start_time_ms"]
    return TransactionDescription(
        TransactionalIdentity(row["transactional_id"], row["producer_id"], row["producer_epoch"]),
        coordinator,
        row["transaction_state"],
        row["transaction_timeout_ms"],
        started_ms if started_ms >= 0 else None,
        frozenset((topic["topic"], partition) for topic in row["topics"] for partition in topic["partitions"]),
    )


def abort_transaction(client: Client, transactional_id: str, deadline: Deadline | None = None) -> TransactionalIdentity:
    """Abort the open transaction of a transactional id, as `Admin.abort_transaction`; return the new identity."""
    deadline = deadline or client.deadline()
    transaction = describe_transactions(client, [transactional_id], deadline).get(transactional_id)
    if transaction is None:
        operation = f"abort of transactional id {transactional_id}"
        raise broker_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, operation, transactional_id=transactional_id)
    return init_producer_id(client, transactional_id, transaction.timeout_ms, deadline)


def open_transactions(
    client: Client, partitions: Collection[TopicPartition], deadline: Deadline | None = None
) -> list[OpenTransaction]:
    """Return the open transactions of partitions, as their leaders report them, oldest first per partition."""
    fields: dict[TopicPartition, dict[str, int]] = {key: {} for key in partitions}
    rows = call_partitions(client, DESCRIBE_PRODUCERS, {}, fields, deadline or client.deadline())
    transactions = [
        OpenTransaction(
            *key,
            producer["current_txn_start_offset"],
            producer["producer_id"],
            producer["producer_epoch"],
            producer["coordinator_epoch"],
            producer["last_timestamp"],
        )
        for key, row in rows.items()
        for producer in row["active_producers"]
        if producer["current_txn_start_offset"] >= 0
    ]
    return sorted(
        transactions, key=lambda transaction: (transaction.topic, transaction.partition, transaction.start_offset)
    )


def abort_hanging(client: Client, hanging: OpenTransaction, deadline: Deadline | None = None) -> None:
    """Write an abort marker to a partition, for a transaction that its coordinator does not know any more.

    For a transaction that a coordinator knows, call `abort_transaction`: this function would abort it in one partition
    only.
    """
    deadline = deadline or client.deadline()
    marker = {
        "producer_id": hanging.producer_id,
        "producer_epoch": hanging.producer_epoch,
        "transaction_result": False,
        # The epoch is -1 for a producer that has never ended a transaction; a coordinator's epoch is at least 0.
        "coordinator_epoch": max(0, hanging.coordinator_epoch),
        "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
    }
    operation = f"{WRITE_TXN_MARKERS.name} of {hanging.topic}-{hanging.partition}"

    def attempt() -> None:
        leader, _ = client.leader(hanging.topic, hanging.partition, deadline)
        reply = client.ask(leader, WRITE_TXN_MARKERS, {"markers": [marker]}, deadline)
        for part in error_parts(WRITE_TXN_MARKERS, reply):
            if part.code != ErrorCode.NONE:
                raise broker_error(part.code, f"{operation} at {leader}", api=WRITE_TXN_MARKERS.name, **part.context)

    client.retrying(operation, attempt, deadline, topics=[hanging.topic])


class TransactionOperations(Operations):
    """Transactions and producers of a cluster."""

    def list_transactions(
        self,
        *,
        prefix: str = "",
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        running_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> list[ListedTransaction]:
        """Return the transactional ids of all brokers, sorted by name.

        Parameters
        ----------
        prefix
            Start of the transactional ids.
        states
            States to include: "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort",
            "PrepareEpochFence"; empty for all.
        producer_ids
            Producer ids to include; empty for all.
        running_ms
            Minimum age of the transaction in milliseconds (since Kafka 3.8). Without `states` it selects open
            transactions: "Ongoing", "PrepareCommit", "PrepareAbort".
        """
        return list_transactions(
            self._client,
            self._deadline(timeout_ms),
            prefix=prefix,
            states=states,
            producer_ids=producer_ids,
            running_ms=running_ms,
        )

    def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionDescription]:
        """Describe transactional ids; the result lacks unknown ids."""
        return describe_transactions(self._client, transactional_ids, self._deadline(timeout_ms))

    def abort_transaction(self, transactional_id: str, *, timeout_ms: float | None = None) -> None:
        """Abort the open transaction of a transactional id, and fence its producer.

        The producer must call `init_transactions` again. If the transaction is already decided, waits for its
        completion.

        Raises
        ------
        BrokerError
            TRANSACTIONAL_ID_NOT_FOUND: the id is unknown; it is not created.
        """
        abort_transaction(self._client, transactional_id, self._deadline(timeout_ms))

    def fence_producers(
        self, transactional_ids: Iterable[str], *, timeout_ms: float | None = None
    ) -> dict[str, TransactionalIdentity]:
        """Fence the producers of transactional ids, abort their open transactions, and return the new identities.

        An unknown id is created, as by Java's `fenceProducers`.

        Raises
        ------
        AdminFailed
            Some ids were refused (TRANSACTIONAL_ID_AUTHORIZATION_FAILED, …).
        """
        return results_of_each(
            "InitProducerId",
            transactional_ids,
            self._deadline(timeout_ms),
            lambda name, deadline: init_producer_id(self._client, name, _FENCE_TIMEOUT_MS, deadline),
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        """Return the active producers of partitions, as their leaders know them (KIP-664, since Kafka 2.8).

        Raises
        ------
        TopicUnknown, DeadlineExceeded, BrokerError
            A partition is unknown, has no leader, or must not be read.
        """
        fields: dict[TopicPartition, dict[str, int]] = {key: {} for key in partitions}
        rows = call_partitions(self._client, DESCRIBE_PRODUCERS, {}, fields, self._deadline(timeout_ms))
        return {key: tuple(_producer(producer) for producer in row["active_producers"]) for key, row in rows.items()}


def _producer(row: Mapping[str, Any]) -> ProducerState:
    start = row["current_txn_start_offset"]
    return ProducerState(
        row["producer_id"],
        row["producer_epoch"],
        row["last_sequence"],
        row["last_timestamp"],
        row["coordinator_epoch"],
        start if start >= 0 else None,
    )
