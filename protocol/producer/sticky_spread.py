"""Spread rows without a key: to one partition for some bytes, then to another (KIP-794, for columns).

Java's `BuiltInPartitioner`. Called by `partitioner`. Sans-IO.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Partitions = npt.NDArray[np.int32]


class StickySpread:
    """Turns of `sticky_bytes` per partition. A row belongs to the turn of its first byte."""

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
        """Choose one of `candidates` for each row.

        Parameters
        ----------
        sizes : ndarray of int64
            Bytes of each row.
        candidates : sequence of int
        queued : sequence of int, optional
            Waiting batches of each candidate. Fewer make a candidate likelier, as in Java. If equal or not given, the
            candidates take turns.

        Returns
        -------
        ndarray of int32
        """
        if not len(sizes):
            return np.empty(0, np.int32)
        self._draw_order(candidates)
        numbers = (self._bytes_at_turn + np.cumsum(sizes) - sizes) // self._sticky_bytes
        if self._current is None:
            numbers += 1
        # A large row may span several turns; turns without the start of a row are skipped.
        turns = np.cumsum(np.diff(numbers, prepend=0) > 0)
        partitions = np.r_[self._current or 0, self._begin(int(turns[-1]), candidates, queued)].astype(np.int32)
        total = self._bytes_at_turn + int(sizes.sum())
        self._bytes_at_turn = total % self._sticky_bytes
        over = total // self._sticky_bytes > int(numbers[-1]) - (self._current is None)
        self._current = None if over else int(partitions[-1])
        chosen: Partitions = partitions[turns]
        return chosen

    def _begin(self, count: int, candidates: Sequence[int], queued: Sequence[int] | None) -> Partitions:
        """Return the partitions of the next `count` turns."""
        if queued is None or min(queued) == max(queued):
            turns = self._order[(self._begun + np.arange(count)) % len(self._order)]
            self._begun += count
            return turns
        ends = np.cumsum(max(queued) + 1 - np.array(queued))
        drawn = np.array([self._rng.randrange(int(ends[-1])) for _ in range(count)], np.int64)
        return np.array(candidates, np.int32)[np.searchsorted(ends, drawn, side="right")]

    def _draw_order(self, candidates: Sequence[int]) -> None:
        """Draw a random order once, so that short-lived producers do not all begin with partition 0."""
        wanted = sorted(candidates)
        if sorted(self._order.tolist()) != wanted:
            self._rng.shuffle(wanted)
            self._order = np.array(wanted, np.int32)
            if self._current not in wanted:
                self._current = None
