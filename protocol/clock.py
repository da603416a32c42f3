"""The only reader of time in this package: a clock, deadlines counted on it, and back-off between tries.

Everything else takes a `Clock`, a `Deadline` or `now`, so that tests can move time themselves.
Seconds inside (`_s`), milliseconds in options and on the wire (`_ms`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Clock:
    """Real time. Subclass it in tests."""

    def now_s(self) -> float:
        """Monotonic seconds; only differences mean anything."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, UTC: what Kafka calls a timestamp."""
        return time.time_ns() // 1_000_000

    def sleep_s(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


SYSTEM_CLOCK = Clock()
_LONGEST_S = (2**31 - 1) / 1000


class PausableClock(Clock):
    """Another clock's time, without that in which it was paused: while a caller is away, no broker is to blame.

    A `Deadline` on it comes no nearer meanwhile. For one thread, or under a lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed_s = 0.0
        self._stands_from_s = float("inf")

    def now_s(self) -> float:
        return min(self._clock.now_s(), self._stands_from_s) - self._missed_s

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def sleep_s(self, seconds: float) -> None:
        self._clock.sleep_s(seconds)

    def pause(self) -> None:
        """Stands still until `resume`."""
        self._stands_from_s = min(self._stands_from_s, self._clock.now_s())

    def resume(self) -> None:
        self._missed_s += max(0.0, self._clock.now_s() - self._stands_from_s)
        self._stands_from_s = float("inf")

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()


class StoppableClock(Clock):
    """Another clock's time until `stop`; from then on every `Deadline` on it has passed, so who waits gives up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.stopped = False

    def now_s(self) -> float:
        return float("inf") if self.stopped else self._clock.now_s()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def sleep_s(self, seconds: float) -> None:
        if not self.stopped:
            self._clock.sleep_s(seconds)

    def stop(self) -> None:
        self.stopped = True


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock by which a call must have ended."""

    at_s: float
    clock: Clock = field(default=SYSTEM_CLOCK, repr=False)

    @classmethod
    def after_ms(cls, milliseconds: float, clock: Clock = SYSTEM_CLOCK) -> Deadline:
        return cls(clock.now_s() + milliseconds / 1000.0, clock)

    def remaining_s(self) -> float:
        """Seconds left, from zero to 2^31 - 1 ms: more does not fit into requests and waits."""
        return min(_LONGEST_S, max(0.0, self.at_s - self.clock.now_s()))

    def remaining_ms(self) -> int:
        return int(self.remaining_s() * 1000)

    @property
    def passed(self) -> bool:
        return self.clock.now_s() >= self.at_s

    def at_most_ms(self, milliseconds: float) -> Deadline:
        """The earlier of this deadline and `milliseconds` from now."""
        return Deadline(min(self.at_s, self.clock.now_s() + milliseconds / 1000.0), self.clock)


@dataclass
class Backoff:
    """How long to wait before the next try: doubles up to a maximum, with 20 % of jitter (KIP-580)."""

    initial_ms: float
    maximum_ms: float
    tries: int = 0

    def next_s(self) -> float:
        """Counts one more try."""
        wait_ms = min(self.maximum_ms, self.initial_ms * (2 ** min(self.tries, 30)))
        self.tries += 1
        return float(wait_ms * random.uniform(0.8, 1.2) / 1000.0)  # noqa: S311

    def reset(self) -> None:
        self.tries = 0
