"""A clock that moves only by `advance` and `sleep_s`; client and cluster can share it."""

from __future__ import annotations

from protocol.base.clock import Clock


class ManualClock(Clock):
    """A monotonic clock that moves by `advance` and by `sleep_s`, which does not wait. `wall_ms` is the real time."""

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.slept: list[float] = []

    def now_s(self) -> float:
        """Return the seconds set by `advance` and `sleep_s`."""
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        """Advance the clock in place of a wait; `slept` records it."""
        self.slept.append(seconds)
        self.at_s += seconds

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self.at_s += seconds
