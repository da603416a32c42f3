"""Which broker keeps a group or a transaction: what FindCoordinator is asked, and what its reply says.

Pure: `client` asks, and remembers. A group and a transactional id may be the same string and have different
coordinators, so each is known by its type and its key together (KIP-98).
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
    """What is coordinated, in FindCoordinator's numbers (`key_type`)."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A group, or a transactional id."""

    type: CoordinatorType
    key: str

    def __str__(self) -> str:
        return f"{'group' if self.type is CoordinatorType.GROUP else 'transactional id'} {self.key}"

    @property
    def context(self) -> dict[str, str]:
        """For a `KafkaError` that is about it."""
        return {"group" if self.type is CoordinatorType.GROUP else "transactional_id": self.key}

    @property
    def first_version(self) -> int:
        """Of FindCoordinator. The first one knows groups only, and would tell the coordinator of another thing."""
        return 0 if self.type is CoordinatorType.GROUP else _FIRST_WITH_TYPES

    def body(self, version: int) -> dict[str, Any]:
        """The FindCoordinator request; from version 4 on it may be about several keys (KIP-699)."""
        key = {"coordinator_keys": [self.key]} if version >= _FIRST_WITH_MANY_KEYS else {"key": self.key}
        return {**key, "key_type": int(self.type)} if version >= _FIRST_WITH_TYPES else key

    def found(self, reply: Mapping[str, Any]) -> Broker:
        """The coordinator that a reply tells; raises `BrokerError`."""
        row = (reply["coordinators"] or [reply])[0]
        if row["error_code"] != ErrorCode.NONE:
            raise broker_error(row["error_code"], f"coordinator of {self}", api="FindCoordinator", **self.context)
        return Broker(row["node_id"], row["host"], row["port"])


def group_coordinator(group: str) -> CoordinatorKey:
    return CoordinatorKey(CoordinatorType.GROUP, group)


def transaction_coordinator(transactional_id: str) -> CoordinatorKey:
    return CoordinatorKey(CoordinatorType.TRANSACTION, transactional_id)
