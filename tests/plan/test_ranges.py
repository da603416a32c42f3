"""Ranges of a batch from its two offsets, and their tasks. The cases of `split` are from Spark's own connector."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import DataLoss, UsageError
from protocol.fetch.log_offsets import Range
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.plan.ranges import group_ranges, offset_ranges, unresolved
from spark_kafka_source.plan.ranges import split as split_ranges
from tests.support.offsets import batch_end

pytestmark = pytest.mark.soak

T1, T2, T3 = ("t1", 1), ("t2", 1), ("t3", 1)
OLD_ID, NEW_ID = b"o" * 16, b"n" * 16


def split(min_partitions: int | None, *ranges: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Return (topic, from, until) of the ranges made of t1-1, t2-1, t3-1 with these offsets."""
    names = (T1, T2, T3)
    start = batch_end({tp: begin for tp, (begin, _) in zip(names, ranges, strict=False)})
    end = batch_end({tp: until for tp, (_, until) in zip(names, ranges, strict=False)})
    result = offset_ranges(start, end, min_partitions=min_partitions)
    return [(r.topic, r.from_offset, r.until_offset) for r in result]


SKEWED = [("t1", 1, 5), ("t2", 1, 7), ("t2", 7, 14), ("t2", 14, 21)]
# min_partitions, offsets of the partitions, and their ranges.
SPLIT = {
    "one range for new records": (None, [(1, 2)], [("t1", 1, 2)]),
    "none without new records": (None, [(1, 2), (1, 1)], [("t1", 1, 2)]),
    "min partitions reached": (3, [(1, 2)] * 3, [("t1", 1, 2), ("t2", 1, 2), ("t3", 1, 2)]),
    "min partitions exceeded": (1, [(1, 5), (1, 21)], [("t1", 1, 5), ("t2", 1, 21)]),
    "a single partition": (4, [(1, 5)], [("t1", 1, 2), ("t1", 2, 3), ("t1", 3, 4), ("t1", 4, 5)]),
    "in proportion to size": (4, [(1, 5), (1, 21)], SKEWED),
    "in proportion, one empty": (4, [(1, 5), (1, 21), (1, 1)], SKEWED),
    "one much larger": (*(4, [(1, 2), (1, 1001)]), [("t1", 1, 2), ("t2", 1, 334), ("t2", 334, 667), ("t2", 667, 1001)]),
    "none of an empty partition": (4, [(1, 1), (1, 21)], [("t2", n, n + 5) for n in (1, 6, 11, 16)]),
    "rounding remainder in the last": (3, [(1, 11)], [("t1", 1, 4), ("t1", 4, 7), ("t1", 7, 11)]),
    "more pieces than min partitions": (
        *(6, [(0, 10), (0, 10), (0, 1)]),
        [*((topic, *piece) for topic in ("t1", "t2") for piece in ((0, 3), (3, 6), (6, 10))), ("t3", 0, 1)],
    ),
    # 2.5 pieces each: Java rounds to 3, Python's `round` to 2.
    "half a piece is rounded up": (
        *(5, [(0, 100), (0, 100)]),
        [(topic, *piece) for topic in ("t1", "t2") for piece in ((0, 33), (33, 66), (66, 100))],
    ),
    "large ones evenly": (
        *(9, [(0, 10_000), (0, 15_000), (0, 20_000)]),
        [(f"t{n}", begin, begin + 5_000) for n in (1, 2, 3) for begin in range(0, 5_000 * (n + 1), 5_000)],
    ),
    "a small one whole": (
        *(6, [(0, 500), (0, 12_000), (0, 15_001)]),
        [
            *(("t1", 0, 500), ("t2", 0, 6_000), ("t2", 6_000, 12_000)),
            *(("t3", 0, 5_000), ("t3", 5_000, 10_000), ("t3", 10_000, 15_001)),
        ],
    ),
    "two small ones whole": (
        *(6, [(0, 1), (0, 1), (0, 10_000)]),
        [("t1", 0, 1), ("t2", 0, 1), *(("t3", begin, begin + 2_500) for begin in range(0, 10_000, 2_500))],
    ),
}


@pytest.mark.parametrize(("min_partitions", "offsets", "ranges"), SPLIT.values(), ids=SPLIT)
def test_partitions_are_split(
    min_partitions: int | None, offsets: list[tuple[int, int]], ranges: list[tuple[str, int, int]]
) -> None:
    assert split(min_partitions, *offsets) == ranges


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.tuples(st.integers(0, 99), st.integers(0, 9999))
    ),
    st.none() | st.integers(1, 40),
)
def test_ranges_cover_each_new_offset_once(logs: dict[tuple[str, int], tuple[int, int]], expected: int | None) -> None:
    start = batch_end({tp: begin for tp, (begin, _) in logs.items()})
    end = batch_end({tp: begin + size for tp, (begin, size) in logs.items()})
    ranges = offset_ranges(start, end, min_partitions=expected)
    assert all(r.size > 0 for r in ranges)
    for tp, (begin, size) in logs.items():
        at = begin
        for piece in (r for r in ranges if (r.topic, r.partition) == tp):
            assert piece.from_offset == at
            at = piece.until_offset
        assert at == begin + size


# Start and end of a batch, and its ranges.
STARTS = {
    "topic id and epochs of both ends": (
        batch_end({T1: 5}, ids={"t1": NEW_ID}, epochs={T1: 3}),
        batch_end({T1: 9}, ids={"t1": NEW_ID}, epochs={T1: 4}),
        [Range("t1", 1, 5, 9, topic_id=NEW_ID, from_epoch=3, until_epoch=4)],
    ),
    "Kafka's sentinels for unknown ids and epochs": (
        batch_end({T1: 5}),
        batch_end({T1: 9}),
        [Range("t1", 1, 5, 9, NO_TOPIC_ID, from_epoch=-1, until_epoch=-1)],
    ),
    "joined offset of a partition that is missing in the start": (
        batch_end({T1: 5}),
        batch_end({T1: 5, T2: 9}, joined={T2: 7}),
        [Range("t2", 1, 7, 9)],
    ),
    "joined offset in a recreated topic": (
        batch_end({T1: 500}, ids={"t1": OLD_ID}, epochs={T1: 3}),
        batch_end({T1: 20}, ids={"t1": NEW_ID}, joined={T1: 0}),
        [Range("t1", 1, 0, 20, topic_id=NEW_ID)],
    ),
    "joined offset in a log without the next offset": (
        batch_end({T1: 5, T2: 5}, ids={"t1": NEW_ID}, epochs={T1: 3}),
        batch_end({T1: 20, T2: 9}, {"t1": NEW_ID}, {T1: 4}, joined={T1: 12, T2: 9}, skipped={T1: 7, T2: 4}),
        [Range("t1", 1, 12, 20, topic_id=NEW_ID, until_epoch=4)],
    ),
    "joined offset in a log that has grown again to its old end": (
        batch_end({T1: 20}, ids={"t1": NEW_ID}, epochs={T1: 3}),
        batch_end({T1: 20}, ids={"t1": NEW_ID}, epochs={T1: 4}, joined={T1: 14}),
        [Range("t1", 1, 14, 20, topic_id=NEW_ID, until_epoch=4)],
    ),
    "none of a deleted partition": (batch_end({T1: 5, T2: 5}), batch_end({T1: 6}), [Range("t1", 1, 5, 6)]),
}


@pytest.mark.parametrize(("start", "end", "ranges"), STARTS.values(), ids=STARTS)
def test_ranges_begin_at_the_start_or_joined_offset(start: Offsets, end: Offsets, ranges: list[Range]) -> None:
    """Older versions of Spark request (end, end) after a restart: no record may be read again."""
    assert unresolved(start, end) == []
    assert offset_ranges(start, end) == ranges
    assert offset_ranges(end, end) == []


def test_first_piece_of_a_split_alone_has_the_previous_epoch() -> None:
    pieces = offset_ranges(batch_end({T1: 0}, epochs={T1: 3}), batch_end({T1: 3}, epochs={T1: 4}), min_partitions=3)
    assert [(r.from_epoch, r.until_epoch) for r in pieces] == [(3, 4), (-1, 4), (-1, 4)]


def test_new_partition_without_joined_offset_begins_at_the_given_earliest_offset() -> None:
    start, end = batch_end({T1: 5}), batch_end({T1: 6, T2: 9})
    assert unresolved(start, end) == [T2]
    assert offset_ranges(start, end, earliest={T2: 2})[1] == Range("t2", 1, 2, 9)
    with pytest.raises(UsageError, match="t2-1 is new"):
        offset_ranges(start, end)
    recreated = batch_end({T1: 500}, ids={"t1": OLD_ID}), batch_end({T1: 20}, ids={"t1": NEW_ID})
    assert unresolved(*recreated) == [T1]


def test_end_before_the_start_is_data_loss() -> None:
    problem = r"t1-1: the batch ends at offset 4, before it begins \(10\).*failOnDataLoss=false"
    with pytest.raises(DataLoss, match=problem):
        offset_ranges(batch_end({T1: 10}), batch_end({T1: 4}))


def test_end_before_the_start_is_skipped_with_a_warning_if_data_loss_is_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranges = offset_ranges(batch_end({T1: 10, T2: 0}), batch_end({T1: 4, T2: 1}), fail_on_data_loss=False)
    assert ranges == [Range("t2", 1, 0, 1)]
    assert "t1-1" in caplog.text


RANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 50), st.integers(1, 1_000)),
    unique_by=lambda row: row[:2],
    min_size=1,
    max_size=30,
).map(lambda rows: [Range(topic, number, begin, begin + size) for topic, number, begin, size in sorted(rows)])


def ranges_of(*sizes: int) -> list[Range]:
    """Return ranges of partitions 0, 1, 2, … of one topic."""
    return [Range("t", number, 0, size) for number, size in enumerate(sizes)]


def leaders_of(ranges: list[Range], brokers: int) -> dict[TopicPartition, int]:
    return {(source_range.topic, source_range.partition): source_range.partition % brokers for source_range in ranges}


def size(group: tuple[Range, ...]) -> int:
    return sum(source_range.size for source_range in group)


def test_ranges_without_a_task_limit_are_one_task_each() -> None:
    expected = ranges_of(5, 6, 7)
    assert group_ranges(expected, None, {}) == [(source_range,) for source_range in expected]
    assert group_ranges(expected, 3, {}) == [(source_range,) for source_range in expected]
    assert group_ranges([], 3, {}) == []


def test_ranges_of_one_leader_share_a_task() -> None:
    leaders = {("t", number): number % 3 for number in range(9)}
    groups = group_ranges(ranges_of(*[10] * 9), 3, leaders)
    assert [[source_range.partition for source_range in group] for group in groups] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_equal_task_size_takes_precedence_over_one_leader() -> None:
    leaders = {("t", number): 0 if number else 1 for number in range(5)}
    groups = group_ranges(ranges_of(100, 10, 10, 10, 90), 2, leaders)
    assert [[source_range.partition for source_range in group] for group in groups] == [[1, 2, 3, 4], [0]]
    assert [size(group) for group in group_ranges(ranges_of(100, 10, 10, 10, 90), 3, {})] == [100, 30, 90]


def test_largest_range_has_a_separate_task() -> None:
    assert [size(group) for group in group_ranges(ranges_of(1, 1, 1_000, 1, 1), 3, {})] == [2, 1_000, 2]


def test_adjacent_pieces_of_a_partition_are_merged() -> None:
    pieces = split_ranges([Range("t", 0, 5, 105, from_epoch=3, until_epoch=4)], max_records=7)
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
    groups = group_ranges(expected, most, leaders_of(expected, brokers))
    assert len(groups) <= max(most, 1)
    assert all(groups)
    key = lambda source_range: (source_range.topic, source_range.partition)  # noqa: E731
    assert sorted((source_range for group in groups for source_range in group), key=key) == sorted(expected, key=key)
    if len(expected) > most:
        sizes = [source_range.size for source_range in expected]
        assert max(map(size, groups)) <= sum(sizes) / most + max(sizes)


@given(RANGES, st.integers(1, 12), st.randoms())
def test_order_of_ranges_does_not_matter(expected: list[Range], most: int, rng: random.Random) -> None:
    shuffled = list(expected)
    rng.shuffle(shuffled)
    if len(expected) > most:
        leaders = leaders_of(expected, 3)
        assert group_ranges(shuffled, most, leaders) == group_ranges(expected, most, leaders)
