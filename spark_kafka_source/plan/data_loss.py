"""Find records lost between a query's position and the logs, and word the errors and warnings. Sans-IO.

`driver/trigger.py` sends the requests. `protocol.fetch` reports losses that a task finds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.base.listing import listed
from protocol.cluster.metadata import topic_id_text
from protocol.errors import DataLoss
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.error_messages import (
    ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
    PARTITION_OFFSET_CHANGED,
    PARTITIONS_DELETED,
    with_error_class,
)
from spark_kafka_source.options.partitions import partition_name, partition_names
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.offsets import Offsets

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """A loss in one partition: text, error class, the remedy for the error, and the note for the warning."""

    error_class: str
    message: str
    key: TopicPartition
    remedy: str = "To continue without it, set failOnDataLoss=false"
    note: str = "failOnDataLoss=false: continuing without it"


def raise_or_warn(losses: Iterable[Loss], *, fail: bool) -> None:
    """Raise `DataLoss` for the first loss if `fail`; otherwise log a warning for each."""
    for loss in losses:
        if fail:
            message = with_error_class(loss.error_class, f"{loss.message}. Nothing is read. {loss.remedy}")
            raise DataLoss(message, topic=loss.key[0], partition=loss.key[1])
        log.warning("%s (%s)", loss.message, loss.note)


def recreated(logs: LogSnapshot) -> list[Loss]:
    """Return a loss for each topic that was deleted and recreated."""
    losses = []
    ends = {**{key: start.offset for key, start in logs.outdated.items()}, **logs.completed.ends}
    for topic, now in logs.recreated.items():
        key = min(key for key in ends if key[0] == topic)
        read = f"offsets up to {ends[key]} of {partition_name(key)}"
        message = (
            f"topic {topic} was deleted and created again: its id was {topic_id_text(logs.completed.ids[topic])}, now "
            f"it is {topic_id_text(now)}; {read} belong to the old topic"
        )
        remedy = (
            "To read the new topic from its start, set onTopicRecreated=earliest (the default with "
            "failOnDataLoss=false)"
        )
        note = "onTopicRecreated=earliest: the new topic is read"
        losses.append(Loss(PARTITION_OFFSET_CHANGED, message, key, remedy, note))
    return losses


def deleted(logs: LogSnapshot, is_subscribed: Callable[[TopicPartition], bool]) -> list[Loss]:
    """Return a loss for all partitions that the query no longer subscribes to, and one for all deleted ones."""
    positions = {key: logs.positions[key].offset for key in logs.deleted()}
    unsubscribed = {key: offset for key, offset in positions.items() if not is_subscribed(key)}
    subscribed = {key: offset for key, offset in positions.items() if key not in unsubscribed}
    losses = _deleted(list(subscribed), f"; read was {_read_up_to(subscribed)}")
    if not unsubscribed:
        return losses
    message = f"the checkpoint has {_read_up_to(unsubscribed)}, and this query does not subscribe to that"
    remedy = "Subscribe to it again. To continue without it, set failOnDataLoss=false"
    return [Loss(PARTITIONS_DELETED, message, min(unsubscribed), remedy), *losses]


def _read_up_to(positions: Mapping[TopicPartition, int]) -> str:
    return listed([f"{partition_name(key)} up to offset {positions[key]}" for key in sorted(positions)])


def deleted_unread(partitions: Collection[TopicPartition]) -> list[Loss]:
    """Return one loss for all partitions of a planned batch that were deleted before any record was read."""
    return _deleted(sorted(partitions), " before the query read its first records")


def _deleted(keys: list[TopicPartition], context: str) -> list[Loss]:
    verb = "no longer exists" if len(keys) == 1 else "no longer exist"
    message = f"{partition_names(keys)} {verb}: the topic was deleted{context}"
    return [Loss(PARTITIONS_DELETED, message, key) for key in keys[:1]]


def starts_after_end(start: Offsets, end: Offsets) -> dict[TopicPartition, Loss]:
    """Return the losses of a first batch whose start, resolved again for a replay, is after its end.

    `start`: the start as resolved now; no checkpoint has it.
    """
    return {
        key: Loss(
            PARTITION_OFFSET_CHANGED,
            "the checkpoint lacks the start of the first batch, and startingOffsets are after its end: "
            f"{partition_name(key)} starts at {start.ends[key]} and ends at {end.ends[key]}. The records of the batch "
            "in this partition are unknown",
            key,
            "Set startingOffsets to the original start as JSON, for this batch only. Or set failOnDataLoss=false to "
            "start at the batch's end",
            "failOnDataLoss=false: starting at the batch's end",
        )
        for key in sorted(start.ends.keys() & end.ends.keys())
        if start.ends[key] > end.ends[key] and start.positions[key].is_in(end.ids.get(key[0], NO_TOPIC_ID))
    }


def added(logs: LogSnapshot, log_start_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Loss]:
    """Return the losses of new partitions of known topics whose log start offset is not 0."""
    topics = {topic for topic, _ in logs.positions} - logs.recreated.keys()
    return {
        key: Loss(
            ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
            f"{partition_name(key)} is new in this query, and its log begins at offset {start}: retention or "
            "DeleteRecords has removed its first records before they were read",
            key,
        )
        for key, start in sorted(log_start_offsets.items())
        if start and key[0] in topics
    }


def truncated(key: TopicPartition, position: int, end: int, divergent: int) -> Loss:
    """Return the loss of a log that ends before offset `position`, and is unchanged before offset `divergent`."""
    return Loss(
        PARTITION_OFFSET_CHANGED,
        f"{partition_name(key)} ends at offset {end}, but the query has read up to {position}: the log was truncated "
        f"(unclean leader election), or the topic was deleted and created again. Offsets {divergent} to {position} "
        "were read, and now have other records or none",
        key,
    )


def regrown(key: TopicPartition, position: Position, divergent: int) -> Loss:
    """Return the loss of a log that was truncated below a position and has grown again."""
    return Loss(
        PARTITION_OFFSET_CHANGED,
        f"{partition_name(key)} was truncated (unclean leader election) at offset {divergent}, where leader epoch "
        f"{position.leader_epoch} ended, but was read up to {position.offset} in that epoch. Offsets {divergent} to "
        f"{position.offset} were "
        "read, and now have other records",
        key,
    )


def ends_before_start(key: TopicPartition, from_offset: int, until_offset: int) -> Loss:
    """Return the loss of a planned batch that ends before its start."""
    message = (
        f"{partition_name(key)}: the batch ends at offset {until_offset}, before it begins ({from_offset}). The log "
        "was truncated, or the topic was deleted and created again, and records may be missing"
    )
    return Loss(
        PARTITION_OFFSET_CHANGED, message, key, note="failOnDataLoss=false: this batch reads none of its records"
    )


def warn_advanced(
    positions: Mapping[TopicPartition, Position], log_start_offsets: Mapping[TopicPartition, int]
) -> None:
    """Warn of logs that start after the position, with `failOnDataLoss=false`."""
    lost = [
        f"{positions[key].offset} to {log_start_offsets[key]} of {partition_name(key)}"
        for key in sorted(log_start_offsets)
    ]
    if lost:
        log.warning(
            "offsets %s are no longer in the log: retention or DeleteRecords has removed them before they were "
            "read (failOnDataLoss=false: %d offsets are skipped)",
            listed(lost),
            sum(offset - positions[key].offset for key, offset in log_start_offsets.items()),
        )


def warn_stale(partitions: Collection[TopicPartition]) -> None:
    """Warn of stale leaders. No loss: each trigger refreshes the metadata."""
    if partitions:
        log.warning(
            "%s: a stale leader replied (the query has read from a newer leader); no new records are read from "
            "these partitions until the broker learns of the newer leader",
            partition_names(partitions),
        )


def count_skipped(
    ranges: Iterable[Range], log_start_offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the number of offsets of a replayed batch that are before the log start offsets."""
    skipped: Counter[TopicPartition] = Counter()
    for source_range in ranges:
        key = source_range.topic_partition
        skipped[key] += max(0, min(log_start_offsets[key], source_range.until_offset) - source_range.from_offset)
    return {key: count for key, count in skipped.items() if count}
