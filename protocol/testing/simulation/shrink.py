"""Find the faults and the switches that a failure needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from protocol.testing.simulation.runner import Outcome, Scenario, Worker

Range = tuple[int, int]
T = TypeVar("T")


def shrink(worker: Worker, scenario: Scenario, failed: Outcome, preempt: Sequence[str] = (), runs: int = 200) -> str:
    """Leave out faults, then voluntary switches, as long as the run still fails; return a text about the rest.

    Any failure counts: a smaller schedule may show the same fault in another message.
    """
    if not failed.digest:
        return f"seed {failed.seed} cannot be shrunk: its run has ended without an outcome"
    runs_left = runs

    def fails(faults: Sequence[int], switches: Sequence[Range] | None) -> Outcome | None:
        nonlocal runs_left
        runs_left -= 1
        outcome = worker.run(scenario, failed.seed, faults=faults, switches=switches, preempt=preempt)
        return outcome if outcome.error is not None else None

    all_faults = range(1, len(failed.faults) + 1)
    faults = _minimal(all_faults, lambda fewer: runs_left > 0 and fails(sorted(fewer), None) is not None)
    faults.sort()
    last = fails(faults, None) or failed
    ranges: list[Range] = [(1, last.deviations + 1)]
    if runs_left > 0 and (shrunk := fails(faults, [])) is not None:
        ranges, last = [], shrunk
    while ranges and runs_left > 0:
        halves = [half for first, end in ranges for half in _halves(first, end)]
        fewer = _minimal(halves, lambda halve: runs_left > 0 and fails(faults, halve) is not None)
        if len(fewer) == len(halves) and all(end - first == 1 for first, end in fewer):
            break
        ranges = fewer
        if all(end - first == 1 for first, end in ranges):
            break
    final = worker.run(scenario, failed.seed, faults=faults, switches=ranges, preempt=preempt, log_level="INFO")
    lines = [
        f"seed {failed.seed} still fails with {len(faults)} of {len(all_faults)} faults, and with "
        f"{sum(end - first for first, end in ranges)} of {failed.deviations} voluntary switches: {final.error}",
        f"Run it again with --faults{_words(faults)} --switches{_words(f'{first}-{end}' for first, end in ranges)}",
        *final.trace,
    ]
    return "\n".join(lines)


def _words(values: Iterable[object]) -> str:
    return "".join(f" {value}" for value in values)


def _halves(first: int, end: int) -> list[Range]:
    middle = (first + end) // 2
    return [(first, middle), (middle, end)] if middle > first else [(first, end)]


def _minimal(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Delta debugging: return parts of which none can be left out, in the order of trials."""
    remaining, size = list(parts), max(1, len(parts) // 2)
    while remaining:
        removed = False
        for start in range(0, len(remaining), size):
            without = remaining[:start] + remaining[start + size :]
            if fails(without):
                remaining, removed = without, True
                break
        if not removed:
            if size == 1:
                break
            size = max(1, size // 2)
    return remaining
