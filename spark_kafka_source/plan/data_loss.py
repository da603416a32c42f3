"""What counts as lost between what a query has read and what the logs have now, and what is said of it.

Asks no brokers: `driver/trigger.py` does. For what a task cannot read see `protocol.consumer.fetch_failures`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from protocol.cluster.metadata import is_another_topic, topic_id_text
from protocol.consumer.log_offsets import Range
from protocol.errors import DataLoss
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from spark_kafka_source.error_classes import (
    ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
    PARTITION_OFFSET_CHANGED,
    PARTITIONS_DELETED,
    named,
)
from spark_kafka_source.options.partitions import name
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.offsets import Offsets

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loss:
    """What is lost where; how to go on without it, and what is said when that is chosen already."""

    error_class: str
    what: str
    key: TopicPartition
    remedy: str = "To go on without it, set failOnDataLoss=false"
    chosen: str = "failOnDataLoss=false: going on without it"


def raise_or_warn(losses: Iterable[Loss], *, fail: bool) -> None:
    """With `fail` raises `DataLoss` for the first; else the query goes on without them, and warns of each."""
    for loss in losses:
        if fail:
            message = named(loss.error_class, f"{loss.what}. Nothing is read. {loss.remedy}")
            raise DataLoss(message, topic=loss.key[0], partition=loss.key[1])
        log.warning("%s (%s)", loss.what, loss.chosen)


def recreated(logs: LogSnapshot) -> list[Loss]:
    """One for each topic that was deleted and recreated."""
    found = []
    for topic, now in sorted(logs.recreated.items()):
        key = min(key for key in logs.positions if key[0] == topic)
        what = (
            f"topic {topic} was deleted and created again: its id was {topic_id_text(logs.read.ids[topic])}, now it "
            f"is {topic_id_text(now)}; offsets up to {logs.positions[key]} of {name(key)} belonged to the old one"
        )
        remedy = (
            "To read the new one from its beginning, set onTopicRecreated=earliest (it is the default with "
            "failOnDataLoss=false)"
        )
        chosen = "onTopicRecreated=earliest: the new one is read from its beginning"
        found.append(Loss(PARTITION_OFFSET_CHANGED, what, key, remedy, chosen))
    return found


def deleted(logs: LogSnapshot) -> list[Loss]:
    """One for all partitions that are not there any more."""
    keys = logs.deleted()
    read = ", ".join(f"{name(key)} up to offset {logs.positions[key]}" for key in keys[:10])
    return _deleted(keys, f"(or the query subscribes to less than its checkpoint knows); read was {read}")


def deleted_unread(partitions: Collection[TopicPartition]) -> list[Loss]:
    """Of a batch that is planned already: one for all partitions that are gone before anything of them was read."""
    return _deleted(sorted(partitions), "before the first records that the query was to read of it were read")


def _deleted(keys: list[TopicPartition], more: str) -> list[Loss]:
    are = "is" if len(keys) == 1 else "are"
    what = f"{', '.join(map(name, keys[:10]))} {are} not there any more: the topic was deleted {more}"
    return [Loss(PARTITIONS_DELETED, what, key) for key in keys[:1]]


def starts_after_end(begin: Offsets, end: Offsets) -> dict[TopicPartition, Loss]:
    """Of a first batch whose start is in no checkpoint: where `begin`, as it is looked up now, lies after its `end`."""
    return {
        key: Loss(
            PARTITION_OFFSET_CHANGED,
            "the checkpoint does not say where the first batch begins, and startingOffsets lie after its end: "
            f"{name(key)} at {begin.ends[key]}, its end is {end.ends[key]}. What the batch was to read there is "
            "unknown",
            key,
            "Set startingOffsets as JSON to where it began, for this one batch. Or set failOnDataLoss=false, to begin "
            "at its end",
            "failOnDataLoss=false: it begins at its end there",
        )
        for key in sorted(begin.ends.keys() & end.ends.keys())
        if begin.ends[key] > end.ends[key]
        and not is_another_topic(begin.ids.get(key[0], NO_TOPIC_ID), end.ids.get(key[0], NO_TOPIC_ID))
    }


def added(logs: LogSnapshot, log_starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, Loss]:
    """A new partition of a topic that is read begins at 0, unless its first records are gone already."""
    topics = {topic for topic, _ in logs.positions} - logs.recreated.keys()
    return {
        key: Loss(
            ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO,
            f"{name(key)} is new in this query, and its log begins at offset {start}: retention or DeleteRecords has "
            "removed its first records before they were read",
            key,
        )
        for key, start in sorted(log_starts.items())
        if start and key[0] in topics
    }


def truncated(key: TopicPartition, read: int, end: int, agreed: int) -> Loss:
    """Of a log that ends before offset `read`, and up to `agreed` is the one that was read."""
    return Loss(
        PARTITION_OFFSET_CHANGED,
        f"{name(key)} ends at offset {end}, but the query has read up to {read}: the log was truncated (unclean leader "
        f"election), or the topic was deleted and created again. Offsets {agreed} to {read} were read, and are others "
        "now, or none",
        key,
    )


def ends_before_start(key: TopicPartition, begin: int, until: int) -> Loss:
    """Of a batch that is planned already."""
    what = (
        f"{name(key)}: the batch ends at offset {until}, before it begins ({begin}). The log was truncated, or the "
        "topic was deleted and created again, and records may be missing"
    )
    return Loss(PARTITION_OFFSET_CHANGED, what, key, chosen="failOnDataLoss=false: nothing of it is read in this batch")


def warn_advanced(positions: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]) -> None:
    """With `failOnDataLoss=false`, of logs that begin after the positions by now."""
    lost = [f"{positions[key]} to {log_starts[key]} of {name(key)}" for key in sorted(log_starts)]
    if lost:
        log.warning(
            "offsets %s%s are not in the log any more: retention or DeleteRecords has removed them before they were "
            "read (failOnDataLoss=false: %d offsets are skipped)",
            ", ".join(lost[:10]),
            f" and of {len(lost) - 10} more partitions" if len(lost) > 10 else "",
            sum(offset - positions[key] for key, offset in log_starts.items()),
        )


def warn_stale(partitions: Collection[TopicPartition]) -> None:
    """No loss: a leader that was replaced and does not know it has no news. Each trigger looks up metadata anew."""
    if partitions:
        log.warning(
            "%s: the broker that leads there has been replaced by one that was read from already, and does not "
            "know it yet; until it does, nothing new is read there",
            ", ".join(name(key) for key in sorted(partitions)[:10]),
        )


def count_skipped(ranges: Iterable[Range], log_starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Of a batch that is replayed: how many offsets lie before the beginnings of the logs."""
    skipped: Counter[TopicPartition] = Counter()
    for each in ranges:
        key = each.topic_partition
        skipped[key] += max(0, min(log_starts[key], each.until_offset) - each.from_offset)
    return {key: count for key, count in skipped.items() if count}
