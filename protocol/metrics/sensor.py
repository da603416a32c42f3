"""Sensors: totals, and rates, means and maxima of the last minute, as in Java's `Sensor`. Sans-IO.

An event is a tuple of its time and its values. To record one takes no lock: it is appended to a queue, from which every
32nd event, or a reader, adds them to the sums.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from protocol.base.clock import Clock
from protocol.base.condition import Lock, locked

# Java's `metrics.sample.window.ms` and `metrics.num.samples`.
WINDOW_S = 30.0
WINDOWS = 2

_FOLD_AT = 32
_MIN_ELAPSED_S = 0.001

Event = tuple[float, ...]
L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True)
class Reading:
    """The state of one or several sensors. Tuples have one entry for each value of an event.

    `count`: number of events since the start.
    `totals`: sums since the start.
    `recent_count`, `recent_totals`, `maxima`: number, sums and maxima of the events in the window.
    `count_rate`: events per second in the window.
    `rates`: sums per second in the window.
    `last_s`: time of the last event; -inf before the first.
    `buckets`: number of events by n, where their first value is at most 2^n and more than 2^(n-1); 0 for at most 1.
    """

    count: int
    totals: tuple[float, ...]
    recent_count: int
    recent_totals: tuple[float, ...]
    maxima: tuple[float, ...]
    count_rate: float
    rates: tuple[float, ...]
    last_s: float
    buckets: Mapping[int, int]

    def plus(self, reading: Reading) -> Reading:
        """Return the reading of both."""
        buckets = dict(self.buckets)
        for power, count in reading.buckets.items():
            buckets[power] = buckets.get(power, 0) + count
        return Reading(
            self.count + reading.count,
            _added(self.totals, reading.totals),
            self.recent_count + reading.recent_count,
            _added(self.recent_totals, reading.recent_totals),
            tuple(map(max, self.maxima, reading.maxima)),
            self.count_rate + reading.count_rate,
            _added(self.rates, reading.rates),
            max(self.last_s, reading.last_s),
            buckets,
        )


def _added(these: tuple[float, ...], addends: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(augend + addend for augend, addend in zip(these, addends, strict=True))


@dataclass
class _Sample:
    """The events of one window."""

    start_s: float
    last_s: float
    count: int
    sums: list[float]
    maxima: list[float]

    def is_over(self, now_s: float) -> bool:
        """Return True if the window ends at or before this time. A second formula would round differently."""
        return now_s - self.start_s >= WINDOW_S


class Sensor:
    """Records events of `values` numbers each. Thread-safe.

    `values`: number of values of an event, besides its time.
    `buckets`: also count events by the magnitude of their first value, for a histogram.
    """

    __slots__ = ("_buckets", "_count", "_last_s", "_lock", "_pending", "_samples", "_totals", "values")

    def __init__(self, values: int = 1, *, buckets: bool = False) -> None:
        self.values = values
        # Appending and removing are atomic.
        self._pending: deque[Event] = deque()
        # Guards the fields below. Reentrant, since a signal handler may read metrics.
        self._lock = Lock()
        self._count = 0
        self._totals = [0.0] * values
        self._last_s = float("-inf")
        self._samples: deque[_Sample] = deque()
        self._buckets: dict[int, int] | None = {} if buckets else None

    def record(self, event: Event) -> None:
        """Record an event: its time in seconds, then its values."""
        pending = self._pending
        pending.append(event)
        if len(pending) >= _FOLD_AT:
            locked(self._lock, 0, lambda free: self._fold() if free else None)

    def read(self, now_s: float) -> Reading:
        """Return the present state."""
        with self._lock:
            self._fold()
            while self._samples and now_s - self._samples[0].last_s >= WINDOWS * WINDOW_S:
                self._samples.popleft()
            samples = self._samples
            elapsed_s = now_s - samples[0].start_s if samples else 0.0
            # Java's rule: the window is as long as if all samples but the last were complete.
            elapsed_s += max(0, WINDOWS - 1 - int(elapsed_s / WINDOW_S)) * WINDOW_S
            elapsed_s = max(elapsed_s, _MIN_ELAPSED_S)
            count = sum(sample.count for sample in samples)
            sums = tuple(sum(sample.sums[nth] for sample in samples) for nth in range(self.values))
            maxima = (max((sample.maxima[n] for sample in samples), default=float("-inf")) for n in range(self.values))
            return Reading(
                self._count,
                tuple(self._totals),
                count,
                sums,
                tuple(maxima),
                count / elapsed_s,
                tuple(total / elapsed_s for total in sums),
                self._last_s,
                dict(self._buckets or {}),
            )

    def _fold(self) -> None:
        """Add the queued events to the sums. The caller holds the lock."""
        pending = self._pending
        events = [pending.popleft() for _ in range(len(pending))]
        while events:
            sample = self._sample_at(events[0][0])
            if not sample.is_over(events[-1][0]):
                self._add(sample, events)
                return
            # At least 1, since the sample is that of the first event.
            count = next(nth for nth, event in enumerate(events) if sample.is_over(event[0]))
            self._add(sample, events[:count])
            events = events[count:]

    def _sample_at(self, now_s: float) -> _Sample:
        samples = self._samples
        if not samples or samples[-1].is_over(now_s):
            samples.append(_Sample(now_s, now_s, 0, [0.0] * self.values, [float("-inf")] * self.values))
            # One more than the window, which rarely begins with a sample.
            if len(samples) > WINDOWS + 1:
                samples.popleft()
        return samples[-1]

    def _add(self, sample: _Sample, events: list[Event]) -> None:
        times, *columns = zip(*events, strict=True)
        self._count += len(events)
        sample.count += len(events)
        self._last_s = max(self._last_s, times[-1])
        sample.last_s = max(sample.last_s, times[-1])
        for nth, column in enumerate(columns):
            total = sum(column)
            self._totals[nth] += total
            sample.sums[nth] += total
            sample.maxima[nth] = max(sample.maxima[nth], *column)
        if self._buckets is not None:
            for value in columns[0]:
                power = max(0, math.ceil(value) - 1).bit_length()
                self._buckets[power] = self._buckets.get(power, 0) + 1


class Family(Generic[L]):
    """Sensors by label, such as a topic. Thread-safe."""

    def __init__(self, values: int = 1, *, buckets: bool = False) -> None:
        self.values = values
        self._with_buckets = buckets
        self._sensors: dict[L, Sensor] = {}

    def __getitem__(self, label: L) -> Sensor:
        """Return the sensor of a label; create it on first use."""
        sensor = self._sensors.get(label)
        if sensor is None:
            # Atomic: of two threads, both get the sensor of the first.
            sensor = self._sensors.setdefault(label, Sensor(self.values, buckets=self._with_buckets))
        return sensor

    def read(self, now_s: float) -> dict[L, Reading]:
        """Return the state of each label's sensor."""
        return {label: sensor.read(now_s) for label, sensor in list(self._sensors.items())}


def combined(readings: Iterable[Reading], values: int) -> Reading:
    """Return the reading of several sensors whose events have this number of values."""
    nothing = (0.0,) * values
    result = Reading(0, nothing, 0, nothing, (float("-inf"),) * values, 0.0, nothing, float("-inf"), {})
    for reading in readings:
        result = result.plus(reading)
    return result


@contextmanager
def timed(sensor: Sensor, clock: Clock) -> Iterator[None]:
    """Record the nanoseconds of the block, unless it raises."""
    started_s = clock.now_s()
    yield
    now_s = clock.now_s()
    sensor.record((now_s, (now_s - started_s) * 1e9))
