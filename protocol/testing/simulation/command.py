"""The command line of simulations: one seed with its trace, or many seeds."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.testing.simulation.runner import Outcome, Worker, failure_text, run_seeds
from protocol.testing.simulation.shrink import shrink


def main(arguments: Sequence[str] | None = None, prefix: str = "", program: str = "protocol.testing.simulation") -> int:
    """Run the command line; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
    prefix : str
        Package of scenarios that are named without one: `NAME` is then `prefix.NAME:scenario`.
    program : str
        Module to name in commands.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=__doc__)
    parser.add_argument("scenario", help="module:function" + (f", or a module of {prefix}" if prefix else ""))
    parser.add_argument("--seed", type=int, help="run this seed, and print its trace")
    parser.add_argument("--seeds", type=int, default=int(os.environ.get("SEEDS", 20)), help="number of seeds to run")
    parser.add_argument("--first", type=int, help="first seed; by default a random one")
    parser.add_argument(
        "--minutes", type=float, default=float(os.environ.get("MINUTES", 0)), help="in place of --seeds"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds")
    parser.add_argument("--preempt", nargs="*", default=(), help="modules in which a switch may happen before any line")
    parser.add_argument("--debug", action="store_true", help="the client's debug log in the trace")
    parser.add_argument("--quiet", action="store_true", help="no trace of --seed")
    parser.add_argument(
        "--shrink", action="store_true", help="leave out faults and switches that a failure does not need"
    )
    parser.add_argument("--failures", type=Path, help="file to which commands of failed seeds are added")
    options = parser.parse_args(arguments)
    name = options.scenario
    scenario = name if ":" in name else f"{prefix}.{name}:scenario"
    preempt = ["--preempt", *options.preempt] if options.preempt else []

    def command(outcome: Outcome) -> str:
        return " ".join(["python -m", program, name, "--seed", str(outcome.seed), *preempt])

    if options.seed is not None:
        level = "DEBUG" if options.debug else "WARNING"
        with Worker() as worker:
            outcome = worker.run(
                scenario, options.seed, trace=not options.quiet, log_level=level, preempt=options.preempt
            )
            print(_summary(outcome))
            if outcome.error is None:
                return 0
            print(outcome.traceback, file=sys.stderr)
            if options.shrink:
                print(shrink(worker, scenario, outcome, preempt=options.preempt))
        return 1

    first = random.randrange(1_000_000_000) if options.first is None else options.first
    seeds = (
        _until(time.monotonic() + options.minutes * 60, first)
        if options.minutes
        else range(first, first + options.seeds)
    )
    started_s = time.perf_counter()
    count = 0

    def report(outcome: Outcome) -> None:
        nonlocal count
        count += 1
        if outcome.error is not None:
            print(failure_text(scenario, outcome, command(outcome)), flush=True)
            if options.failures is not None:
                with options.failures.open("a") as file:
                    file.write(command(outcome) + "\n")

    failed = run_seeds(scenario, seeds, options.jobs, report, preempt=options.preempt)
    took_s = time.perf_counter() - started_s
    rate = 60 * count / took_s
    print(f"{name}: {count} seeds from {first} in {took_s:.1f} s, {rate:.0f} per minute, {len(failed)} failed")
    return 1 if failed else 0


def _until(end_s: float, first: int) -> Iterator[int]:
    for seed in itertools.count(first):
        if time.monotonic() >= end_s:
            return
        yield seed


def _summary(outcome: Outcome) -> str:
    rate = outcome.switches / outcome.real_s if outcome.real_s else 0
    verdict = f"failed: {outcome.error}" if outcome.error else f"passed: {outcome.result}"
    return (
        f"seed {outcome.seed} {verdict}\n{outcome.virtual_s:.1f} virtual s in {outcome.real_s:.2f} s, "
        f"{outcome.switches} switches ({rate:.0f} a second), {len(outcome.faults)} faults, digest {outcome.digest}"
    )
