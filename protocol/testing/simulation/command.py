"""The command line of simulations: one seed with its trace, or many seeds of one or several scenarios."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.testing.simulation.runner import Outcome, Scenario, Worker, failure_text, run_all, scenario_name
from protocol.testing.simulation.shrink import shrink

_PROGRESS_S = 30.0


def main(
    arguments: Sequence[str] | None = None,
    package: str = "",
    names: Sequence[str] = (),
    program: str = "protocol.testing.simulation",
) -> int:
    """Run the command line; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
    package : str
        Package of scenarios that are named without one: `NAME` is then `package.NAME:scenario`.
    names : sequence of str
        Scenarios of the package, which run if the command names none.
    program : str
        Module to name in commands.
    """
    options = _parser(program, package).parse_args(arguments)
    chosen = options.scenarios or list(names)
    if not chosen:
        print("name a scenario: module:function", file=sys.stderr)
        return 2
    scenarios = {name if ":" in name else f"{package}.{name}:scenario": name for name in chosen}
    if options.seed is not None:
        (scenario,) = scenarios
        return _one(scenario, options)
    return _many(scenarios, program, options)


def _parser(program: str, package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", help="module:function" + (f", or a module of {package}" * bool(package))
    )
    parser.add_argument("--seed", type=int, help="run this seed, and print its trace")
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("SEEDS", 20)), help="number of seeds to run")
    parser.add_argument("--first", type=int, help="first seed; by default a random one")
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("MINUTES", 0)), help="stop after this time"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds")
    parser.add_argument(
        "--preempt", nargs="*", default=(), help="modules in which a switch may come before any statement"
    )
    parser.add_argument("--debug", action="store_true", help="the client's debug log in the trace")
    parser.add_argument("--quiet", action="store_true", help="no trace of --seed")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out faults and switches that a failure does not need"
    )
    parser.add_argument("--failures", type=Path, help="file to which commands of failed seeds are added")
    return parser


def _one(scenario: str, options: argparse.Namespace) -> int:
    level = "DEBUG" if options.debug else "WARNING"
    with Worker() as worker:
        outcome = worker.run(scenario, options.seed, trace=not options.quiet, log_level=level, preempt=options.preempt)
        print(_summary(outcome))
        if outcome.error is None:
            return 0
        print(outcome.traceback, file=sys.stderr)
        if options.shrink:
            print(shrink(worker, scenario, outcome, preempt=options.preempt))
    return 1


def _many(scenarios: dict[str, str], program: str, options: argparse.Namespace) -> int:
    first = random.randrange(1_000_000_000) if options.first is None else options.first
    end_s = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    started_s = time.perf_counter()
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    progress_due_s = started_s + _PROGRESS_S

    def report(scenario: Scenario, outcome: Outcome) -> None:
        nonlocal progress_due_s
        name = scenarios[scenario_name(scenario)]
        (passed if outcome.error is None else failed)[name] += 1
        if (now_s := time.perf_counter()) >= progress_due_s:
            progress_due_s = now_s + _PROGRESS_S
            count = passed.total() + failed.total()
            print(f"{now_s - started_s:.0f} s: {count} seeds from {first}, {failed.total()} failed", flush=True)
        if outcome.error is not None:
            preempt = ["--preempt", *options.preempt] if options.preempt else []
            command = " ".join(["python -m", program, name, "--seed", str(outcome.seed), *preempt])
            print(failure_text(scenario, outcome, command), flush=True)
            if options.failures is not None:
                options.failures.parent.mkdir(parents=True, exist_ok=True)
                with options.failures.open("a") as file:
                    file.write(f"{command}  # {outcome.error}\n")

    run_all(_runs(list(scenarios), first, options.seeds, end_s), options.jobs, report, preempt=options.preempt)
    took_s = time.perf_counter() - started_s
    for name in scenarios.values():
        print(f"{name}: {passed[name] + failed[name]} seeds from {first}, {failed[name]} failed")
    rate = 60 * (passed.total() + failed.total()) / took_s
    print(f"{took_s:.1f} s, {rate:.0f} seeds per minute on {options.jobs} cores")
    return 1 if failed else 0


def _runs(scenarios: Sequence[str], first: int, count: int, end_s: float) -> Iterator[tuple[Scenario, int]]:
    """Yield scenarios and seeds in turns: `count` seeds of each, or as many as the time allows."""
    numbers = itertools.count(first) if end_s < float("inf") else range(first, first + count)
    for seed in numbers:
        for scenario in scenarios:
            if time.monotonic() >= end_s:
                return
            yield scenario, seed


def _summary(outcome: Outcome) -> str:
    rate = outcome.switches / outcome.real_s if outcome.real_s else 0
    verdict = f"failed: {outcome.error}" if outcome.error else f"passed: {outcome.result}"
    return (
        f"seed {outcome.seed} {verdict}\n{outcome.virtual_s:.1f} virtual s in {outcome.real_s:.2f} s, "
        f"{outcome.switches} switches ({rate:.0f} a second), {len(outcome.faults)} faults, digest {outcome.digest}"
    )
