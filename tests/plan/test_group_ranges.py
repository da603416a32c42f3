"""Grouping of ranges into tasks: each range is in one task, tasks have similar sizes and few leaders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consumer.log_offsets import Range
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan.ranges import group_ranges, split

pytestmark = pytest.mark.soak

RANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 50), st.integers(1, 1_000)),
    unique_by=lambda row: row[:2],
    min_size=1,
    max_size=30,
).map(lambda rows: [Range(topic, number, begin, begin + size) for topic, number, begin, size in sorted(rows)])


def ranges(*sizes: int) -> list[Range]:
    """Return ranges of partitions 0, 1, 2, … of one topic."""
    return [Range("t", number, 0, size) for number, size in enumerate(sizes)]


def size(group: tuple[Range, ...]) -> int:
    return sum(one.size for one in group)


def test_ranges_without_a_task_limit_are_one_task_each() -> None:
    wanted = ranges(5, 6, 7)
    assert group_ranges(wanted, None, {}) == [(one,) for one in wanted]
    assert group_ranges(wanted, 3, {}) == [(one,) for one in wanted]
    assert group_ranges([], 3, {}) == []


def test_ranges_of_one_leader_share_a_task() -> None:
    leaders = {("t", number): number % 3 for number in range(9)}
    found = group_ranges(ranges(*[10] * 9), 3, leaders)
    assert [[one.partition for one in group] for group in found] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_equal_task_size_takes_precedence_over_one_leader() -> None:
    leaders = {("t", number): 0 if number else 1 for number in range(5)}
    found = group_ranges(ranges(100, 10, 10, 10, 90), 2, leaders)
    assert [[one.partition for one in group] for group in found] == [[1, 2, 3, 4], [0]]
    assert [size(group) for group in group_ranges(ranges(100, 10, 10, 10, 90), 3, {})] == [100, 30, 90]


def test_largest_range_has_a_separate_task() -> None:
    assert [size(group) for group in group_ranges(ranges(1, 1, 1_000, 1, 1), 3, {})] == [2, 1_000, 2]


def test_adjacent_pieces_of_a_partition_are_merged() -> None:
    pieces = split([Range("t", 0, 5, 105, from_epoch=3, until_epoch=4)], max_records=7)
    assert len(pieces) == 15
    assert group_ranges(pieces, 1, {}) == [(Range("t", 0, 5, 105, from_epoch=3, until_epoch=4),)]
    two = group_ranges(pieces, 2, {})
    assert [[(one.from_offset, one.until_offset) for one in group] for group in two] == [[(5, 56)], [(56, 105)]]
    assert two[1][0].from_epoch == -1


@given(RANGES, st.integers(1, 12), st.integers(1, 4))
def test_offsets_are_in_one_task_each_of_minimal_size(wanted: list[Range], most: int, brokers: int) -> None:
    leaders: dict[TopicPartition, int] = {(one.topic, one.partition): one.partition % brokers for one in wanted}
    found = group_ranges(wanted, most, leaders)
    assert len(found) <= max(most, 1)
    assert all(found)
    key = lambda one: (one.topic, one.partition)  # noqa: E731
    assert sorted((one for group in found for one in group), key=key) == sorted(wanted, key=key)
    if len(wanted) > most:
        total, largest = sum(one.size for one in wanted), max(one.size for one in wanted)
        assert max(map(size, found)) <= total / most + largest


@given(RANGES, st.integers(1, 12), st.randoms())
def test_order_of_ranges_does_not_matter(wanted: list[Range], most: int, rng: random.Random) -> None:
    leaders: dict[TopicPartition, int] = {(one.topic, one.partition): one.partition % 3 for one in wanted}
    shuffled = list(wanted)
    rng.shuffle(shuffled)
    if len(wanted) > most:
        assert group_ranges(shuffled, most, leaders) == group_ranges(wanted, most, leaders)
