"""Progress of bounded work: how much is done, at which rate, and how long the rest takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from protocol.base.clock import Clock

_UPDATE_INTERVAL_S = 0.25
_CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True)
class Progress:
    """The state of one `protocol.read` or `protocol.write`; as text, a line for people.

    Attributes
    ----------
    name : str
        The topics.
    done, total : int
        A read counts offsets: those read, and all to read. A write counts rows: those accepted by the producer, and all
        to write; this total is None if it is not known in advance, for example for an iterator.
    unit : str
        "offsets" or "rows".
    elapsed_s : float
        Time since the call.
    """

    name: str
    done: int
    total: int | None
    unit: str
    elapsed_s: float

    @property
    def rate_per_s(self) -> float:
        """The mean rate since the call."""
        return self.done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """The time for the rest at the mean rate; None if it is unknown."""
        if self.total is None or not self.rate_per_s:
            return None
        return max(0, self.total - self.done) / self.rate_per_s

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        share = f" ({100 * self.done // self.total} %)" if self.total else ""
        remaining = "" if not self.left_s else f", {self.left_s:.0f} s left"
        return f"{self.name}: {self.done:,}{of} {self.unit}{share}, {self.rate_per_s:,.0f}/s{remaining}"


class ProgressReporter:
    """Counts finished offsets or rows, and calls a function with a `Progress`, at most 4 times a second and at the end.

    `report`: the function; False for no reports. True prints to standard error: one line updated in place in a
    terminal, otherwise one line per report.
    """

    def __init__(
        self, report: Callable[[Progress], object] | bool, name: str, total: int | None, unit: str, clock: Clock
    ) -> None:
        self._report = print_progress if report is True else report
        self._name, self._total, self._unit, self._clock = name, total, unit, clock
        self._begin_s = self._next_s = clock.now_s()
        self._done = 0

    def add(self, count: int) -> None:
        """Count, and report if the last report is old enough."""
        self._done += count
        if self._report and self._clock.now_s() >= self._next_s:
            self._send()

    def end(self) -> None:
        """Report that all is done; offsets without a record were not counted."""
        if self._report:
            self._done = self._done if self._total is None else self._total
            self._send()
            if self._report is print_progress and sys.stderr.isatty():
                print(file=sys.stderr)

    def _send(self) -> None:
        now_s = self._clock.now_s()
        self._next_s = now_s + _UPDATE_INTERVAL_S
        assert callable(self._report)
        self._report(Progress(self._name, self._done, self._total, self._unit, now_s - self._begin_s))


def print_progress(progress: Progress) -> None:
    """Print one line to standard error: in place if that is a terminal, else one for each report."""
    in_place = sys.stderr.isatty()
    print(f"{_CLEAR_LINE if in_place else ''}{progress}", end="" if in_place else "\n", file=sys.stderr, flush=True)
