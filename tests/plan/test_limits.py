"""Ends of a limited batch. Example cases have the results of Spark's own connector; properties hold for any input."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan.limits import end_offsets, max_bytes, max_offsets, offsets_for_bytes

pytestmark = pytest.mark.soak

LOGS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)).map(lambda log: (log[0], log[0] + log[1])),
    min_size=1,
)


def ends(limit: int | None, *logs: tuple[int, int]) -> list[int]:
    """Return the ends for partitions (start, log end offset) 0, 1, 2, … of one topic."""
    starts = {("t", number): start for number, (start, _) in enumerate(logs)}
    available = {("t", number): end for number, (_, end) in enumerate(logs)}
    return list(end_offsets(starts, available, limit).values())


# Limit, partitions (start, log end offset), and their ends.
LIMITS = {
    "no limit": (None, [(0, 10), (5, 5), (7, 9)], [10, 5, 9]),
    "in proportion to lag": (10, [(0, 100), (1_000, 1_300)], [2, 1_007]),
    "at least one record": (10, [(0, 1), (0, 1_000), (4, 4)], [1, 9, 4]),
    "at least one record of each": (1, [(0, 5)] * 3, [1, 1, 1]),
    "rounded down above one": (5, [(0, 10), (0, 10)], [2, 2]),
    "above the lag": (1_000, [(0, 3), (0, 4)], [3, 4]),
    # In doubles, in Spark's order: 49 * (1 / 49) is just below 1; 49 * 1 / 49 would be 1.
    "just below 1": (49, [(0, 1)] * 49, [1] * 49),
    # 3 * (15 / 45) is 1 and stays 1; 100 * (29 / 100) is 28.999999999999996 and becomes 28.
    "exactly 1": (3, [(0, 15), (0, 30)], [1, 2]),
    "just below 29": (100, [(0, 29), (0, 71)], [28, 71]),
    "log end before the start": (None, [(10, 4), (0, 5)], [10, 5]),
    "limit and log end before the start": (3, [(10, 4), (0, 5)], [10, 3]),
}


@pytest.mark.parametrize(("limit", "logs", "result"), LIMITS.values(), ids=LIMITS)
def test_limit_is_shared_by_partitions(limit: int | None, logs: list[tuple[int, int]], result: list[int]) -> None:
    assert ends(limit, *logs) == result


def test_ends_are_sorted_and_omit_partitions_without_a_log() -> None:
    starts = {("b", 0): 1, ("a", 10): 1, ("a", 9): 1, ("gone", 0): 1}
    offsets = end_offsets(starts, {("b", 0): 2, ("a", 10): 2, ("a", 9): 2}, 1)
    assert list(offsets) == [("a", 9), ("a", 10), ("b", 0)]


def test_new_partition_without_a_start_is_an_error() -> None:
    with pytest.raises(UsageError, match="orders-3 is new"):
        end_offsets({}, {("orders", 3): 5}, None)


@given(LOGS, st.integers(1, 10**6))
def test_limited_batch_advances_within_the_log(logs: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    starts = {tp: log[0] for tp, log in logs.items()}
    available = {tp: log[1] for tp, log in logs.items()}
    offsets = end_offsets(starts, available, limit)
    for tp, (start, end) in logs.items():
        assert start + (1 if end > start else 0) <= offsets[tp] <= end
    assert sum(offsets[tp] - starts[tp] for tp in offsets) <= limit + len(logs)


def ends_by_bytes(limit_bytes: int, *logs: tuple[int, int, float]) -> list[int]:
    """Return the ends for partitions (start, log end offset, bytes per offset) 0, 1, 2, … of one topic."""
    starts = {("t", number): start for number, (start, _, _) in enumerate(logs)}
    available = {("t", number): end for number, (_, end, _) in enumerate(logs)}
    sizes = {("t", number): size for number, (start, end, size) in enumerate(logs) if end > start}
    return list(end_offsets(starts, available, offsets_for_bytes(starts, available, sizes, limit_bytes)).values())


# Limit in bytes, partitions (start, log end offset, bytes per offset), and their ends.
BYTE_LIMITS = {
    # Half of 1000 bytes is 500, half of 9000 bytes is 4500.
    "in proportion to lag in bytes": (5_000, [(0, 100, 10.0), (50, 60, 900.0)], [50, 55]),
    "a partition without lag": (5_000, [(0, 1_000, 1.0), (50, 50, 7.0), (50, 60, 900.0)], [500, 50, 55]),
    # As a limit in offsets, doubles would give 28 of 29 offsets (see the example above).
    "above the lag": (1_000, [(0, 29, 10.0), (0, 71, 10.0)], [29, 71]),
    "no lag": (1, [(3, 3, 0.0), (9, 4, 0.0)], [3, 9]),
    "below a record": (1, [(0, 5, 1e6), (0, 1_000, 1e6), (7, 7, 1.0)], [1, 1, 7]),
}


@pytest.mark.parametrize(("limit_bytes", "logs", "result"), BYTE_LIMITS.values(), ids=BYTE_LIMITS)
def test_byte_limit_is_shared_by_partitions(
    limit_bytes: int, logs: list[tuple[int, int, float]], result: list[int]
) -> None:
    assert ends_by_bytes(limit_bytes, *logs) == result


@given(LOGS, st.data(), st.integers(1, 10**12))
def test_byte_limited_batch_exceeds_the_limit_by_at_most_one_record_per_partition(
    logs: dict[TopicPartition, tuple[int, int]], data: st.DataObject, limit_bytes: int
) -> None:
    starts = {tp: log[0] for tp, log in logs.items()}
    available = {tp: log[1] for tp, log in logs.items()}
    sizes = {tp: data.draw(st.floats(1e-3, 1e7)) for tp in logs}
    offsets = end_offsets(starts, available, offsets_for_bytes(starts, available, sizes, limit_bytes))
    total = sum((offsets[tp] - starts[tp]) * sizes[tp] for tp in logs)
    assert total <= (limit_bytes + sum(sizes.values())) * (1 + 1e-9)
    for tp, (start, end) in logs.items():
        assert start + (1 if end > start else 0) <= offsets[tp] <= end


READ_ALL = type("ReadAllAvailable", (), {})()
READ_MAX = type("ReadMaxRows", (SimpleNamespace,), {})(max_rows=7)


@pytest.mark.parametrize(
    ("limit", "option", "offsets", "size_bytes"),
    [(READ_ALL, 5, None, None), (READ_MAX, 5, 7, 5), (READ_MAX, None, 7, None), (None, 5, 5, 5), (None,) * 4],
    ids=["Trigger.Once", "rows and option", "rows", "option", "none"],
)
def test_limit_is_sparks_read_limit_or_else_the_option(
    limit: object, option: int | None, offsets: int | None, size_bytes: int | None
) -> None:
    assert (max_offsets(limit, option), max_bytes(limit, option)) == (offsets, size_bytes)


def test_read_limits_of_spark_are_known() -> None:
    datasource = pytest.importorskip("pyspark.sql.streaming.datasource")
    assert max_offsets(datasource.ReadAllAvailable(), 5) is None
    assert max_offsets(datasource.ReadMaxRows(7), 5) == 7
    with pytest.raises(UsageError, match="ReadMaxFiles"):
        max_offsets(datasource.ReadMaxFiles(7), 5)
