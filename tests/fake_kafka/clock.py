"""A clock that only a test moves. Client and cluster can share one."""

from __future__ import annotations

from protocol.clock import Clock


class ManualClock(Clock):
    """Time that moves when it is told to, and when somebody sleeps on it. What Kafka calls a timestamp is real."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.slept: list[float] = []

    def now_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at_s += seconds

    def advance(self, seconds: float) -> None:
        self.at_s += seconds
