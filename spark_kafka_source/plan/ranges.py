"""Convert the start and end offsets of a batch to the ranges that its tasks read. Sans-IO.

Deterministic: the same start and end give the same ranges in a replay. Ranges are split as in Spark's own Kafka
connector for `maxRecordsPerPartition` and `minPartitions`. Used by `stream_reader` and `batch_reader`; `range_reader`
reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from protocol.errors import UsageError
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import NO_LEADER_EPOCH, TopicPartition
from protocol.position import Position
from spark_kafka_source.options.partitions import partition_name
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.offsets import Offsets

if TYPE_CHECKING:
    from protocol.filters.condition import Condition


def offset_ranges(
    start: Offsets,
    end: Offsets,
    *,
    max_records: int | None = None,
    min_partitions: int | None = None,
    fail_on_data_loss: bool = True,
    earliest: Mapping[TopicPartition, int] | None = None,
) -> list[Range]:
    """Return the ranges of a batch, sorted by partition and offset; partitions without new offsets have none.

    A partition starts at the end in `start`, or later at `end.joined` (the records between are lost). It starts at
    `end.joined` if `start` lacks the partition or has another topic id, or if the log was truncated. If `end.joined`
    lacks it, too (offsets of Spark's own connector), it starts at `earliest`.

    `max_records`, `min_partitions`: as for `split`.
    `fail_on_data_loss`: False: skip a partition whose end is before its start, with a warning.
    `earliest`: log start offsets of the `unresolved` partitions.
    Raises `UsageError`: `earliest` lacks a partition. `DataLoss`: an end is before its start.
    """
    ranges, recreated = [], _recreated(start, end)
    for tp, until in sorted(end.positions.items()):
        from_offset, until_offset = _start_offset(start, end, tp, recreated), until.offset
        if from_offset is None and (from_offset := (earliest or {}).get(tp)) is None:
            raise UsageError(f"{partition_name(tp)} is new and has no start offset.")
        if until_offset < from_offset:
            data_loss.raise_or_warn(
                [data_loss.ends_before_start(tp, from_offset, until_offset)], fail=fail_on_data_loss
            )
        elif until_offset > from_offset:
            before = start.positions.get(tp)
            continues = before is not None and before.offset == from_offset and tp[0] not in recreated
            ranges.append(Range.between(tp, before if before and continues else Position(from_offset), until))
    return split(ranges, max_records, min_partitions)


def pruned_ranges(condition: Condition | None, ranges: list[Range]) -> list[Range]:
    """Return the ranges that may have records for which the condition is true."""
    if condition is None:
        return ranges
    from protocol.filters.pruning import pruned  # needs pyarrow.compute

    return pruned(condition, ranges)


def unresolved(start: Offsets, end: Offsets) -> list[TopicPartition]:
    """Return the partitions of `end` whose start neither offset has; they start at their log start offsets."""
    recreated = _recreated(start, end)
    return [tp for tp in sorted(end.ends) if _start_offset(start, end, tp, recreated) is None]


def split(ranges: list[Range], max_records: int | None = None, min_partitions: int | None = None) -> list[Range]:
    """Split non-empty ranges: those above `max_records`, then the large ones, until there are about `min_partitions`.

    For `min_partitions`, each range that is too small to split counts as one task; the other ranges are split into the
    remaining number. If one range of a partition is too small, none of its ranges is split, as in Spark's connector.
    """
    if max_records is not None:
        ranges = [piece for r in ranges for piece in _split_range(r, math.ceil(r.size / max_records))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(r.size for r in ranges)
    small = [r for r in ranges if _piece_count(r.size, total, min_partitions) == 1]
    unsplit = {r.topic_partition for r in small}
    split_total = total - sum(r.size for r in small)
    split_pieces = max(min_partitions - len(small), 1)
    return [
        piece
        for r in ranges
        for piece in (
            [r] if r.topic_partition in unsplit else _split_range(r, _piece_count(r.size, split_total, split_pieces))
        )
    ]


def _piece_count(size: int, total: int, total_pieces: int) -> int:
    # Halves are rounded up, as by Java's Math.round; Python's round goes to the even neighbour.
    return max(math.floor(size / total * total_pieces + 0.5), 1)


def _split_range(source_range: Range, pieces: int) -> list[Range]:
    parts = []
    from_offset = source_range.from_offset
    for remaining in range(pieces, 0, -1):
        until_offset = from_offset + (source_range.until_offset - from_offset) // remaining
        if until_offset > from_offset:
            # The epoch of the records before a later piece is unknown.
            epoch = source_range.from_epoch if from_offset == source_range.from_offset else NO_LEADER_EPOCH
            parts.append(replace(source_range, from_offset=from_offset, until_offset=until_offset, from_epoch=epoch))
        from_offset = until_offset
    return parts


def _start_offset(start: Offsets, end: Offsets, tp: TopicPartition, recreated: set[str]) -> int | None:
    joined, before = end.joined.get(tp), start.positions.get(tp)
    if before is None or tp[0] in recreated:
        return joined
    if joined is None:
        return before.offset
    # A truncated log may have grown again to just the old end. PySpark before 4.2 also asks for (end, end).
    after = end.positions[tp]
    newer_epoch = after.leader_epoch > before.leader_epoch
    truncated = after.offset < before.offset or (after.offset == before.offset and newer_epoch)
    return joined if truncated else max(joined, before.offset)


def _recreated(start: Offsets, end: Offsets) -> set[str]:
    return {topic for topic, topic_id in start.ids.items() if end.ids.get(topic, topic_id) != topic_id}


def group_ranges(
    ranges: Sequence[Range], max_groups: int | None, leaders: Mapping[TopicPartition, int]
) -> list[tuple[Range, ...]]:
    """Return one group per range, but at most `max_groups` groups of about equal size.

    Ranges are sorted by leader (-1 if unknown) and divided into consecutive groups so that the largest group is as
    small as possible. Adjacent ranges of one partition in a group are joined.
    """
    if max_groups is None or len(ranges) <= max_groups:
        return [(source_range,) for source_range in ranges]
    ordered = sorted(ranges, key=lambda r: (leaders.get(r.topic_partition, -1), r.topic_partition, r.from_offset))
    sizes = [r.size for r in ordered]
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_fill(ordered, middle)) <= max_groups:
            high = middle
        else:
            low = middle + 1
    return [_merge_adjacent(group) for group in _fill(ordered, low)]


def _fill(ranges: Sequence[Range], max_offsets: int) -> list[list[Range]]:
    """Divide ranges into consecutive groups of at most `max_offsets` offsets, each as full as possible."""
    filled: list[list[Range]] = []
    size = max_offsets + 1
    for source_range in ranges:
        size += source_range.size
        if size > max_offsets:
            filled.append([])
            size = source_range.size
        filled[-1].append(source_range)
    return filled


def _merge_adjacent(group: Sequence[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for source_range in group:
        before = joined[-1] if joined else None
        if before and (before.topic_partition, before.until_offset) == (
            source_range.topic_partition,
            source_range.from_offset,
        ):
            joined[-1] = replace(before, until_offset=source_range.until_offset)
        else:
            joined.append(source_range)
    return tuple(joined)
