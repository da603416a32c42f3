"""Check a log by its leader epochs (OffsetForLeaderEpoch, KIP-320): is it still the log that was read?

Fetch replies contain this, too (`diverging_epoch`), except after OFFSET_OUT_OF_RANGE. Runs in the caller's thread.
"""

from __future__ import annotations

from protocol.clock import Deadline
from protocol.cluster.call import call_partitions
from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.partition_consumer import PartitionConsumer
from protocol.consumer.position_validation import LogBounds
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH

_UNKNOWN = -1
_A_CLIENT = -1


def look_up_log_bounds(client: Client, partition: PartitionConsumer, deadline: Deadline) -> LogBounds:
    """Request from the leader what `position_validation` needs after a refused position.

    A log whose message.format.version was changed to below 0.11 keeps no epochs and is not checked any more. Raises
    `BrokerError` or `DeadlineExceeded`.
    """
    key = (partition.topic, partition.partition)
    start = list_offsets(client, {key: EARLIEST}, deadline=deadline)[key].offset
    latest = list_offsets(client, {key: LATEST}, deadline=deadline)[key]
    in_range = start <= partition.position <= latest.offset
    if not in_range or latest.is_stale(partition.known_epoch) or partition.last_epoch == NO_LEADER_EPOCH:
        return LogBounds(start, latest)
    known = end_of_epoch(client, *key, partition.last_epoch, deadline) is not None
    if not known and end_of_epoch(client, *key, partition.leader_epoch, deadline) is None:
        partition.last_epoch = NO_LEADER_EPOCH
        known = True
    return LogBounds(start, latest, lacks_epoch=not known)


def end_of_epoch(client: Client, topic: str, partition: int, epoch: int, deadline: Deadline) -> int | None:
    """Return the offset after the last record of `epoch`, or else of the newest older epoch; None if unknown.

    Raises `BrokerError` or `DeadlineExceeded` (`TopicUnknown` after brokers have not known the partition for long).
    """
    asked, fields = {(topic, partition): {"leader_epoch": epoch}}, {"replica_id": _A_CLIENT}
    rows = call_partitions(client, OFFSET_FOR_LEADER_EPOCH, fields, asked, deadline, fenced=True)
    end_offset = int(rows[topic, partition]["end_offset"])
    return None if end_offset == _UNKNOWN else end_offset
