"""Rows are grouped by partition in their order, and cut into record batches of the wanted size."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.producer.accumulator import BATCH_HEADER_BYTES, Accumulator, Gathered
from protocol.records.encode import encode, record_sizes

SIZE = 100


def columns(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % n for n in range(first, first + count)])})


def measure(rows: pa.RecordBatch) -> np.ndarray:
    return np.full(rows.num_rows, SIZE, np.int64)


def accumulator_of(rows: int) -> Accumulator:
    """One whose record batches hold so many rows."""
    return Accumulator(limit(rows), measure)


def append(accumulator: Accumulator, first: int, partitions: list[int], size: int = SIZE, now_s: float = 0.0):
    rows = columns(first, len(partitions))
    sizes = np.full(len(partitions), size, np.int64)
    return accumulator.append("t", rows, np.array(partitions, np.int32), sizes, now_s)


def values(gathered: list[Gathered]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in gathered:
        found.setdefault(each.partition, []).extend(int(value) for value in each.rows.column("value").to_pylist())
    return found


def limit(rows: int) -> int:
    return BATCH_HEADER_BYTES + rows * SIZE


def test_rows_wait_until_a_record_batch_is_full_then_come_out_merged() -> None:
    accumulator = accumulator_of(6)
    assert append(accumulator, 0, [0, 1, 0]) == []
    assert append(accumulator, 3, [1, 0, 0]) == []
    full = append(accumulator, 6, [0, 0])
    assert [(each.partition, each.rows.num_rows, each.size_bytes) for each in full] == [(0, 6, limit(6))]
    assert values(full) == {0: [0, 2, 4, 5, 6, 7]}
    assert values(accumulator.drain()) == {1: [1, 3]}
    assert accumulator.drain() == []


def test_what_is_left_after_full_record_batches_waits_on() -> None:
    accumulator = accumulator_of(4)
    full = append(accumulator, 0, [0] * 10)
    assert [each.rows.num_rows for each in full] == [4, 4]
    assert values(accumulator.drain()) == {0: [8, 9]}


def test_large_slices_are_cut_without_a_copy() -> None:
    accumulator = accumulator_of(4)
    rows = columns(0, 7)
    sizes = np.full(7, SIZE, np.int64)
    address = rows.column("value").buffers()[2].address
    out = accumulator.append("t", rows, np.zeros(7, np.int32), sizes, 0.0)
    out += append(accumulator, 7, [0] * 3)
    assert [each.rows.num_rows for each in out] == [4, 3]
    assert [each.rows.column("value").buffers()[2].address for each in out] == [address, address]


def test_a_row_larger_than_the_limit_gets_a_record_batch_of_its_own() -> None:
    accumulator = accumulator_of(2)
    sizes = np.array([10, 1_000, 10], np.int64)
    full = accumulator.append("t", columns(0, 3), np.zeros(3, np.int32), sizes, 0.0)
    assert [each.rows.num_rows for each in [*full, *accumulator.drain()]] == [1, 1, 1]


def test_no_limit_at_all_means_one_row_a_record_batch() -> None:
    full = append(Accumulator(0, measure), 0, [0, 0, 1])
    assert [each.rows.num_rows for each in full] == [1, 1, 1]


def test_columns_of_another_kind_do_not_share_a_record_batch() -> None:
    accumulator = accumulator_of(10)
    append(accumulator, 0, [0, 0])
    keyed = pa.RecordBatch.from_pydict({"key": pa.array([b"k"]), "value": pa.array([b"2"])})
    full = accumulator.append("t", keyed, np.zeros(1, np.int32), np.array([SIZE], np.int64), 0.0)
    assert values(full) == {0: [0, 1]}
    assert accumulator.drain()[0].rows.schema.names == ["key", "value"]


def test_linger_lets_go_only_what_has_waited_so_long() -> None:
    accumulator = accumulator_of(10)
    append(accumulator, 0, [0], now_s=1.0)
    append(accumulator, 1, [1], now_s=2.0)
    assert accumulator.oldest_s == 1.0
    assert values(accumulator.waited_since(1.5)) == {0: [0]}
    assert accumulator.oldest_s == 2.0


def test_memory_is_counted_until_the_last_slice_of_the_columns_is_gone() -> None:
    accumulator = accumulator_of(2)
    append(accumulator, 0, [0, 1, 2])
    assert accumulator.held_bytes == 3 * SIZE
    append(accumulator, 3, [0, 1])
    assert accumulator.held_bytes == 3 * SIZE, "partition 2 still keeps the first columns alive"
    accumulator.drain()
    assert accumulator.held_bytes == 0


def test_memory_is_counted_for_what_is_left_after_a_cut() -> None:
    accumulator = accumulator_of(4)
    append(accumulator, 0, [0] * 6)
    assert accumulator.held_bytes == 2 * SIZE
    accumulator.drain()
    assert accumulator.held_bytes == 0


def test_rows_that_came_apart_are_measured_again_together() -> None:
    """Timestamps far apart take more bytes in one record batch than each of them in its own."""
    accumulator = Accumulator(10_000)
    out = []
    for number in range(400):
        rows = pa.RecordBatch.from_pydict({"value": pa.array([b"x" * 50]), "timestamp_ms": pa.array([number * 10**12])})
        out += accumulator.append("t", rows, np.zeros(1, np.int32), record_sizes(rows), 0.0)
    assert len(out) > 1
    assert all(len(encode(each.rows)) <= each.size_bytes <= 10_000 for each in out)


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(st.lists(st.integers(0, 5), max_size=30), max_size=12),
    rows=st.integers(1, 9),
    high=st.sampled_from([0, 40_000]),
)
def test_nothing_is_lost_nothing_is_doubled_and_order_is_kept(calls: list[list[int]], rows: int, high: int) -> None:
    accumulator = accumulator_of(rows)
    expected: dict[int, list[int]] = {}
    out: list[Gathered] = []
    number = 0
    for call in calls:
        for offset, partition in enumerate(call):
            expected.setdefault(partition + high, []).append(number + offset)
        out += append(accumulator, number, [partition + high for partition in call])
        number += len(call)
    out += accumulator.drain()
    assert all(each.size_bytes <= limit(rows) for each in out)
    assert values(out) == expected
    for partition in expected:
        counts = [each.rows.num_rows for each in out if each.partition == partition]
        assert all(two > rows for two in map(sum, itertools.pairwise(counts))), "two could have been one"
    assert accumulator.held_bytes == 0
