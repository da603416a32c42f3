"""Transactions from outside: which there are, what they hold up, and their end, as in Kafka's `TransactionsCommand`.

Runs wherever its caller does. Asks a transactional id's coordinator, every broker for its ids, or a partition's leader,
in the one retry loop. All raise `DeadlineExceeded` or `BrokerError`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.call import call, call_partitions
from protocol.cluster.client import TRANSACTION, Client, listed
from protocol.cluster.coordinators import transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import Corrupt
from protocol.kafka_terms import TopicPartition
from protocol.transaction.coordinator import init_producer_id
from protocol.transaction.identity import TransactionalIdentity
from protocol.wire.messages.m27_write_txn_markers import WRITE_TXN_MARKERS
from protocol.wire.messages.m61_describe_producers import DESCRIBE_PRODUCERS
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS
from protocol.wire.messages.m66_list_transactions import FIRST_WITH_DURATION, LIST_TRANSACTIONS
from protocol.wire.schema import Body

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence")
"""Kafka's words, of transactional ids."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""Where readers of committed records are held up. In the latter two it is decided, but not yet in every log."""


@dataclass(frozen=True)
class ListedTransaction:
    """`coordinator`: the broker that keeps it. `state`: one of `STATES`."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True)
class TransactionDescription:
    """`start_ms`: since 1970, None when no transaction is open. `partitions`: those that it holds up, also of
    `__consumer_offsets` where it commits offsets.
    """

    identity: TransactionalIdentity
    coordinator: int
    state: str
    timeout_ms: int
    start_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class OpenTransaction:
    """One that holds a partition up from `start_offset` on, as its leader knows it."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int


def list_transactions(
    client: Client,
    deadline: Deadline | None = None,
    *,
    prefix: str = "",
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    running_ms: int | None = None,
) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name; those in one of `states`, of one of `producer_ids`.

    `running_ms`: only transactions that began longer ago (since Kafka 3.8), and without `states`, that are open.
    """
    deadline = deadline or client.deadline()
    if running_ms is not None:
        states = states or OPEN_STATES
    body = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
    at_least = 0
    if running_ms is not None:
        body, at_least = {**body, "duration_filter": running_ms}, FIRST_WITH_DURATION
    found = [
        ListedTransaction(row["transactional_id"], broker.node_id, row["producer_id"], row["transaction_state"])
        for broker in client.metadata([], deadline).brokers.values()
        for row in call(client, LIST_TRANSACTIONS, body, deadline, to=broker, at_least=at_least)["transaction_states"]
        if row["transactional_id"].startswith(prefix)
    ]
    return sorted(found, key=lambda each: each.transactional_id)


def describe_transactions(
    client: Client, transactional_ids: Iterable[str], deadline: Deadline | None = None
) -> dict[str, TransactionDescription]:
    """By id; one request to each coordinator. Without those that a coordinator has never heard of, or has forgotten."""
    deadline = deadline or client.deadline()
    missing = {name: transaction_coordinator(name) for name in transactional_ids}
    what = f"DescribeTransactions of {listed(list(missing))}"
    found: dict[str, TransactionDescription] = {}

    def attempt() -> None:
        asked: dict[Broker, list[str]] = {}
        for name, key in missing.items():
            asked.setdefault(client.coordinator(key, deadline), []).append(name)
        bodies: dict[Broker, Body] = {broker: {"transactional_ids": names} for broker, names in asked.items()}
        replies, failure = client.ask_many(bodies, DESCRIBE_TRANSACTIONS, deadline, purpose=TRANSACTION)
        for broker, reply in replies.items():
            for row in reply["transaction_states"]:
                name, code = row["transactional_id"], row["error_code"]
                if code not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                    failure = broker_error(code, what, transactional_id=name)
                elif missing.pop(name, None) is not None and code == ErrorCode.NONE:
                    found[name] = _described(row, broker.node_id)
        if missing and failure is None:
            failure = Corrupt(f"{what}: the replies leave out {next(iter(missing))}")
        if failure is not None:
            for key in missing.values():
                client.forget_coordinator(key)
            raise failure

    client.retrying(what, attempt, deadline)
    return found


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
    """Aborts what is open, and fences its producer: whoever has this id must call `init_transactions` again.

    Raises TRANSACTIONAL_ID_NOT_FOUND rather than make a new one. A transaction that is decided already is waited for.
    """
    deadline = deadline or client.deadline()
    known = describe_transactions(client, [transactional_id], deadline).get(transactional_id)
    if known is None:
        what = f"abort of transactional id {transactional_id}"
        raise broker_error(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, what, transactional_id=transactional_id)
    return init_producer_id(client, transactional_id, known.timeout_ms, deadline)


def open_transactions(
    client: Client, partitions: Collection[TopicPartition], deadline: Deadline | None = None
) -> list[OpenTransaction]:
    """What holds these partitions up, as their leaders know it, the oldest of each first."""
    asked: dict[TopicPartition, dict[str, int]] = {key: {} for key in partitions}
    rows = call_partitions(client, DESCRIBE_PRODUCERS, {}, asked, deadline or client.deadline())
    found = [
        OpenTransaction(
            *key,
            each["current_txn_start_offset"],
            each["producer_id"],
            each["producer_epoch"],
            each["coordinator_epoch"],
            each["last_timestamp"],
        )
        for key, row in rows.items()
        for each in row["active_producers"]
        if each["current_txn_start_offset"] >= 0
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition, each.start_offset))


def abort_hanging(client: Client, hanging: OpenTransaction, deadline: Deadline | None = None) -> None:
    """Writes an abort into one partition, for a transaction that no coordinator knows of (any more).

    One that a coordinator does know is ended with `abort_transaction`: here it would be torn.
    """
    deadline = deadline or client.deadline()
    marker = {
        "producer_id": hanging.producer_id,
        "producer_epoch": hanging.producer_epoch,
        "transaction_result": False,
        # -1 of a producer that has never ended a transaction; no leader has an older coordinator than 0.
        "coordinator_epoch": max(0, hanging.coordinator_epoch),
        "topics": [{"name": hanging.topic, "partition_indexes": [hanging.partition]}],
    }

    leader, _ = client.leader(hanging.topic, hanging.partition, deadline)
    call(client, WRITE_TXN_MARKERS, {"markers": [marker]}, deadline, to=leader)
