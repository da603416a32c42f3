"""Read the time, compute deadlines and retry back-off. The only module that reads a clock, except mocks in `testing`.

Other modules receive a `Clock`, a `Deadline` or `now`, so that tests control the time. Units: seconds (`_s`) in
code, milliseconds (`_ms`) in options and on the wire.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from protocol.base.interrupts import interruptible


class Clock:
    """The system's time. Tests use a subclass."""

    # The C function: reading one partition calls it about twenty times.
    now_s = staticmethod(time.monotonic)
    """Returns monotonic seconds; only differences are meaningful."""

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC: a Kafka timestamp."""
        return time.time_ns() // 1_000_000

    def sleep_s(self, seconds: float) -> None:
        """Block for `seconds`; return at once if not positive."""
        if seconds > 0:
            interruptible(time.sleep, seconds)


SYSTEM_CLOCK = Clock()
_MAX_WAIT_S = (2**31 - 1) / 1000


class PausableClock(Clock):
    """A clock that can be paused, so that the time of a caller's pause does not count as a failure of brokers.

    Otherwise it shows the time of another clock. A `Deadline` on this clock does not pass during a pause. Not
    thread-safe: use it in one thread or under a lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed_s = 0.0
        self._stands_from_s = float("inf")

    def now_s(self) -> float:
        """Return the monotonic time."""
        return min(self._clock.now_s(), self._stands_from_s) - self._missed_s

    def wall_ms(self) -> int:
        """Return the time since 1970."""
        return self._clock.wall_ms()

    def sleep_s(self, seconds: float) -> None:
        """Block for `seconds` of the other clock, paused or not."""
        self._clock.sleep_s(seconds)

    def pause(self) -> None:
        """Stop the time until `resume`; no effect if already paused."""
        self._stands_from_s = min(self._stands_from_s, self._clock.now_s())

    def resume(self) -> None:
        """Let the time continue after `pause`."""
        self._missed_s += max(0.0, self._clock.now_s() - self._stands_from_s)
        self._stands_from_s = float("inf")


class StoppableClock(Clock):
    """The time of another clock until `stop`; afterwards every `Deadline` on it has passed, so waiting calls return."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stopped = False

    def now_s(self) -> float:
        """Return the monotonic time; infinity once stopped."""
        return float("inf") if self.stopped else self._clock.now_s()

    def wall_ms(self) -> int:
        """Return the time since 1970."""
        return self._clock.wall_ms()

    def sleep_s(self, seconds: float) -> None:
        """Block for `seconds`; return at once if already stopped. A later `stop` does not end the wait."""
        if not self.stopped:
            self._clock.sleep_s(seconds)

    def stop(self) -> None:
        """Make every deadline on this clock pass; callable from any thread."""
        self.stopped = True


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock at which a call must have ended."""

    at_s: float
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False)

    @classmethod
    def after_ms(cls, milliseconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        """Return a deadline `milliseconds` from now."""
        return cls(clock.now_s() + milliseconds / 1000.0, clock)

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0 and at most 2^31 - 1 ms: requests and waits take no larger value."""
        return min(_MAX_WAIT_S, max(0.0, self.at_s - self.clock.now_s()))

    def remaining_ms(self) -> int:
        """Return the milliseconds left, rounded down."""
        return int(self.remaining_s() * 1000)

    @property
    def passed(self) -> bool:
        """True once the deadline is reached."""
        return self.clock.now_s() >= self.at_s

    def at_most_ms(self, milliseconds: float) -> Deadline:
        """Return the earlier of this deadline and `milliseconds` from now."""
        return Deadline(min(self.at_s, self.clock.now_s() + milliseconds / 1000.0), self.clock)


@dataclass
class Backoff:
    """Waits between retries: exponential up to a maximum, with 20 % jitter (KIP-580)."""

    initial_ms: float
    maximum_ms: float
    tries: int = 0

    def next_s(self) -> float:
        """Return the seconds to wait before the next try, and count that try."""
        wait_ms = min(self.maximum_ms, self.initial_ms * (2 ** min(self.tries, 30)))
        self.tries += 1
        return float(wait_ms * random.uniform(0.8, 1.2) / 1000.0)  # noqa: S311

    def reset(self) -> None:
        """Start again with the initial wait."""
        self.tries = 0
