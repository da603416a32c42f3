"""Which transactions are open: ListTransactions of every broker, DescribeTransactions of coordinators.

Brokers before Kafka 3.0 know neither request (KIP-664): there nothing is known to be open, nor to be over.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from protocol.admin.transactions import list_transactions
from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import TRANSACTION, Client
from protocol.cluster.coordinators import transaction_coordinator
from protocol.cluster.metadata import Broker
from protocol.errors import UnsupportedVersion
from protocol.transaction.identity import TransactionalIdentity
from protocol.wire.messages.m65_describe_transactions import DESCRIBE_TRANSACTIONS

_ONGOING = "Ongoing"


def open_transactions(client: Client, prefix: str, deadline: Deadline) -> list[TransactionalIdentity]:
    """Those whose transactional id begins with `prefix`."""
    try:
        listed = list_transactions(client, deadline, prefix=prefix, states=[_ONGOING])
    except UnsupportedVersion:
        return []
    return _ongoing(client, [each.transactional_id for each in listed], deadline)


def no_longer_open(
    client: Client, identities: Collection[TransactionalIdentity], deadline: Deadline
) -> list[TransactionalIdentity]:
    """Of `identities` those whose transaction is over, or another producer's by now."""
    try:
        still = _ongoing(client, [each.transactional_id for each in identities], deadline)
    except UnsupportedVersion:
        return []
    return [each for each in identities if each not in still]


def _ongoing(client: Client, names: Iterable[str], deadline: Deadline) -> list[TransactionalIdentity]:
    missing = dict.fromkeys(names)
    found: list[TransactionalIdentity] = []

    def attempt() -> list[TransactionalIdentity]:
        asked: dict[Broker, list[str]] = {}
        for name in missing:
            asked.setdefault(client.coordinator(transaction_coordinator(name), deadline), []).append(name)
        bodies = {broker: {"transactional_ids": ids} for broker, ids in asked.items()}
        replies, failure = client.ask_many(bodies, DESCRIBE_TRANSACTIONS, deadline, purpose=TRANSACTION)
        for row in (row for reply in replies.values() for row in reply["transaction_states"]):
            if row["error_code"] not in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
                failure = broker_error(row["error_code"], f"DescribeTransactions of {row['transactional_id']}")
                continue
            del missing[row["transactional_id"]]
            if row["transaction_state"] == _ONGOING:
                identity = (row["transactional_id"], row["producer_id"], row["producer_epoch"])
                found.append(TransactionalIdentity(*identity))
        if failure is not None:
            for name in missing:
                client.forget_coordinator(transaction_coordinator(name))
            raise failure
        return found

    return client.retrying("DescribeTransactions", attempt, deadline)
