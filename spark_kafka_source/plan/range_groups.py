"""Combine the ranges of a batch into groups, each read by one task (`maxInputPartitions`). Sans-IO.

The same ranges and leaders give the same groups, so a replay has the same tasks. A group has ranges of as few leaders
as possible, since one Fetch request asks one broker for many partitions. Used by `stream_reader` and `batch_reader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.consumer.log_offsets import Range
from protocol.kafka_terms import TopicPartition


def group_ranges(
    ranges: Sequence[Range], max_groups: int | None, leaders: Mapping[TopicPartition, int]
) -> list[tuple[Range, ...]]:
    """Return one group per range, but at most `max_groups` groups of about equal size.

    Ranges are sorted by leader (-1 if unknown) and divided into consecutive groups so that the largest group is as
    small as possible. Adjacent ranges of one partition in a group are joined.
    """
    if max_groups is None or len(ranges) <= max_groups:
        return [(one,) for one in ranges]
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


def _fill(ordered: Sequence[Range], most: int) -> list[list[Range]]:
    """Divide ranges into consecutive groups of at most `most` offsets, each as full as possible."""
    filled: list[list[Range]] = []
    size = most + 1
    for one in ordered:
        size += one.size
        if size > most:
            filled.append([])
            size = one.size
        filled[-1].append(one)
    return filled


def _merge_adjacent(group: Sequence[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for one in group:
        before = joined[-1] if joined else None
        if before and (before.topic_partition, before.until_offset) == (one.topic_partition, one.from_offset):
            joined[-1] = replace(before, until_offset=one.until_offset)
        else:
            joined.append(one)
    return tuple(joined)
