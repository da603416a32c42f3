"""Filters of batch queries: what they narrow, and what is left for Spark to check."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_source.plan.filters import Wanted, narrow

AT_5_MS = datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=timezone.utc)
MICROSECOND = timedelta(microseconds=1)
BEGINS = {("a", 0): 10, ("a", 1): 20, ("b", 0): 30}
ENDS = {("a", 0): 15, ("a", 1): 25, ("b", 0): 35}


def a(kind: str, column: str, value: Any = None) -> Any:
    """A filter of PySpark's by the name of its class."""
    return type(kind, (SimpleNamespace,), {})(attribute=(column,), value=value)


def ranges(*filters: Any) -> dict[tuple[str, int], tuple[int, int]]:
    """What is left of three partitions."""
    begins, ends = narrow(Wanted(), filters)[0].cut(BEGINS, ENDS)
    return {key: (begins[key], ends[key]) for key in ends if begins[key] < ends[key]}


def left_for_spark(*filters: Any) -> list[Any]:
    return narrow(Wanted(), filters)[1]


def test_without_filters_all_is_wanted() -> None:
    assert ranges() == {("a", 0): (10, 15), ("a", 1): (20, 25), ("b", 0): (30, 35)}


@pytest.mark.parametrize(
    ("one", "partitions"),
    [
        (a("EqualTo", "partition", 1), {1}),
        (a("EqualNullSafe", "partition", 1), {1}),
        (a("In", "partition", (1, 7)), {1}),
        (a("In", "partition", ()), set()),
        (a("GreaterThan", "partition", 0), {1}),
        (a("GreaterThanOrEqual", "partition", 0), {0, 1}),
        (a("LessThan", "partition", 1), {0}),
        (a("LessThanOrEqual", "partition", 1), {0, 1}),
        (a("EqualTo", "partition", -1), set()),
    ],
)
def test_filters_on_the_partition_leave_out_others_and_are_done(one: Any, partitions: set[int]) -> None:
    assert {partition for _, partition in ranges(one)} == partitions
    assert left_for_spark(one) == []


def test_filters_on_the_topic_leave_out_others_and_are_done() -> None:
    for one in (a("EqualTo", "topic", "b"), a("In", "topic", ("b", "c"))):
        assert ranges(one) == {("b", 0): (30, 35)}
        assert left_for_spark(one) == []


@pytest.mark.parametrize(
    ("one", "left"),
    [
        (a("EqualTo", "offset", 12), {("a", 0): (12, 13)}),
        (a("GreaterThan", "offset", 22), {("a", 1): (23, 25), ("b", 0): (30, 35)}),
        (a("GreaterThanOrEqual", "offset", 22), {("a", 1): (22, 25), ("b", 0): (30, 35)}),
        (a("LessThan", "offset", 22), {("a", 0): (10, 15), ("a", 1): (20, 22)}),
        (a("LessThanOrEqual", "offset", 22), {("a", 0): (10, 15), ("a", 1): (20, 23)}),
    ],
)
def test_filters_on_the_offset_cut_ranges_and_are_done(one: Any, left: dict[tuple[str, int], tuple[int, int]]) -> None:
    assert ranges(one) == left
    assert left_for_spark(one) == []


def test_several_offsets_cut_to_what_lies_between_and_spark_checks_again() -> None:
    one = a("In", "offset", (24, 12, 11, 99))
    assert ranges(one) == {("a", 0): (11, 13), ("a", 1): (24, 25)}
    assert left_for_spark(one) == [one]


def test_all_filters_hold_at_once() -> None:
    filters = (
        a("IsNotNull", "offset"),
        a("GreaterThan", "offset", 11),
        a("LessThan", "offset", 14),
        a("EqualTo", "partition", 0),
        a("In", "offset", (12, 50)),
    )
    assert ranges(*filters) == {("a", 0): (12, 13)}
    assert left_for_spark(*filters) == [filters[-1]]
    assert ranges(a("EqualTo", "partition", 0), a("EqualTo", "partition", 1)) == {}


@pytest.mark.parametrize(
    ("filters", "from_time_ms"),
    [
        ([a("GreaterThanOrEqual", "timestamp", AT_5_MS)], 5),
        ([a("GreaterThan", "timestamp", AT_5_MS)], 6),
        ([a("GreaterThanOrEqual", "timestamp", AT_5_MS + MICROSECOND)], 6),
        ([a("GreaterThan", "timestamp", AT_5_MS - MICROSECOND)], 5),
        ([a("EqualTo", "timestamp", AT_5_MS)], 5),
        ([a("In", "timestamp", (AT_5_MS + 3 * MICROSECOND, AT_5_MS))], 5),
        ([a("GreaterThan", "timestamp", AT_5_MS), a("EqualTo", "timestamp", AT_5_MS)], 6),
        # A later record may have an earlier time: an upper bound says nothing.
        ([a("LessThan", "timestamp", AT_5_MS)], None),
        ([a("LessThanOrEqual", "timestamp", AT_5_MS)], None),
        ([a("GreaterThan", "timestamp", AT_5_MS.replace(tzinfo=None))], None),
        ([a("GreaterThan", "timestamp", AT_5_MS - timedelta(days=1))], None),
        ([a("GreaterThan", "timestamp", None)], None),
    ],
)
def test_filters_on_the_timestamp_tell_where_to_begin_and_spark_checks_again(
    filters: list[Any], from_time_ms: int | None
) -> None:
    assert narrow(Wanted(), filters)[0].from_time_ms == from_time_ms
    assert left_for_spark(*filters) == filters


@pytest.mark.parametrize(
    "one",
    [
        a("EqualTo", "key", b"x"),
        a("EqualTo", "partition", None),
        a("EqualTo", "partition", True),
        a("In", "partition", (0, None)),
        a("EqualTo", "topic", 5),
        a("GreaterThan", "topic", "a"),
        a("StringStartsWith", "topic", "a"),
        a("IsNotNull", "key"),
        a("IsNull", "partition"),
        type("Not", (SimpleNamespace,), {})(child=a("EqualTo", "partition", 0)),
        type("EqualTo", (SimpleNamespace,), {})(attribute=("headers", "key"), value=0),
    ],
    ids=repr,
)
def test_what_narrows_nothing_is_left_for_spark(one: Any) -> None:
    assert left_for_spark(one) == [one]
    assert ranges(one) == ranges()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["EqualTo", "In", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]),
            st.sampled_from(["partition", "offset"]),
            st.integers(-1, 12),
            st.integers(-1, 12),
        ),
        max_size=4,
    )
)
def test_no_wanted_offset_is_cut_away_and_with_spark_s_checks_none_too_many_is_left(
    drawn: list[tuple[str, str, int, int]],
) -> None:
    filters = [a(kind, column, (low, high) if kind == "In" else low) for kind, column, low, high in drawn]
    holds = {
        "EqualTo": lambda number, value: number == value,
        "In": lambda number, value: number in value,
        "GreaterThan": lambda number, value: number > value,
        "GreaterThanOrEqual": lambda number, value: number >= value,
        "LessThan": lambda number, value: number < value,
        "LessThanOrEqual": lambda number, value: number <= value,
    }

    def passing(checks: list[Any], rows: set[tuple[int, int]]) -> set[tuple[int, int]]:
        return {
            (partition, offset)
            for partition, offset in rows
            if all(
                holds[type(one).__name__](partition if one.attribute == ("partition",) else offset, one.value)
                for one in checks
            )
        }

    starts, ends = {("t", p): 0 for p in range(4)}, {("t", p): 11 for p in range(4)}
    wanted, unchecked = narrow(Wanted(), filters)
    begins, untils = wanted.cut(starts, ends)
    read = {(key[1], offset) for key in untils for offset in range(begins[key], untils[key])}
    every = {(key[1], offset) for key in ends for offset in range(11)}
    assert passing(unchecked, read) == passing(filters, every)


def test_pyspark_s_own_filters_are_known() -> None:
    datasource = pytest.importorskip("pyspark.sql.datasource")
    if not hasattr(datasource, "EqualTo"):
        pytest.skip("filters came with PySpark 4.1")
    filters = [datasource.IsNotNull(("partition",)), datasource.EqualTo(("partition",), 1)]
    assert narrow(Wanted(), filters)[1] == []
    assert narrow(Wanted(), [datasource.In(("offset",), (1, 2))])[0].offsets.among == {1, 2}
    negated = datasource.Not(datasource.EqualTo(("partition",), 1))
    assert narrow(Wanted(), [negated]) == (Wanted(), [negated])
