"""From ranges to tasks: all ranges of a batch put together into at most so many groups, each read by one task.

Pure: the same ranges and leaders give the same groups, so a replay has the same tasks. A group holds ranges of as few
leaders as possible, since one Fetch asks one broker for many partitions. Used by `stream_reader` and `batch_reader`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protocol.consumer.log_offsets import Range
from protocol.kafka_terms import TopicPartition


def groups(
    ranges: Sequence[Range], max_groups: int | None, leaders: Mapping[TopicPartition, int]
) -> list[tuple[Range, ...]]:
    """One group for each range; with more ranges than `max_groups`, at most that many, of about equal size.

    The ranges are put in order of their leaders (-1 where unknown) and cut into consecutive groups such that the
    largest is as small as it can be. Pieces of one partition that meet in a group become one range again.
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
    return [_joined(group) for group in _fill(ordered, low)]


def _fill(ordered: Sequence[Range], most: int) -> list[list[Range]]:
    """Consecutive groups, none larger than `most`, each as full as it can be."""
    filled: list[list[Range]] = []
    size = most + 1
    for one in ordered:
        size += one.size
        if size > most:
            filled.append([])
            size = one.size
        filled[-1].append(one)
    return filled


def _joined(group: Sequence[Range]) -> tuple[Range, ...]:
    joined: list[Range] = []
    for one in group:
        before = joined[-1] if joined else None
        if before and (before.topic_partition, before.until_offset) == (one.topic_partition, one.from_offset):
            joined[-1] = replace(before, until_offset=one.until_offset)
        else:
            joined.append(one)
    return tuple(joined)
