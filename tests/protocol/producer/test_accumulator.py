"""Rows are grouped by partition in order, and cut into record batches of the configured size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.producer.accumulator import Accumulator, BatchSlice, ReadyBatches
from protocol.producer.results import SentColumns
from protocol.records.batch_header import HEADER_BYTES
from protocol.records.encode import encode_batches, record_sizes
from protocol.records.record_columns import record_columns

pytestmark = pytest.mark.soak

SIZE = 100
KEYED = pa.RecordBatch.from_pydict({"key": pa.array([b"k"]), "value": pa.array([b"2"]), "timestamp_ms": [0]})


def columns(first: int, count: int) -> pa.RecordBatch:
    values = pa.array([b"%d" % n for n in range(first, first + count)])
    return pa.RecordBatch.from_pydict({"value": values, "timestamp_ms": pa.array([0] * count, pa.int64())})


def accumulator_of(rows: int) -> Accumulator:
    """Return an accumulator whose record batches hold `rows` rows."""
    return Accumulator(limit(rows))


def append(
    accumulator: Accumulator,
    first: int,
    partitions: list[int],
    size: int | list[int] = SIZE,
    now_s: float = 0.0,
    rows: pa.RecordBatch | None = None,
) -> list[ReadyBatches]:
    """Append rows with numbers from `first` on, or these rows."""
    rows = columns(first, len(partitions)) if rows is None else rows
    sizes = np.full(len(partitions), size, np.int64)
    return accumulator.append("t", rows, np.array(partitions, np.int32), sizes, now_s)


def batches(ready: Iterable[ReadyBatches]) -> Iterator[tuple[BatchSlice, list[int]]]:
    """Yield the record batches, each with its values."""
    for batches in ready:
        in_order = batches.rows() if batches.order is None else batches.rows().take(pa.array(batches.order))
        rows = iter(in_order["value"].to_pylist())
        yield from ((batch, [int(value) for value in islice(rows, batch.count)]) for batch in batches.batch_slices)
        assert next(rows, None) is None


def values(ready: Iterable[ReadyBatches]) -> dict[int, list[int]]:
    values_by_key: dict[int, list[int]] = {}
    for batch, numbers in batches(ready):
        values_by_key.setdefault(batch.partition, []).extend(numbers)
    return values_by_key


def counts(ready: Iterable[ReadyBatches]) -> list[int]:
    return [batch.count for batches in ready for batch in batches.batch_slices]


def limit(rows: int) -> int:
    return HEADER_BYTES + rows * SIZE


def test_rows_wait_until_a_record_batch_is_full_and_are_merged() -> None:
    accumulator = accumulator_of(6)
    assert append(accumulator, 0, [0, 1, 0]) == []
    assert append(accumulator, 3, [1, 0, 0]) == []
    full = append(accumulator, 6, [0, 0])
    assert [batches.batch_slices for batches in full] == [[BatchSlice("t", 0, 6, limit(6))]]
    assert values(full) == {0: [0, 2, 4, 5, 6, 7]}
    assert values(accumulator.drain()) == {1: [1, 3]}
    assert not accumulator.drain()


@pytest.mark.parametrize(("rows", "days"), [(1, 1), (1, 0), (20, 1)])
def test_rows_of_many_calls_never_exceed_the_batch_size(rows: int, days: int) -> None:
    """The deltas of timestamps and offsets in a record batch grow with each call whose rows join it."""
    accumulator, ready = Accumulator(20_000), []
    for call in range(4_000 // rows):
        times_ms = pa.array([(call * rows + nth) * days * 86_400_000 for nth in range(rows)], pa.int64())
        columns = record_columns(pa.RecordBatch.from_pydict({"value": [b"v"] * rows, "timestamp_ms": times_ms}), 0)
        ready += accumulator.append("t", columns, np.zeros(rows, np.int32), record_sizes(columns), 0.0)
    for batches in ready:
        encoded = encode_batches(batches.rows(), [batch.count for batch in batches.batch_slices])
        for batch, records in zip(batches.batch_slices, encoded, strict=True):
            assert 17_000 < len(records) <= batch.size_bytes <= 20_000


def test_rows_above_the_batch_size_are_cut_at_once_into_similar_parts() -> None:
    accumulator = accumulator_of(4)
    (ready,) = append(accumulator, 0, [0] * 10)
    assert counts([ready]) == [4, 3, 3]
    assert not accumulator.drain()


def test_long_rows_are_sorted_during_encoding_unless_most_of_them_wait() -> None:
    partitions = [n * n % 5 for n in range(3_000)]
    accumulator = Accumulator(HEADER_BYTES + 100 * 300)
    (out,) = append(accumulator, 0, partitions, size=300)
    assert out.rows().num_rows == 3_000
    assert values([out, *accumulator.drain()]) == {
        p: [n for n in range(3_000) if partitions[n] == p] for p in set(partitions)
    }
    few = append(Accumulator(HEADER_BYTES + 1_000 * 300), 0, [0] * 1_100 + [n % 10 + 1 for n in range(1_900)], size=300)
    assert [batches.order for batches in few] == [None], "sorting would copy the other rows needlessly"


def test_rows_returned_together_have_at_most_3_mib() -> None:
    rows = 40_000
    out = append(accumulator_of(100), 0, [n % 3 for n in range(rows)])
    assert sum(counts(out)) == rows
    assert 1 < len(out) < 10
    assert all(sum(batch.size_bytes for batch in batches.batch_slices) <= 3 << 20 for batches in out)


def test_drained_rows_returned_together_have_at_most_3_mib_or_one_batch() -> None:
    """No array of bytes has more than 2 GiB, so more rows than that must not be encoded together."""
    accumulator = Accumulator(2**31 - 1)
    append(accumulator, 0, list(range(5)), size=2**30)
    append(accumulator, 5, list(range(5, 20)), size=2**20)
    out = accumulator.drain()
    assert [len(batches.batch_slices) for batches in out] == [1] * 5 + [3] * 5
    assert values(out) == {number: [number] for number in range(20)}


def test_rows_of_one_partition_are_not_copied() -> None:
    accumulator = accumulator_of(4)
    rows = columns(0, 7)
    address = rows.column("value").buffers()[2].address
    (ready,) = append(accumulator, 0, [0] * 7, rows=rows)
    assert ready.rows().column("value").buffers()[2].address == address


def test_row_larger_than_the_limit_gets_a_separate_record_batch() -> None:
    assert counts(append(accumulator_of(2), 0, [0, 0, 0], size=[10, 1_000, 10])) == [1, 1, 1]


def test_batch_size_0_means_one_row_per_record_batch() -> None:
    assert counts(append(Accumulator(0), 0, [0, 0, 1])) == [1, 1, 1]


def test_columns_of_different_schemas_do_not_share_a_record_batch() -> None:
    accumulator = accumulator_of(10)
    append(accumulator, 0, [0, 0])
    full = append(accumulator, 2, [0], rows=KEYED)
    assert values(full) == {0: [0, 1]}
    append(accumulator, 3, [1])
    names = [batches.rows().schema.names for batches in accumulator.drain()]
    assert names == [["key", "value", "timestamp_ms"], ["value", "timestamp_ms"]]


def test_linger_releases_only_rows_that_waited_long_enough() -> None:
    accumulator = accumulator_of(10)
    append(accumulator, 0, [0], now_s=1.0)
    append(accumulator, 1, [1], now_s=2.0)
    assert accumulator.oldest_s() == 1.0
    assert values(accumulator.take_lingered(1.5)) == {0: [0]}
    assert accumulator.oldest_s() == 2.0


def test_rows_of_partitions_with_a_queue_stay_until_they_fill_a_batch() -> None:
    accumulator = accumulator_of(2)
    append(accumulator, 0, [0, 1], now_s=1.0)
    assert values(accumulator.take_lingered(5.0, lambda key: key == ("t", 0))) == {1: [1]}
    assert (accumulator.oldest_s(), accumulator.oldest_s(5.0)) == (1.0, None)
    (full,) = append(accumulator, 2, [0], now_s=6.0)
    assert values([full]) == {0: [0, 2]}
    assert [batch_slice.since_s for batch_slice in full.batch_slices] == [1.0]


def test_bytes_of_waiting_rows_are_counted_until_they_are_output() -> None:
    accumulator = Accumulator(limit(3))
    append(accumulator, 0, [0, 1, 2, 2])
    assert accumulator.waiting_bytes == 4 * SIZE
    (full,) = append(accumulator, 4, [0, 0, 1])
    assert (accumulator.waiting_bytes, full.held_bytes) == (4 * SIZE, 3 * SIZE)
    append(accumulator, 7, [4], rows=KEYED)
    assert [batches.held_bytes for batches in accumulator.drain()] == [4 * SIZE, SIZE]
    assert accumulator.waiting_bytes == 0


def test_long_runs_of_a_partition_fill_record_batches() -> None:
    """Like rows without a key: 16 KiB of them for one partition, then for another."""
    accumulator = accumulator_of(100)
    partitions = [number for number in (0, 1, 0, 1, 0, 1) for _ in range(40)]
    full = append(accumulator, 0, partitions)
    assert counts(full) == [80, 80]
    batcheses = accumulator.drain()
    assert values([*full, *batcheses]) == {
        0: [number for number, partition in enumerate(partitions) if partition == 0],
        1: [number for number, partition in enumerate(partitions) if partition == 1],
    }


@pytest.mark.parametrize("limits", [(limit(40),), (limit(1_000), 40)])
@pytest.mark.parametrize("run", [40, 50])
def test_run_that_fills_a_record_batch_is_joined_with_later_runs(limits: tuple[int, ...], run: int) -> None:
    accumulator = Accumulator(*limits)
    partitions = [0] * run + [1] * 16 + [0] * (78 - run)
    full = append(accumulator, 0, partitions)
    assert len(counts(full)) == 2
    assert values(full) == {0: [*range(run), *range(run + 16, 94)]}
    assert values(accumulator.drain()) == {1: [*range(run, run + 16)]}


def runs_of_one_partition() -> st.SearchStrategy[list[int]]:
    runs = st.lists(st.tuples(st.integers(0, 5), st.integers(16, 60)), min_size=1, max_size=6)
    return runs.map(lambda runs: [partition for partition, count in runs for _ in range(count)])


@given(
    calls=st.lists(st.lists(st.integers(0, 5), max_size=30) | runs_of_one_partition(), max_size=12),
    rows=st.integers(1, 9) | st.integers(10, 120),
    high=st.sampled_from([0, 40_000]),
)
def test_rows_are_returned_once_in_order(calls: list[list[int]], rows: int, high: int) -> None:
    accumulator = accumulator_of(rows)
    expected: dict[int, list[int]] = {}
    out: list[ReadyBatches] = []
    number = 0
    for call in calls:
        for offset, partition in enumerate(call):
            expected.setdefault(partition + high, []).append(number + offset)
        out += append(accumulator, number, [partition + high for partition in call])
        number += len(call)
    out += accumulator.drain()
    assert all(batch.size_bytes <= limit(rows) for batches in out for batch in batches.batch_slices)
    assert values(out) == expected
    for partition in expected:
        sizes = [batch.count for batches in out for batch in batches.batch_slices if batch.partition == partition]
        assert all(sum(three) > rows for three in zip(sizes, sizes[1:], sizes[2:], strict=False)), (
            "the batches could have been one"
        )
    assert accumulator.waiting_bytes == 0


class Call(SentColumns):
    """A call; `values[p]` are the values of its rows for partition p."""

    def __init__(self, first: int, partitions: list[int]) -> None:
        super().__init__("t", np.array(partitions, np.int32), np.zeros(len(partitions), np.int64))
        self.values: dict[int, list[int]] = {}
        for number, partition in enumerate(partitions, first):
            self.values.setdefault(partition, []).append(number)


RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=6)


@given(st.lists(RUNS, max_size=6), st.integers(1, 200), st.integers(1, 200))
def test_calls_get_the_rows_of_each_record_batch(calls: list[list[tuple[int, int]]], full: int, most: int) -> None:
    accumulator = Accumulator(limit(full), most)
    out: list[ReadyBatches] = []
    first = 0
    for runs in calls:
        partitions = [partition for partition, rows in runs for _ in range(rows)]
        sizes, chosen = np.full(len(partitions), SIZE, np.int64), np.array(partitions, np.int32)
        call = Call(first, partitions)
        out += accumulator.append("t", columns(first, len(partitions)), chosen, sizes, 0.0, call)
        first += len(partitions)
    out += accumulator.drain()
    for batch, numbers in batches(out):
        assert len(numbers) <= min(full, most)
        reported_rows = [
            number
            for call, begin, rows in batch.sent
            if isinstance(call, Call)
            for number in call.values[batch.partition][begin : begin + rows]
        ]
        assert reported_rows == numbers
    assert sorted(number for _, numbers in batches(out) for number in numbers) == list(range(first))
