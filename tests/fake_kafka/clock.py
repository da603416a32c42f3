"""A clock that only a test moves. Client and cluster can share one."""

from __future__ import annotations

from protocol.clock import Clock


class ManualClock(Clock):
    """Time that moves when it is told to, and when somebody sleeps on it."""

    def __init__(self, at_s: float = 1_000.0) -> None:
        self.at_s = at_s

    def now_s(self) -> float:
        return self.at_s

    def wall_ms(self) -> int:
        return int(self.at_s * 1000)

    def sleep_s(self, seconds: float) -> None:
        self.at_s += max(0.0, seconds)

    def advance(self, seconds: float) -> None:
        self.at_s += seconds
