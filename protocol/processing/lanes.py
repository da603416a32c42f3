"""The order in which the threads of a `Processor` handle rows: runs in lanes, and runs without a lane. Sans-IO.

A run is a sequence of rows of one record batch that one thread handles in order. A lane is a partition
(`order="partition"`) or the keys with the same hash in a partition (`order="key"`). The runs of a lane are handled one
after another: while one of them is taken or delayed, the others wait. Used by `worker_pool`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import count
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.producer.key_hash import murmur2
from protocol.records.arrow_numpy import valid

B = TypeVar("B")

# The producer chose the partition by the remainder of the same hash, so the low bits of a partition's keys are not
# independent: multiply by an odd number, and use higher bits.
_MIX = np.uint32(2654435761)


class LanePartition:
    """The lanes of one assigned partition.

    `dropped`: True after `Lanes.drop`: no further run is taken, and threads stop their current ones early.
    `retries`: False: the first failure drops the partition.
    `failed`: True if it was dropped with rows that have failed and are not retried.
    `running`: number of taken runs.
    """

    __slots__ = ("dropped", "failed", "retries", "running", "waiting")

    def __init__(self, *, retries: bool = True) -> None:
        self.retries = retries
        self.dropped = self.failed = False
        self.running = 0
        # By lane: the runs that wait behind its ready, taken or delayed run. Other lanes have no entry.
        self.waiting: dict[int, deque[Run[Any]]] = {}


class Run(Generic[B]):
    """Rows of a batch to be handled in order.

    `rows`: rows that no handler has begun. While the run is taken, idle threads may remove rows from the right end, to
    handle them.
    `attempts`: failed attempts at the first row, or at all rows if they are handled together.
    `failing_since_s`: time of the first failed attempt.
    `bisected`: True if a larger run with these rows has failed.
    """

    __slots__ = ("attempts", "batch", "bisected", "failing_since_s", "lane", "partition", "rows")

    def __init__(
        self,
        partition: LanePartition,
        batch: B,
        rows: Iterable[int],
        lane: int | None = None,
        *,
        bisected: bool = False,
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.rows = deque(rows)
        self.lane = lane
        self.attempts = 0
        self.failing_since_s = 0.0
        self.bisected = bisected


class Lanes(Generic[B]):
    """Runs that are ready, in lanes, or delayed. The caller holds a lock."""

    def __init__(self) -> None:
        self._ready: deque[Run[B]] = deque()
        self._delayed: list[tuple[float, int, Run[B]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        """Return the number of runs that are ready."""
        return len(self._ready)

    def add(self, run: Run[B]) -> None:
        """Add a run, behind those of its lane."""
        if run.lane is None:
            self._ready.append(run)
            return
        waiting = run.partition.waiting
        if run.lane in waiting:
            waiting[run.lane].append(run)
        else:
            waiting[run.lane] = deque()
            self._ready.append(run)

    def take(self, now_s: float) -> Run[B] | None:
        """Return the next run: a delayed run that is due, otherwise the first ready one; None without either."""
        if self._delayed and self._delayed[0][0] <= now_s:
            run = heapq.heappop(self._delayed)[2]
        elif self._ready:
            run = self._ready.popleft()
        else:
            return None
        run.partition.running += 1
        return run

    @property
    def next_due_s(self) -> float | None:
        """The time at which the next delayed run is due; None without one."""
        return self._delayed[0][0] if self._delayed else None

    def finish(self, run: Run[B]) -> None:
        """Release a taken run: the next one of its lane is ready."""
        run.partition.running -= 1
        if run.lane is None:
            return
        queue = run.partition.waiting.get(run.lane)
        if queue:
            self._ready.append(queue.popleft())
        elif queue is not None:
            del run.partition.waiting[run.lane]

    def delay(self, run: Run[B], until_s: float) -> None:
        """Put a taken run back, to be taken again from `until_s` on (the clock of `take`); its lane waits."""
        run.partition.running -= 1
        if run.partition.dropped:
            run.partition.failed = True
        else:
            heapq.heappush(self._delayed, (until_s, next(self._numbers), run))

    def replace(self, run: Run[B], first: Run[B], *further: Run[B]) -> None:
        """Replace a taken run by other runs: `first` is ready next.

        If the run has a lane, the rest follow in this order; otherwise they are ready behind all other runs.
        """
        run.partition.running -= 1
        if run.partition.dropped:
            run.partition.failed = True
            return
        self._ready.appendleft(first)
        if run.lane is None:
            self._ready.extend(further)
        else:
            run.partition.waiting[run.lane].extendleft(reversed(further))

    def drop(self, partitions: Collection[LanePartition]) -> None:
        """Drop all runs of these partitions that are not taken."""
        for partition in partitions:
            partition.dropped = True
            partition.waiting.clear()
        for _, _, run in self._delayed:
            run.partition.failed = run.partition.failed or run.partition.dropped
        self._ready = deque(run for run in self._ready if not run.partition.dropped)
        self._delayed = [delayed for delayed in self._delayed if not delayed[2].partition.dropped]
        heapq.heapify(self._delayed)


def split_by_key(keys: pa.Array, lanes: int, turn: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Yield each lane that has rows, and these rows in order.

    `keys` (pa.BinaryArray): equal keys are in the same lane.
    `lanes`: number of lanes.
    `turn`: rows with a null key have no order: they are spread over the lanes, from this one on.
    """
    lane = lanes_of(keys, lanes, turn)
    order = np.argsort(lane, kind="stable")
    lane = lane[order]
    starts = np.flatnonzero(np.diff(lane, prepend=-1))
    rows, bounds = order.tolist(), [*starts.tolist(), len(lane)]
    for number, start in enumerate(lane[starts].tolist()):
        yield start, rows[bounds[number] : bounds[number + 1]]


def lanes_of(keys: pa.Array, lanes: int, turn: int = 0) -> npt.NDArray[np.int64]:
    """Return the lane of each row, as in `split_by_key`."""
    mixed = (murmur2(keys) * _MIX) >> np.uint32(12)
    lane: npt.NDArray[np.int64] = mixed.astype(np.int64) % lanes
    if keys.null_count:
        spread = (np.arange(len(keys)) + turn) % lanes
        lane = np.where(valid(keys), lane, spread)
    return lane
