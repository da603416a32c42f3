"""Deliberate faults of the product: they apply to the present code, and scenarios find them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

import pytest

pytest.importorskip("greenlet")

from protocol.testing.simulation import Outcome, Worker
from tests.simulation import broken
from tests.simulation.broken import compile_scenario, search
from tests.simulation.deliberate_faults import FAULTS, ROOT

# Found by their first two seeds, in short runs; `make soak` looks for all.
QUICK = [
    "an interrupted poll does not seek back",
    "a batch behind a failed one is sent first",
    "a takeover aborts what it has just committed",
    "the end of a batch is one offset too far",
]


@pytest.mark.parametrize("name", FAULTS)
def test_fault_changes_one_place_of_its_module(name: str) -> None:
    fault = FAULTS[name]
    compile(fault.source(), fault.module, "exec")


def test_page_lists_every_fault_with_its_seeds() -> None:
    text = (ROOT / "docs" / "deliberate-faults.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `([\w/.]+)` \| \d+ \|$", text, re.MULTILINE)
    assert sorted(rows) == sorted((fault.scenario, name, fault.module) for name, fault in FAULTS.items())


class _StubWorker:
    """Seeds 1 and 2 fail with and without a fault, seed 3 passes, seed 4 fails with a fault only."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, int]] = []

    def run(self, scenario: Callable[..., object], seed: int, *_: object, **__: object) -> Outcome:
        self.runs.append((scenario.__name__, seed))
        fails = seed in ((1, 2, 4) if scenario is broken.run_broken else (1, 2))
        return Outcome(seed, error=f"AssertionError: {seed}" if fails else None)


def test_seed_that_fails_without_the_fault_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broken, "_fails_unbroken", {})
    worker = _StubWorker()
    results = [search(cast("Worker", worker), name) for name in QUICK[:1] * 2]
    assert [result.outcome and result.outcome.seed for result in results] == [4, 4]
    assert [result.seeds for result in results] == [2, 2]
    assert results[0].verdict == "AssertionError: 4 (not counted, since they fail without the fault: seeds 1, 2)"
    assert worker.runs.count(("run_unbroken", 1)) == 1  # of both searches
    assert search(cast("Worker", worker), QUICK[0], max_seeds=2).verdict.startswith("NOT FOUND (not counted")


def test_scenarios_find_quick_faults_by_their_first_seeds() -> None:
    """Slow: for each fault a world imports the product again, and runs up to two seeds."""
    with Worker() as worker:
        for name in QUICK:
            compile_scenario(worker, FAULTS[name].scenario)
            assert search(worker, name, max_seeds=2).outcome is not None, name
