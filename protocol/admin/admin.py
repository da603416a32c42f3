"""The administrative client: every operation on topics, configurations, groups, users, partitions and transactions."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.admin.acls import AclOperations
from protocol.admin.cluster import ClusterOperations
from protocol.admin.groups import GroupOperations
from protocol.admin.partitions import PartitionOperations
from protocol.admin.topics import TopicOperations
from protocol.admin.transactions import TransactionOperations
from protocol.admin.users import UserOperations
from protocol.cluster.client import Client, open_client
from protocol.settings.secret import hide_variables


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
    client : Client or mapping
        Kafka's client properties, at least `bootstrap.servers`; or an open client, which `close` leaves open.
    **properties
        Further properties, with underscores for dots: `bootstrap_servers="broker-1:9092"`.

    Raises
    ------
    ConfigurationError
        A property is missing or wrong.

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

    @hide_variables
    def __init__(self, client: Client | Mapping[str, object] | None = None, **properties: object) -> None:
        shared, self._owns_client, _ = open_client(client, None, properties, lambda properties: None)
        super().__init__(shared)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, unless the client was passed in. May be called again."""
        if self._owns_client:
            self._client.close()
