"""Offsets, elections, reassignments and log directories of partitions.

Runs in the caller's thread. Offsets are requested from partition leaders, log directories from each broker, the rest
from the controller, in the shared retry loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from protocol.admin.resources import (
    Operations,
    Row,
    ask_each,
    by_topic,
    results_of_each,
    results_or_raise,
    rows_of_partitions,
    shares,
)
from protocol.base.clock import Deadline
from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import KafkaError
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import TopicPartition
from protocol.wire.messages.m34_log_dirs import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS
from protocol.wire.messages.m43_elect_leaders import ELECT_LEADERS
from protocol.wire.messages.m45_partition_reassignments import (
    ALTER_PARTITION_REASSIGNMENTS,
    LIST_PARTITION_REASSIGNMENTS,
)
from protocol.wire.schema import Body


class ElectionType(IntEnum):
    """Which replica becomes the leader: the preferred one, or any live one (unclean; may lose records)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True)
class PartitionReassignment:
    """A running reassignment: all replicas, and those being added and removed, as broker ids."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True)
class ReplicaInfo:
    """A replica in a log directory.

    Attributes
    ----------
    size_bytes
        Size of its log segments.
    offset_lag
        Offsets behind the high watermark, or behind the current replica if `is_future`.
    is_future
        True for a replica that is being moved to this directory.
    """

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True)
class LogDirDescription:
    """A log directory of a broker.

    Attributes
    ----------
    error
        None, or the reason why the directory is offline.
    replicas
        By (topic, partition).
    total_bytes, usable_bytes
        Size of its volume, and the free part; None before Kafka 3.3.
    is_cordoned
        True if the broker places no new replicas in it (since Kafka 4.3).
    """

    error: KafkaError | None
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool = False


class PartitionOperations(Operations):
    """Partitions and replicas of a cluster."""

    def list_offsets(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """Return an offset of each partition.

        Parameters
        ----------
        times
            Milliseconds since 1970 (the first record at or after), or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP` (since
            Kafka 3.0); for tiered storage `EARLIEST_LOCAL` (3.6), `LATEST_TIERED` (3.9), `EARLIEST_PENDING_UPLOAD`
            (4.2). The names are in `protocol` and `protocol.admin`.
        isolation_level
            "read_committed": `LATEST` is the last stable offset.

        Raises
        ------
        UnsupportedVersion
            The broker is too old for one of these names.
        TopicUnknown, DeadlineExceeded, BrokerError
            A partition is unknown, has no leader, or must not be described.
        """
        return list_offsets(self._client, times, isolation_level=isolation_level, deadline=self._deadline(timeout_ms))

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None,
        election_type: ElectionType = ElectionType.PREFERRED,
        *,
        timeout_ms: float | None = None,
    ) -> set[TopicPartition]:
        """Elect leaders, and return the partitions whose leader was elected.

        Parameters
        ----------
        partitions
            `(topic, partition)` pairs; None for all. A partition that needs no election is left out of the result.
        election_type
            `UNCLEAN` needs Kafka 2.4.

        Raises
        ------
        AdminFailed
            Some elections failed (PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, …).
        """
        deadline = self._deadline(timeout_ms)
        if partitions is None:
            topics = self._client.metadata(None, deadline).topics.values()
            partitions = [(topic.name, number) for topic in topics for number in topic.partitions]

        def body(pending: list[TopicPartition]) -> Body:
            fields = {"topic_partitions": _topics(pending, "topic")}
            return lambda version: {"election_type": int(election_type), **fields} if version >= 1 else fields

        batch = ask_each(
            self._client,
            ELECT_LEADERS,
            partitions,
            body,
            lambda reply, _: rows_of_partitions(
                reply["replica_election_results"], "topic", "partition_result", "partition_id"
            ),
            deadline,
            error_context=_about,
            accept=[ErrorCode.ELECTION_NOT_NEEDED],
            at_least=1 if election_type is ElectionType.UNCLEAN else 0,
        )
        elected = {key for key, row in batch.items() if row["error_code"] == ErrorCode.NONE}
        batch.results("ElectLeaders", lambda key, row: None)
        return elected

    def alter_partition_reassignments(
        self, reassignments: Mapping[TopicPartition, Sequence[int] | None], *, timeout_ms: float | None = None
    ) -> None:
        """Start to move partitions to other replicas, or cancel a running move (KIP-455, since Kafka 2.4).

        Parameters
        ----------
        reassignments
            Broker ids by partition, the preferred leader first; None cancels the running reassignment.
        timeout_ms
            Time limit of the request, not of the move.

        Raises
        ------
        AdminFailed
            Some were refused (INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, …).
        """

        def body(pending: list[TopicPartition]) -> Body:
            topics = [
                {"name": topic, "partitions": [_reassignment(reassignments, topic, number) for number in numbers]}
                for topic, numbers in by_topic(pending).items()
            ]
            return {"topics": topics}

        batch = ask_each(
            self._client,
            ALTER_PARTITION_REASSIGNMENTS,
            reassignments,
            body,
            lambda reply, _: rows_of_partitions(reply["responses"], "name"),
            self._deadline(timeout_ms),
            error_context=_about,
        )
        batch.results("AlterPartitionReassignments", lambda key, row: None)

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the running reassignments of some partitions; None for all."""
        topics = None
        if partitions is not None:
            topics = [{"name": name, "partition_indexes": numbers} for name, numbers in by_topic(partitions).items()]
        reply = self._ask(LIST_PARTITION_REASSIGNMENTS, {"topics": topics}, self._deadline(timeout_ms))
        return {
            key: PartitionReassignment(
                tuple(row["replicas"]), tuple(row["adding_replicas"]), tuple(row["removing_replicas"])
            )
            for key, row in rows_of_partitions(reply["topics"], "name")
        }

    def describe_log_dirs(
        self,
        node_ids: Iterable[int] | None = None,
        *,
        partitions: Iterable[TopicPartition] | None = None,
        timeout_ms: float | None = None,
    ) -> dict[int, dict[str, LogDirDescription]]:
        """Return the log directories of brokers, and the replicas in them.

        Parameters
        ----------
        node_ids
            Brokers; None for all.
        partitions
            Replicas to return; None for all.

        Returns
        -------
        dict of int to dict of str to LogDirDescription
            By node id and path.

        Raises
        ------
        AdminFailed
            Some brokers did not answer, or refused (CLUSTER_AUTHORIZATION_FAILED).
        """
        deadline = self._deadline(timeout_ms)
        body = {"topics": None if partitions is None else _topics(partitions, "topic")}
        brokers = {broker.node_id: broker for broker in self._brokers(node_ids, deadline)}

        def describe(node_id: int, deadline: Deadline) -> dict[str, LogDirDescription]:
            reply = self._ask(DESCRIBE_LOG_DIRS, body, deadline, to=brokers[node_id], accept=_OFFLINE)
            return {row["log_dir"]: _log_dir(row) for row in reply["results"]}

        return results_of_each("DescribeLogDirs", brokers, deadline, describe)

    def alter_replica_log_dirs(
        self, moves: Mapping[tuple[str, int, int], str], *, timeout_ms: float | None = None
    ) -> None:
        """Move replicas to another log directory of their broker (KIP-113).

        Parameters
        ----------
        moves
            The target path by (topic, partition, node id).
        timeout_ms
            Time limit of the request, not of the move.

        Raises
        ------
        AdminFailed
            Some moves were refused (LOG_DIR_NOT_FOUND, …).
        """
        deadline = self._deadline(timeout_ms)
        errors: dict[tuple[str, int, int], KafkaError] = {}
        done: dict[tuple[str, int, int], None] = {}
        brokers = self._brokers(sorted({node_id for _, _, node_id in moves}), deadline)
        for broker, share in shares(brokers, deadline):
            paths = {move[:2]: path for move, path in moves.items() if move[2] == broker.node_id}

            def body(pending: list[TopicPartition], paths: Mapping[TopicPartition, str] = paths) -> Body:
                by_path: dict[str, list[TopicPartition]] = {}
                for key in pending:
                    by_path.setdefault(paths[key], []).append(key)
                return {"dirs": [{"path": path, "topics": _topics(keys, "name")} for path, keys in by_path.items()]}

            try:
                batch = ask_each(
                    self._client,
                    ALTER_REPLICA_LOG_DIRS,
                    paths,
                    body,
                    lambda reply, _: rows_of_partitions(reply["results"], "topic_name"),
                    share,
                    to=broker,
                    error_context=_about,
                )
            except KafkaError as error:
                errors.update(dict.fromkeys(((*key, broker.node_id) for key in paths), error))
            else:
                errors.update({(*key, broker.node_id): error for key, error in batch.errors.items()})
                done.update(dict.fromkeys((*key, broker.node_id) for key in batch))
        results_or_raise("AlterReplicaLogDirs", done, errors)


_OFFLINE = (ErrorCode.KAFKA_STORAGE_ERROR,)


def _about(key: TopicPartition) -> dict[str, Any]:
    return {"topic": key[0], "partition": key[1]}


def _topics(partitions: Iterable[TopicPartition], name: str) -> list[dict[str, Any]]:
    return [{name: topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]


def _reassignment(
    reassignments: Mapping[TopicPartition, Sequence[int] | None], topic: str, number: int
) -> dict[str, Any]:
    replicas = reassignments[topic, number]
    return {"partition_index": number, "replicas": None if replicas is None else list(replicas)}


def _log_dir(row: Row) -> LogDirDescription:
    replicas = {
        (topic["name"], partition["partition_index"]): ReplicaInfo(
            partition["partition_size"], partition["offset_lag"], partition["is_future_key"]
        )
        for topic in row["topics"]
        for partition in topic["partitions"]
    }
    code, total, usable = row["error_code"], row["total_bytes"], row["usable_bytes"]
    error = broker_error(code, f"log directory {row['log_dir']}") if code != ErrorCode.NONE else None
    sizes = (total if total >= 0 else None, usable if usable >= 0 else None)
    return LogDirDescription(error, replicas, *sizes, row["is_cordoned"])
