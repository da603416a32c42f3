"""List offsets of many partitions by time (earliest, latest, first at or after a timestamp) or by leader epoch.

Sends one request per leader, in the caller's thread. Retriable failures are repeated for the failed partitions only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.base.clock import Deadline
from protocol.cluster.call import call_partitions
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.errors import BrokerError, UnsupportedVersion
from protocol.fetch.log_offsets import ListedOffset, stale_leader_error
from protocol.kafka_terms import TopicPartition
from protocol.position import Position
from protocol.wire.messages.m02_list_offsets import FIRST_WITH_TIMESTAMP, LIST_OFFSETS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH

_UNKNOWN = -1
_CONSUMER_REPLICA_ID = -1


def list_offsets(
    client: Client,
    times: Mapping[TopicPartition, int],
    *,
    isolation_level: str = "read_uncommitted",
    deadline: Deadline | None = None,
    max_attempts: int | None = None,
    positions_read: Mapping[TopicPartition, Position] = MappingProxyType({}),
    unknown_topic_s: float | None = None,
    into: dict[TopicPartition, ListedOffset] | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """Return the offset at a time for each partition.

    `times`: timestamp in milliseconds, or one of the negative times of `kafka_terms` such as `LATEST`.
    `isolation_level`: with `read_committed`, `LATEST` is the last stable offset (KIP-98).
    `positions_read`: with `LATEST`, retry while the leader's epoch is older than that of the position.
    `unknown_topic_s`: as in `call_partitions`.
    `into`: a dict to fill, so that offsets listed before an error are not lost.
    Raises `BrokerError`: a non-retriable error code. `DeadlineExceeded`: `TopicUnknown` after brokers have not known a
    partition for long.
    """
    offsets = {} if into is None else into

    def handle(
        key: TopicPartition, row: Mapping[str, Any], broker: Broker, row_error: BrokerError | None
    ) -> BrokerError | None:
        listed, position_read = _listed(row), positions_read.get(key)
        if row_error is not None:
            return row_error
        if position_read is not None and listed.is_stale(position_read.leader_epoch):
            return stale_leader_error(
                f"ListOffsets of {key[0]}-{key[1]} at {broker}", listed, position_read.leader_epoch
            )
        offsets[key] = listed
        return None

    isolation = 1 if isolation_level == "read_committed" else 0
    call_partitions(
        client,
        LIST_OFFSETS,
        {"replica_id": _CONSUMER_REPLICA_ID, "isolation_level": isolation},
        {key: {"timestamp": time} for key, time in times.items()},
        deadline or client.deadline(),
        handle=handle,
        at_least=_first_version(times.values(), isolation),
        max_attempts=max_attempts,
        unknown_topic_s=unknown_topic_s,
    )
    return offsets


def _first_version(times: Iterable[int], isolation: int) -> int:
    """Return the first version that understands the request; an older one would return another offset."""
    return max((2 if isolation else 1, *(FIRST_WITH_TIMESTAMP.get(time, 1) for time in times)))


def _listed(row: Mapping[str, Any]) -> ListedOffset:
    return ListedOffset(row["offset"], row["leader_epoch"], row["timestamp"])


def end_of_epoch(client: Client, key: TopicPartition, position: Position, deadline: Deadline) -> int | None:
    """Return where the leader epoch of a position ends; None if unknown. See `ends_of_epochs`."""
    return ends_of_epochs(client, {key: position}, deadline).get(key)


def ends_of_epochs(
    client: Client, positions: Mapping[TopicPartition, Position], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the offset after the last record of each position's leader epoch.

    If the log has no record of an epoch, the end of the newest older epoch is returned. Positions with an unknown epoch
    are omitted; if one broker lacks this request, all are.

    Raises `BrokerError` or `DeadlineExceeded` (`TopicUnknown` after brokers have not known the partition for long).
    """
    epoch_fields = {
        key: {"leader_epoch": position.leader_epoch}
        for key, position in positions.items()
        if position.leader_epoch >= 0
    }
    if not epoch_fields:
        return {}
    fields = {"replica_id": _CONSUMER_REPLICA_ID}
    try:
        rows = call_partitions(client, OFFSET_FOR_LEADER_EPOCH, fields, epoch_fields, deadline, check_leader_epoch=True)
    except UnsupportedVersion:
        return {}
    return {key: int(row["end_offset"]) for key, row in rows.items() if row["end_offset"] != _UNKNOWN}
