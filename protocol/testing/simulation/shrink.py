"""Find the faults and the switches that a failure needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from protocol.testing.simulation.runner import Outcome, Scenario, Worker

Range = tuple[int, int]
T = TypeVar("T")


def shrink(worker: Worker, scenario: Scenario, failed: Outcome, preempt: Sequence[str] = (), runs: int = 200) -> str:
    """Leave out faults, then voluntary switches, as long as the run still fails; return a text about the rest.

    Any failure counts: a smaller schedule may show the same fault in another message.
    """
    left = runs

    def fails(skip: Sequence[int], switches: Sequence[Range] | None) -> Outcome | None:
        nonlocal left
        left -= 1
        outcome = worker.run(scenario, failed.seed, skip=skip, switches=switches, preempt=preempt)
        return outcome if outcome.error is not None else None

    faults = list(range(1, len(failed.faults) + 1))
    needed = _minimal(faults, lambda kept: left > 0 and fails(sorted({*faults} - {*kept}), None) is not None)
    skip = sorted({*faults} - {*needed})
    last = fails(skip, None) or failed
    ranges: list[Range] = [(1, last.deviations + 1)]
    if left > 0 and (shrunk := fails(skip, [])) is not None:
        ranges, last = [], shrunk
    while ranges and left > 0:
        halves = [half for first, end in ranges for half in _halves(first, end)]
        fewer = _minimal(halves, lambda kept: left > 0 and fails(skip, kept) is not None)
        if len(fewer) == len(halves) and all(end - first == 1 for first, end in fewer):
            break
        ranges = fewer
        if all(end - first == 1 for first, end in ranges):
            break
    final = worker.run(scenario, failed.seed, skip=skip, switches=ranges, preempt=preempt, log_level="INFO")
    lines = [
        f"seed {failed.seed} still fails without {len(skip)} of {len(faults)} faults, and with "
        f"{sum(end - first for first, end in ranges)} of {failed.deviations} voluntary switches: {final.error}",
        f"skip={skip}, switches={ranges}",
        *final.trace,
    ]
    return "\n".join(lines)


def _halves(first: int, end: int) -> list[Range]:
    middle = (first + end) // 2
    return [(first, middle), (middle, end)] if middle > first else [(first, end)]


def _minimal(parts: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Delta debugging: return parts of which none can be left out, in the order of trials."""
    kept, size = list(parts), max(1, len(parts) // 2)
    while kept:
        removed = False
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            if fails(without):
                kept, removed = without, True
                break
        if not removed:
            if size == 1:
                break
            size = max(1, size // 2)
    return kept
