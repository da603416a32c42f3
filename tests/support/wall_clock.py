"""A manual clock with the time of the wall clock, for tokens that expire."""

from __future__ import annotations

import time

from protocol.testing.fake_kafka.clock import ManualClock


class WallClock(ManualClock):
    """Its wall-clock time begins now, and advances with the manual one."""

    def __init__(self) -> None:
        super().__init__()
        self._start_ms = 1_000 * time.time()

    def wall_ms(self) -> int:
        return int(self._start_ms + 1_000 * self.at_s)
