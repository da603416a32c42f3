"""Coordinators of groups and transactions: FindCoordinator requests, and their replies. Sans-IO.

A group and a transactional id may be the same string and have different coordinators, so a key includes its type
(KIP-98). `client` sends the requests and caches the coordinators.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.metadata import Broker

_FIRST_WITH_TYPES = 1
_FIRST_WITH_MANY_KEYS = 4


class CoordinatorType(IntEnum):
    """`key_type` of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A group id or a transactional id."""

    type: CoordinatorType
    key: str

    def __str__(self) -> str:
        return f"{'group' if self.type is CoordinatorType.GROUP else 'transactional id'} {self.key}"

    @property
    def context(self) -> dict[str, str]:
        """Context of a `KafkaError` about this group or transactional id."""
        return {"group" if self.type is CoordinatorType.GROUP else "transactional_id": self.key}

    @property
    def first_version(self) -> int:
        """Lowest usable version of FindCoordinator: version 0 finds coordinators of groups only."""
        return 0 if self.type is CoordinatorType.GROUP else _FIRST_WITH_TYPES

    def body(self, version: int) -> dict[str, Any]:
        """Build the FindCoordinator request; from version 4 on it takes several keys (KIP-699)."""
        key = {"coordinator_keys": [self.key]} if version >= _FIRST_WITH_MANY_KEYS else {"key": self.key}
        return {**key, "key_type": int(self.type)} if version >= _FIRST_WITH_TYPES else key

    def found(self, reply: Mapping[str, Any]) -> Broker:
        """Return the coordinator from a FindCoordinator reply; raises `BrokerError`."""
        row = (reply["coordinators"] or [reply])[0]
        if row["error_code"] != ErrorCode.NONE:
            raise broker_error(row["error_code"], f"coordinator of {self}", api="FindCoordinator", **self.context)
        return Broker(row["node_id"], row["host"], row["port"])


def group_coordinator(group: str) -> CoordinatorKey:
    """Return the key of a group's coordinator."""
    return CoordinatorKey(CoordinatorType.GROUP, group)


def transaction_coordinator(transactional_id: str) -> CoordinatorKey:
    """Return the key of a transactional id's coordinator."""
    return CoordinatorKey(CoordinatorType.TRANSACTION, transactional_id)
