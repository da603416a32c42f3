"""Deliberate faults of the product: they apply to the present code, and scenarios find them."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("greenlet")

from protocol.testing.simulation import Worker
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


def test_scenarios_find_quick_faults_by_their_first_seeds() -> None:
    """Slow: for each fault a world imports the product again, and runs up to two seeds."""
    with Worker() as worker:
        for name in QUICK:
            compile_scenario(worker, FAULTS[name].scenario)
            assert search(worker, name, max_seeds=2).outcome is not None, name
