"""Where a leader epoch ends in a log (OffsetForLeaderEpoch, KIP-320): whether the log still is the one that was read.

A Fetch tells it too (`diverging_epoch`); this is for the one case that it leaves open. Runs wherever its caller does.
"""

from __future__ import annotations

from typing import Any

from protocol.broker_errors import ErrorCode, broker_error
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.partition_consumer import NO_EPOCH, PartitionConsumer
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH

_UNKNOWN = -1
_A_CLIENT = -1


def is_of_unknown_epoch(client: Client, partition: PartitionConsumer, deadline: Deadline) -> bool:
    """Whether the leader keeps leader epochs, but knows nothing of the one that was read last: another log.

    A log whose message.format.version was set back below 0.11 keeps none: it is not checked against any more.
    Raises `BrokerError` or `DeadlineExceeded`.
    """
    key = (partition.topic, partition.partition)
    if partition.last_epoch == NO_EPOCH or end_of_epoch(client, *key, partition.last_epoch, deadline) is not None:
        return False
    if end_of_epoch(client, *key, partition.leader_epoch, deadline) is not None:
        return True
    partition.last_epoch = NO_EPOCH
    return False


def end_of_epoch(client: Client, topic: str, partition: int, epoch: int, deadline: Deadline) -> int | None:
    """The offset after the last record of `epoch` or of the newest one before it; None when the leader knows neither.

    Raises `BrokerError` or `DeadlineExceeded`.
    """
    what = f"OffsetForLeaderEpoch of {topic}-{partition}"

    def attempt() -> dict[str, Any]:
        broker, leadership = client.leader(topic, partition, deadline)
        asked = {
            "partition": partition,
            "current_leader_epoch": leadership.leader_epoch,
            "leader_epoch": epoch,
        }
        body = {"replica_id": _A_CLIENT, "topics": [{"topic": topic, "partitions": [asked]}]}
        reply = client.ask(broker, OFFSET_FOR_LEADER_EPOCH, body, deadline)
        row: dict[str, Any] = reply["topics"][0]["partitions"][0]
        if row["error_code"] != ErrorCode.NONE:
            raise broker_error(row["error_code"], f"{what} at {broker}", topic=topic, partition=partition)
        return row

    row = client.retrying(what, attempt, deadline, topics=[topic])
    return None if row["end_offset"] == _UNKNOWN else int(row["end_offset"])
