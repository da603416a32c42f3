"""Runs in lanes: taken in order, one at a time per lane, each once, also with delays, bisection and revocations."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.processing.lanes import LanePartition, Lanes, Run, split_by_key
from protocol.producer.key_hash import murmur2

pytestmark = pytest.mark.soak

KEYS = st.lists(st.one_of(st.none(), st.binary(max_size=12)), max_size=60)


class Model:
    """Two partitions of three lanes and records without a lane; the records of each place are numbered in order."""

    def __init__(self) -> None:
        self.lanes: Lanes[None] = Lanes()
        self.partitions = [LanePartition(), LanePartition()]
        self.added: dict[tuple[int, int | None], int] = defaultdict(int)
        self.finished: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        self.taken: list[Run[None]] = []
        self.now_s = 0.0

    def place(self, run: Run[None]) -> tuple[int, int | None]:
        return self.partitions.index(run.partition), run.lane

    def add(self, partition: int, lane: int | None, count: int) -> None:
        first = self.added[partition, lane]
        self.added[partition, lane] += count
        self.lanes.add(Run(self.partitions[partition], None, range(first, first + count), lane))

    def take(self) -> None:
        if (run := self.lanes.take(self.now_s)) is not None:
            assert not run.partition.dropped
            assert run.lane is None or self.place(run) not in map(self.place, self.taken)
            self.taken.append(run)

    def finish(self, run: Run[None]) -> None:
        self.taken.remove(run)
        self.finished[self.place(run)] += run.rows
        self.lanes.finish(run)

    def delay(self, run: Run[None]) -> None:
        self.taken.remove(run)
        self.lanes.delay(run, self.now_s + 5)

    def bisect(self, run: Run[None]) -> None:
        middle = len(run.rows) // 2
        if middle:
            self.taken.remove(run)
            halves = [
                Run(run.partition, None, rows, run.lane) for rows in (list(run.rows)[:middle], list(run.rows)[middle:])
            ]
            self.lanes.replace(run, *halves)


@given(st.data())
def test_each_lane_is_handled_in_order_and_once(data: st.DataObject) -> None:
    model = Model()
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(st.sampled_from(["add", "take", "take", "finish", "delay", "bisect", "time", "drop"])):
            case "add":
                partition, lane = data.draw(st.integers(0, 1)), data.draw(st.sampled_from([None, 0, 1, 2]))
                if not model.partitions[partition].dropped:
                    model.add(partition, lane, data.draw(st.integers(1, 5)))
            case "take":
                model.take()
            case "time":
                model.now_s += 3
            case "drop":
                if data.draw(st.integers(0, 9)) == 0:
                    model.lanes.drop([model.partitions[1]])
            case step if model.taken:
                getattr(model, step)(data.draw(st.sampled_from(model.taken)))
    while True:
        while (before := len(model.taken)) < 50:
            model.take()
            if len(model.taken) == before:
                break
        if not model.taken and model.lanes.next_due_s is None:
            break
        for run in list(model.taken):
            model.finish(run)
        model.now_s += 6
    assert [partition.running for partition in model.partitions] == [0, 0]
    for (_, lane), rows in model.finished.items():
        assert lane is None or rows == sorted(rows)
        assert len(rows) == len(set(rows))
    for (partition, lane), count in model.added.items():
        assert model.partitions[partition].dropped or len(model.finished[partition, lane]) == count
    assert not any(partition.waiting for partition in model.partitions)


def test_drop_removes_the_runs_of_its_partitions_only() -> None:
    lanes: Lanes[None] = Lanes()
    retained, dropped = LanePartition(), LanePartition()
    for partition in (dropped, retained):
        for lane in (0, 1):
            lanes.add(Run(partition, None, [lane], lane))
        taken = [lanes.take(0.0), lanes.take(0.0)]
        assert [run.lane for run in taken if run is not None] == [0, 1]
        for until_s, run in zip((5.0, 4.0), taken, strict=True):
            assert run is not None
            lanes.delay(run, until_s)
    for partition in (dropped, retained):
        lanes.add(Run(partition, None, [2]))
        lanes.add(Run(partition, None, [3], 2))
    assert len(lanes) == 4
    lanes.drop([dropped])
    assert (dropped.dropped, retained.dropped, len(lanes), lanes.next_due_s) == (True, False, 2, 4.0)
    remaining: list[Run[None]] = []
    while (next_run := lanes.take(9.0)) is not None:
        remaining.append(next_run)
    assert [(run.partition is retained, list(run.rows)) for run in remaining] == [(True, [row]) for row in (1, 0, 2, 3)]
    assert (dropped.running, retained.running, dropped.waiting) == (0, 4, {})


@given(KEYS, st.integers(1, 50), st.integers(0, 49))
def test_equal_keys_share_a_lane_in_order(keys: list[bytes | None], lanes: int, turn: int) -> None:
    result = dict(split_by_key(pa.array(keys, pa.binary()), lanes, turn % lanes))
    assert sorted(row for rows in result.values() for row in rows) == list(range(len(keys)))
    assert all(rows == sorted(rows) and rows for rows in result.values())
    assert result.keys() <= set(range(lanes))
    lane_of: dict[bytes, int] = {}
    for lane, rows in result.items():
        for row in rows:
            if (key := keys[row]) is not None:
                assert lane_of.setdefault(key, lane) == lane


def test_keys_of_one_partition_use_all_lanes() -> None:
    """The partition of a key is a remainder of the same hash, so the lane must not be another remainder of it."""
    keys = pa.array([b"key-%d" % number for number in range(200_000)], pa.binary())
    of_partition = keys.filter(pa.array((murmur2(keys) & 0x7FFFFFFF) % 64 == 0))
    used = dict(split_by_key(of_partition, 64))
    assert len(used) == 64
    assert max(map(len, used.values())) < 4 * len(of_partition) / 64


def test_rows_without_a_key_are_spread() -> None:
    result = dict(split_by_key(pa.nulls(10, pa.binary()), 4, 2))
    assert {lane: len(rows) for lane, rows in result.items()} == {2: 3, 3: 3, 0: 2, 1: 2}
