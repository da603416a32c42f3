"""Find open transactions at their coordinators.

Brokers before Kafka 3.0 lack the requests (KIP-664): the state of transactions is unknown there.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.admin.transactions import describe_transactions, list_transactions
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import UnsupportedVersion
from protocol.transaction.states import TransactionalIdentity

_ONGOING = "Ongoing"


def open_transactions(client: Client, prefix: str, deadline: Deadline) -> list[TransactionalIdentity]:
    """Return the open transactions whose transactional id begins with `prefix`."""
    try:
        listed = list_transactions(client, deadline, prefix=prefix, states=[_ONGOING])
        return _ongoing(client, [each.transactional_id for each in listed], deadline)
    except UnsupportedVersion:
        return []


def described_open(
    client: Client, transactional_ids: Iterable[str], deadline: Deadline
) -> set[TransactionalIdentity] | None:
    """Return the open transactions of these ids; None if brokers lack the request."""
    try:
        return set(_ongoing(client, transactional_ids, deadline))
    except UnsupportedVersion:
        return None


def _ongoing(client: Client, transactional_ids: Iterable[str], deadline: Deadline) -> list[TransactionalIdentity]:
    found = describe_transactions(client, transactional_ids, deadline).values()
    return [each.identity for each in found if each.state == _ONGOING]
