"""The administrative client: every operation on topics, configurations, groups, users, partitions and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.admin.acls import AclOperations
from protocol.admin.cluster import ClusterOperations
from protocol.admin.groups import GroupOperations
from protocol.admin.partitions import PartitionOperations
from protocol.admin.topics import TopicOperations
from protocol.admin.transactions import TransactionOperations
from protocol.admin.users import UserOperations
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import UsageError


class Admin(
    TopicOperations,
    GroupOperations,
    ClusterOperations,
    AclOperations,
    UserOperations,
    PartitionOperations,
    TransactionOperations,
):
    """Manages a Kafka cluster.

    Parameters
    ----------
    properties
        Kafka's client properties, at least `bootstrap.servers`.
    client
        An open client to use in place of `properties`; `close` leaves it open.

    Notes
    -----
    Safe for several threads. Every method has a `timeout_ms`, by default `default.api.timeout.ms`, and raises
    `DeadlineExceeded` after it. A method about several resources handles all of them; if some fail, it raises
    `AdminFailed`, whose `errors` has the error of each failed resource and whose `results` has the others. A method
    that the broker lacks raises `UnsupportedVersion` with the API and the versions of both sides.

    Examples
    --------
    >>> with Admin({"bootstrap.servers": "broker-1:9092"}) as admin:  # doctest: +SKIP
    ...     admin.create_topics([NewTopic("orders", partitions=6, replication_factor=3)])
    """

    def __init__(self, properties: Mapping[str, Any] | None = None, *, client: Client | None = None) -> None:
        if (properties is None) == (client is None):
            raise UsageError("Admin needs either a dict of properties or a client")
        super().__init__(client if client is not None else Client(parse_client(dict(properties or {}))))
        self._owns_client = client is None

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless the client was passed in. May be called again."""
        if self._owns_client:
            self._client.close()
