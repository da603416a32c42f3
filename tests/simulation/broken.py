"""Deliberate faults of the product, each of which a scenario must find: a judge that cannot fail proves nothing.

`python -m tests.simulation --broken NAME` runs seeds with a fault until one fails; `--broken all` runs all faults. A
fault is one edit of a module's source, which the simulated processes load in place of the module. The process of the
scenario and of the cluster has the module as it is. A seed that also fails without the fault finds nothing: it does not
count.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from protocol.testing.simulation import Outcome, Simulation, Worker, code_cache
from protocol.testing.simulation.rewrite import compile_ordered
from tests.simulation.deliberate_faults import FAULTS, ROOT

_RUN_LIMIT_S = 600.0
_PAGE_HEAD = """# Deliberate faults

A judge that cannot fail proves nothing. Each row is a rule that is taken out of the product, in one place, and the
number of seeds, from 1 on, until the scenario fails, without seeds that fail anyway. `python -m tests.simulation
--broken all --page docs/deliberate-faults.md` makes this page; `--broken NAME` runs some faults, which are data in
`tests/simulation/deliberate_faults.py`. `make soak` runs all of them, `make test` the quickest.

| scenario | fault | file | seeds |
| --- | --- | --- | --- |"""


def run_broken(world: Simulation, name: str) -> object:
    """Run a scenario whose processes have a fault."""
    fault = FAULTS[name]
    scenario = importlib.import_module(f"tests.simulation.{fault.scenario}").scenario
    importlib.import_module(fault.module.removesuffix(".py").replace("/", "."))  # the scenario keeps the rule
    path = str(ROOT / fault.module)
    code_cache._CODE[path, compile_ordered, None] = compile_ordered(fault.source().encode(), path)
    return scenario(world)


def run_unbroken(world: Simulation, scenario: str) -> object:
    """Run a scenario without a fault, otherwise as `run_broken` does."""
    return importlib.import_module(f"tests.simulation.{scenario}").scenario(world)


@dataclass(frozen=True)
class Search:
    """The result of a search for a seed that finds a fault.

    `seeds`: seeds that count. `outcome`: the run that finds the fault; None if no seed has found it. `failing_anyway`:
    seeds that also fail without the fault.
    """

    name: str
    seeds: int
    took_s: float
    outcome: Outcome | None
    failing_anyway: Sequence[int] = ()

    @property
    def verdict(self) -> str:
        """The error, or that there is none, and the seeds that do not count."""
        error = "NOT FOUND" if self.outcome is None else str(self.outcome.error).partition("\n")[0][:150]
        if not self.failing_anyway:
            return error
        seeds = ", ".join(map(str, self.failing_anyway))
        return f"{error} (not counted, since they fail without the fault: seeds {seeds})"


_fails_unbroken: dict[tuple[str, int], bool] = {}
"""Seeds of scenarios that have run without a fault, for all faults of a scenario."""


def _fails_anyway(worker: Worker, scenario: str, seed: int) -> bool:
    key = scenario, seed
    if key not in _fails_unbroken:
        outcome = worker.run(run_unbroken, seed, scenario, real_limit_s=_RUN_LIMIT_S, prepare=False)
        _fails_unbroken[key] = outcome.error is not None
    return _fails_unbroken[key]


def search(worker: Worker, name: str, first: int = 1, max_seeds: int = 100, max_s: float = 300.0) -> Search:
    """Run seeds with a fault until one fails that passes without the fault."""
    from_s = time.monotonic()
    failing_anyway: list[int] = []
    count = 0
    for seed in range(first, first + max_seeds):
        outcome = worker.run(run_broken, seed, name, real_limit_s=_RUN_LIMIT_S, prepare=False)
        # A seed that passes with the fault finds nothing, whether or not it fails without.
        if outcome.error is not None and _fails_anyway(worker, FAULTS[name].scenario, seed):
            failing_anyway.append(seed)
        else:
            count += 1
            if outcome.error is not None:
                return Search(name, count, time.monotonic() - from_s, outcome, failing_anyway)
        if time.monotonic() - from_s >= max_s:
            break
    return Search(name, count, time.monotonic() - from_s, None, failing_anyway)


def compile_scenario(worker: Worker, scenario: str) -> None:
    """Let a worker compile the modules of a scenario, which every run with a fault would do again."""
    worker.run(f"tests.simulation.{scenario}:scenario", 0, limit_s=0.0)  # it ends at once


def page(results: Sequence[Search]) -> str:
    """Return the page of documentation."""
    rows = [
        f"| `{FAULTS[result.name].scenario}` | {result.name} | `{FAULTS[result.name].module}` | {result.seeds} |"
        for result in results
    ]
    return "\n".join([_PAGE_HEAD, *rows, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Search for seeds that find faults, and print them; return 1 if a fault is not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--broken", nargs="+", required=True, help="names of faults, parts of names, or all")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seeds", type=int, default=100, help="the most seeds of a fault")
    parser.add_argument("--seconds", type=float, default=600.0, help="the longest time for a fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--page", type=Path, help="file for the page of documentation")
    options = parser.parse_args(arguments)
    names = [name for name in FAULTS if any(part == "all" or part in name for part in options.broken)]
    results: dict[str, Search] = {}

    def run(scenario: str) -> None:
        with Worker() as worker:
            compile_scenario(worker, scenario)
            for name in [name for name in names if FAULTS[name].scenario == scenario]:
                result = results[name] = search(worker, name, options.first, options.seeds, options.seconds)
                print(f"{result.seeds:4} seeds {result.took_s:6.1f} s  {name}: {result.verdict}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, dict.fromkeys(FAULTS[name].scenario for name in names)))
    missed = [name for name, result in results.items() if result.outcome is None]
    print(f"{len(results)} faults, not found: {missed or 'none'}")
    if options.page is not None:
        options.page.write_text(page([results[name] for name in names]))
    return 1 if missed or not names else 0
