"""Grouping of ranges into tasks: each range is in one task, tasks have similar sizes and few leaders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.fetch.log_offsets import Range
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
    return sum(source_range.size for source_range in group)


def test_ranges_without_a_task_limit_are_one_task_each() -> None:
    expected = ranges(5, 6, 7)
    assert group_ranges(expected, None, {}) == [(source_range,) for source_range in expected]
    assert group_ranges(expected, 3, {}) == [(source_range,) for source_range in expected]
    assert group_ranges([], 3, {}) == []


def test_ranges_of_one_leader_share_a_task() -> None:
    leaders = {("t", number): number % 3 for number in range(9)}
    groups = group_ranges(ranges(*[10] * 9), 3, leaders)
    assert [[source_range.partition for source_range in group] for group in groups] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_equal_task_size_takes_precedence_over_one_leader() -> None:
    leaders = {("t", number): 0 if number else 1 for number in range(5)}
    groups = group_ranges(ranges(100, 10, 10, 10, 90), 2, leaders)
    assert [[source_range.partition for source_range in group] for group in groups] == [[1, 2, 3, 4], [0]]
    assert [size(group) for group in group_ranges(ranges(100, 10, 10, 10, 90), 3, {})] == [100, 30, 90]


def test_largest_range_has_a_separate_task() -> None:
    assert [size(group) for group in group_ranges(ranges(1, 1, 1_000, 1, 1), 3, {})] == [2, 1_000, 2]


def test_adjacent_pieces_of_a_partition_are_merged() -> None:
    pieces = split([Range("t", 0, 5, 105, from_epoch=3, until_epoch=4)], max_records=7)
    assert len(pieces) == 15
    assert group_ranges(pieces, 1, {}) == [(Range("t", 0, 5, 105, from_epoch=3, until_epoch=4),)]
    two = group_ranges(pieces, 2, {})
    assert [[(source_range.from_offset, source_range.until_offset) for source_range in group] for group in two] == [
        [(5, 56)],
        [(56, 105)],
    ]
    assert two[1][0].from_epoch == -1


@given(RANGES, st.integers(1, 12), st.integers(1, 4))
def test_offsets_are_in_one_task_each_of_minimal_size(expected: list[Range], most: int, brokers: int) -> None:
    leaders: dict[TopicPartition, int] = {
        (source_range.topic, source_range.partition): source_range.partition % brokers for source_range in expected
    }
    groups = group_ranges(expected, most, leaders)
    assert len(groups) <= max(most, 1)
    assert all(groups)
    key = lambda source_range: (source_range.topic, source_range.partition)  # noqa: E731
    assert sorted((source_range for group in groups for source_range in group), key=key) == sorted(expected, key=key)
    if len(expected) > most:
        total, largest = (
            sum(source_range.size for source_range in expected),
            max(source_range.size for source_range in expected),
        )
        assert max(map(size, groups)) <= total / most + largest


@given(RANGES, st.integers(1, 12), st.randoms())
def test_order_of_ranges_does_not_matter(expected: list[Range], most: int, rng: random.Random) -> None:
    leaders: dict[TopicPartition, int] = {
        (source_range.topic, source_range.partition): source_range.partition % 3 for source_range in expected
    }
    shuffled = list(expected)
    rng.shuffle(shuffled)
    if len(expected) > most:
        assert group_ranges(shuffled, most, leaders) == group_ranges(expected, most, leaders)
