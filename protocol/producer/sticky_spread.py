"""Where rows without a key go: to one partition for some bytes, then to another (KIP-794, for columns).

Java's `BuiltInPartitioner`. Called by `partitioner`; knows neither keys nor brokers: it is told which partitions there
are, and how many record batches wait for each.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Partitions = npt.NDArray[np.int32]


class StickySpread:
    """The turns of partitions, each `sticky_bytes` long. A row belongs to the turn in which its first byte falls."""

    def __init__(self, sticky_bytes: int, rng: random.Random) -> None:
        self._sticky_bytes = max(1, sticky_bytes)
        self._rng = rng
        self._order: Partitions = np.empty(0, np.int32)
        self._begun = 0
        self._current: int | None = None
        self._bytes_at_turn = 0

    def choose(
        self, sizes: npt.NDArray[np.int64], candidates: Sequence[int], queued: Sequence[int] | None = None
    ) -> Partitions:
        """One of `candidates` for each row. `sizes` are the rows' bytes.

        `queued` are the record batches that wait for each candidate: the fewer, the likelier it is chosen, as in Java.
        Where that is the same for all, or not told, each has its turn.
        """
        if not len(sizes):
            return np.empty(0, np.int32)
        self._draw_order(candidates)
        numbers = (self._bytes_at_turn + np.cumsum(sizes) - sizes) // self._sticky_bytes
        if self._current is None:
            numbers += 1
        # A large row may outlast several turns, which are then nobody's.
        turns = np.cumsum(np.diff(numbers, prepend=0) > 0)
        partitions = np.r_[self._current or 0, self._begin(int(turns[-1]), candidates, queued)].astype(np.int32)
        total = self._bytes_at_turn + int(sizes.sum())
        self._bytes_at_turn = total % self._sticky_bytes
        over = total // self._sticky_bytes > int(numbers[-1]) - (self._current is None)
        self._current = None if over else int(partitions[-1])
        chosen: Partitions = partitions[turns]
        return chosen

    def _begin(self, count: int, candidates: Sequence[int], queued: Sequence[int] | None) -> Partitions:
        """The partitions of the next `count` turns."""
        if queued is None or min(queued) == max(queued):
            turns = self._order[(self._begun + np.arange(count)) % len(self._order)]
            self._begun += count
            return turns
        ends = np.cumsum(max(queued) + 1 - np.array(queued))
        drawn = np.array([self._rng.randrange(int(ends[-1])) for _ in range(count)], np.int64)
        return np.array(candidates, np.int32)[np.searchsorted(ends, drawn, side="right")]

    def _draw_order(self, candidates: Sequence[int]) -> None:
        """An order drawn once: many short-lived producers must not all begin with partition 0."""
        wanted = sorted(candidates)
        if sorted(self._order.tolist()) != wanted:
            self._rng.shuffle(wanted)
            self._order = np.array(wanted, np.int32)
            if self._current not in wanted:
                self._current = None
