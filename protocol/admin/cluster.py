"""Describe the cluster: brokers, feature levels and the KRaft quorum; change feature levels.

Runs in the caller's thread, in the shared retry loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from protocol.admin.resources import Operations, Row, ask_each
from protocol.cluster.metadata import Broker
from protocol.errors import UnsupportedVersion
from protocol.version import CLIENT_SOFTWARE
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.messages.m55_describe_quorum import DESCRIBE_QUORUM
from protocol.wire.messages.m57_update_features import UPDATE_FEATURES
from protocol.wire.messages.m60_describe_cluster import DESCRIBE_CLUSTER
from protocol.wire.schema import Body

_METADATA_TOPIC = "__cluster_metadata"
_FIRST_WITH_FENCED_BROKERS = 2


@dataclass(frozen=True)
class ClusterDescription:
    """A cluster.

    Attributes
    ----------
    cluster_id
        None before Kafka 0.10.1.
    controller
        The node id of the broker that handles administrative requests; -1 while unknown.
    brokers
        By node id, with host, port and rack.
    fenced
        Node ids of registered brokers that are not active; empty unless requested.
    """

    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Broker]
    fenced: frozenset[int] = frozenset()


@dataclass(frozen=True)
class FeatureDescription:
    """Versions of a feature: supported by the broker that answered, and finalized for the cluster (None if not)."""

    name: str
    min_supported: int
    max_supported: int
    finalized: int | None


class UpgradeType(IntEnum):
    """The direction that a feature update may take (KIP-584, KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True)
class FeatureUpdate:
    """A new finalized level of a feature; 0 removes it."""

    max_version_level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


@dataclass(frozen=True)
class QuorumReplica:
    """A voter or observer of the metadata log; timestamps are in milliseconds since 1970, None if unknown."""

    replica_id: int
    log_end_offset: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True)
class QuorumDescription:
    """The KRaft quorum of the metadata log (KIP-595)."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class ClusterOperations(Operations):
    """The cluster as a whole."""

    def describe_cluster(
        self, *, include_fenced_brokers: bool = False, timeout_ms: float | None = None
    ) -> ClusterDescription:
        """Return id, controller and brokers.

        Parameters
        ----------
        include_fenced_brokers
            Return registered brokers that are not active, too (since Kafka 4.0).

        Raises
        ------
        UnsupportedVersion
            `include_fenced_brokers`, and the broker cannot return them.
        """
        deadline = self._deadline(timeout_ms)
        if not include_fenced_brokers:
            metadata = self._client.metadata([], deadline)
            return ClusterDescription(metadata.cluster_id, metadata.controller_id, metadata.brokers)
        body = {"include_fenced_brokers": True}
        reply = self._ask(DESCRIBE_CLUSTER, body, deadline, at_least=_FIRST_WITH_FENCED_BROKERS)
        brokers = {
            row["broker_id"]: Broker(row["broker_id"], row["host"], row["port"], row["rack"])
            for row in reply["brokers"]
        }
        fenced = frozenset(row["broker_id"] for row in reply["brokers"] if row["is_fenced"])
        return ClusterDescription(reply["cluster_id"], reply["controller_id"], brokers, fenced)

    def describe_features(
        self, *, node_id: int | None = None, timeout_ms: float | None = None
    ) -> dict[str, FeatureDescription]:
        """Return the features that a broker supports and their finalized levels, by name.

        Parameters
        ----------
        node_id
            The broker to ask; None for the controller.
        """
        deadline = self._deadline(timeout_ms)
        client = self._client
        if node_id is None:
            to = client.retrying("controller of the cluster", lambda: client.controller(deadline), deadline)
        else:
            (to,) = self._brokers([node_id], deadline)
        reply = self._ask(API_VERSIONS, CLIENT_SOFTWARE, deadline, to=to, at_least=3)
        finalized = {row["name"]: row["max_version_level"] for row in reply["finalized_features"]}
        return {
            row["name"]: FeatureDescription(
                row["name"], row["min_version"], row["max_version"], finalized.get(row["name"])
            )
            for row in sorted(reply["supported_features"], key=lambda feature: str(feature["name"]))
        }

    def update_features(
        self, updates: Mapping[str, FeatureUpdate], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Change finalized feature levels (KIP-584).

        Parameters
        ----------
        updates
            The new level by feature name.
        validate_only
            Check the request without changing anything (since Kafka 3.3).

        Raises
        ------
        AdminFailed
            Some features were not changed (INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED); before Kafka 4.0.
        BrokerError
            The whole update was refused, since Kafka 4.0.
        """

        def body(pending: list[str]) -> Body:
            def fields(version: int) -> dict[str, object]:
                rows = [_feature_update(name, updates[name], version) for name in pending]
                return {"feature_updates": rows, **({"validate_only": validate_only} if version >= 1 else {})}

            return fields

        def rows(reply: Row, pending: list[str]) -> list[tuple[str, Row]]:
            # From version 2 on a reply without an error has no rows.
            return [(row["feature"], row) for row in reply["results"]] or [(name, {}) for name in pending]

        deadline = self._deadline(timeout_ms)
        at_least = 1 if validate_only else 0
        batch = ask_each(self._client, UPDATE_FEATURES, updates, body, rows, deadline, at_least=at_least)
        batch.results("UpdateFeatures", lambda name, row: None)

    def describe_metadata_quorum(self, *, timeout_ms: float | None = None) -> QuorumDescription:
        """Return leader, voters and observers of the KRaft metadata log.

        Raises
        ------
        UnsupportedVersion
            The broker is older than Kafka 3.3, or uses ZooKeeper.
        """
        body = {"topics": [{"topic_name": _METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        reply = self._ask(DESCRIBE_QUORUM, body, self._deadline(timeout_ms))
        try:
            row = reply["topics"][0]["partitions"][0]
        except IndexError:
            raise UnsupportedVersion("DescribeQuorum: the cluster has no KRaft metadata log") from None
        return QuorumDescription(
            row["leader_id"],
            row["leader_epoch"],
            row["high_watermark"],
            tuple(_replica(voter) for voter in row["current_voters"]),
            tuple(_replica(observer) for observer in row["observers"]),
        )


def _feature_update(name: str, update: FeatureUpdate, version: int) -> dict[str, object]:
    row: dict[str, object] = {"feature": name, "max_version_level": update.max_version_level}
    if version >= 1:
        return {**row, "upgrade_type": int(update.upgrade_type)}
    return {**row, "allow_downgrade": update.upgrade_type is not UpgradeType.UPGRADE}


def _replica(row: Row) -> QuorumReplica:
    fetched_ms, caught_up_ms = row["last_fetch_timestamp"], row["last_caught_up_timestamp"]
    return QuorumReplica(
        row["replica_id"],
        row["log_end_offset"],
        fetched_ms if fetched_ms >= 0 else None,
        caught_up_ms if caught_up_ms >= 0 else None,
    )
