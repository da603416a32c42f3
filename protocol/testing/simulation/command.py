"""The command line of simulations: one seed with its trace, or many seeds of one or several scenarios."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.testing.simulation.runner import Outcome, Scenario, Worker, failure_text, run_all, scenario_name
from protocol.testing.simulation.shrink import shrink

_PROGRESS_S = 30.0
_DEFAULT_SEEDS = 20
_INTERRUPTED = 130
"""The exit status of a shell's command that Ctrl-C has ended."""
EVENT_RUNS = 5
"""Runs of a scenario after which its events are compared with the least counts."""


def main(
    arguments: Sequence[str] | None = None,
    package: str = "",
    names: Sequence[str] = (),
    program: str = "protocol.testing.simulation",
    least_events: Mapping[str, Mapping[str, int]] = {},
) -> int:
    """Run the command line; return the exit status.

    With `package`, the argument `NAME` means the scenario `package.NAME:scenario`, and a command without arguments runs
    all `names`. `program` is the module in the commands that are printed. `least_events` has counts by scenario and
    event: with fewer in `EVENT_RUNS` runs or more, a scenario fails as idle.
    """
    options = _parser(program, package).parse_args(arguments)
    chosen = options.scenarios or list(names)
    if not chosen or (not package and any(":" not in name for name in chosen)):
        print("name a scenario: module:function, such as copies:scenario", file=sys.stderr)
        return 2
    scenarios = {name if ":" in name else f"{package}.{name}:scenario": name for name in chosen}
    if absent := [scenario for scenario in scenarios if not _has_module(scenario)]:
        print(f"no module of this name in {os.getcwd()}, nor installed: {', '.join(absent)}", file=sys.stderr)
        return 2
    if options.seed is not None and len(scenarios) > 1:
        print("--seed runs one scenario; --first SEED --seeds 1 runs several", file=sys.stderr)
        return 2
    try:
        if options.seed is not None:
            (scenario,) = scenarios
            return _one(scenario, options)
        return _many(scenarios, program, options, least_events)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return _INTERRUPTED


def _has_module(scenario: str) -> bool:
    try:
        return importlib.util.find_spec(scenario.partition(":")[0]) is not None
    except ModuleNotFoundError:  # of the package
        return False


def _parser(program: str, package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", help="module:function" + (f", or a module of {package}" * bool(package))
    )
    parser.add_argument("--seed", type=int, help="run this seed, and print its trace")
    parser.add_argument(
        "--seeds", type=int, default=os.environ.get("SEEDS"), help="seeds of each scenario to run; 20 without --minutes"
    )
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
    parser.add_argument(
        "--faults", nargs="*", type=int, help="numbers of the faults of --seed that happen, as of --shrink"
    )
    parser.add_argument("--switches", nargs="*", type=_range, help="ranges of the voluntary switches that happen")
    parser.add_argument("--failures", type=Path, help="file to which commands of failed seeds are added")
    parser.add_argument("--log", type=Path, help="file with a line for each run; seeds in it count as run")
    return parser


def _range(text: str) -> tuple[int, int]:
    first, end = text.split("-")
    return int(first), int(end)


def _one(scenario: str, options: argparse.Namespace) -> int:
    level = "DEBUG" if options.debug else "WARNING"
    with Worker() as worker:
        outcome = worker.run(
            scenario,
            options.seed,
            faults=options.faults,
            switches=options.switches,
            trace=not options.quiet,
            log_level=level,
            preempt=options.preempt,
        )
        print(_summary(outcome))
        if outcome.error is None:
            return 0
        print(outcome.traceback, file=sys.stderr)
        if options.shrink:
            print(shrink(worker, scenario, outcome, preempt=options.preempt))
    return 1


def _many(
    scenarios: dict[str, str],
    program: str,
    options: argparse.Namespace,
    least_events: Mapping[str, Mapping[str, int]],
) -> int:
    first = random.randrange(1_000_000_000) if options.first is None else options.first
    end_s = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    count = options.seeds if options.seeds or options.minutes else _DEFAULT_SEEDS
    started_s = time.perf_counter()
    tally = _Tally(scenarios, options.log)
    firsts = {scenario: tally.next_seed(name, first) for scenario, name in scenarios.items()}
    print(f"seeds from {', '.join(map(str, sorted(set(firsts.values()))))}", flush=True)
    progress_due_s = started_s + _PROGRESS_S

    def report(scenario: Scenario, outcome: Outcome) -> None:
        nonlocal progress_due_s
        name = scenarios[scenario_name(scenario)]
        tally.add(name, outcome)
        if (now_s := time.perf_counter()) >= progress_due_s:
            progress_due_s = now_s + _PROGRESS_S
            print(f"{now_s - started_s:.0f} s: {tally}", flush=True)
        if outcome.error is not None:
            preempt = ["--preempt", *options.preempt] if options.preempt else []
            command = " ".join(["python -m", program, name, "--seed", str(outcome.seed), *preempt])
            print(failure_text(scenario, outcome, command), flush=True)
            if options.failures is not None:
                options.failures.parent.mkdir(parents=True, exist_ok=True)
                with options.failures.open("a") as file:
                    file.write(f"{command}  # {outcome.error}\n")

    seeds_left = {
        scenario: None if count is None else count - tally.count(name) for scenario, name in scenarios.items()
    }
    try:
        run_all(_runs(firsts, seeds_left, end_s), options.jobs, report, preempt=options.preempt)
    finally:
        print(tally.table())
        print("\n".join(tally.event_lines()))
        print(f"{time.perf_counter() - started_s:.1f} s on {options.jobs} cores")
    for text in (idle := tally.idle(least_events)):
        print(text)
    return 1 if tally.failed or idle else 0


def _runs(firsts: Mapping[str, int], counts: Mapping[str, int | None], end_s: float) -> Iterator[tuple[Scenario, int]]:
    """Yield scenarios and seeds in turns: as many of each as `counts` says, or as the time allows."""
    number, due = 0, list(firsts)
    while due := [scenario for scenario in due if (count := counts[scenario]) is None or number < count]:
        for scenario in due:
            if time.monotonic() >= end_s:
                return
            yield scenario, firsts[scenario] + number
        number += 1


class _Tally:
    """Counts of runs by scenario; with a log, which has an object of JSON per run, also those of former commands."""

    def __init__(self, scenarios: Mapping[str, str], log: Path | None) -> None:
        self.failed: dict[str, list[int]] = {}
        self._names = list(scenarios.values())
        self._log = log
        self._events: dict[str, Counter[str]] = {name: Counter() for name in self._names}
        self._runs: Counter[str] = Counter()
        self._seeds: dict[str, set[int]] = {name: set() for name in self._names}
        self._real_s: dict[str, float] = dict.fromkeys(self._names, 0.0)
        if log is not None and log.exists():
            for line in log.read_text().splitlines():
                self._count(**json.loads(line))

    def _count(self, scenario: str, seed: int, real_s: float, error: str | None) -> None:
        self._seeds.setdefault(scenario, set()).add(seed)
        self._real_s[scenario] = self._real_s.get(scenario, 0.0) + real_s
        if error is not None:
            self.failed.setdefault(scenario, []).append(seed)

    def add(self, name: str, outcome: Outcome) -> None:
        """Count a run."""
        row: dict[str, Any] = {"scenario": name, "seed": outcome.seed, "real_s": round(outcome.real_s, 3)}
        row["error"] = outcome.error
        self._count(**row)
        self._runs[name] += 1
        self._events[name] += _events(outcome)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as file:
                file.write(json.dumps(row) + "\n")

    def event_lines(self) -> list[str]:
        """Return the events of the runs of this command, by scenario."""
        return [
            f"{name}: {', '.join(f'{event} {count}' for event, count in sorted(events.items()))}"
            for name, events in self._events.items()
        ]

    def idle(self, least_events: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Return a message for each event that has happened too rarely in the runs of this command."""
        return [
            f"{name} is idle: {event} {self._events[name][event]} in {self._runs[name]} runs, at least {count} expected"
            for name in self._names
            if self._runs[name] >= EVENT_RUNS
            for event, count in least_events.get(name, {}).items()
            if self._events[name][event] < count
        ]

    def count(self, name: str) -> int:
        """Return the number of seeds of a scenario."""
        return len(self._seeds[name])

    def next_seed(self, name: str, first: int) -> int:
        """Return the seed after those of a scenario, or `first` if there is none yet."""
        return max(self._seeds[name], default=first - 1) + 1

    def __str__(self) -> str:
        failed = sum(map(len, self.failed.values()))
        return f"{sum(map(self.count, self._names))} seeds, {failed} failed"

    def table(self) -> str:
        """Return a table of all scenarios."""
        lines = [f"{'seeds':>8} {'a minute and core':>18}  scenario"]
        for name in self._names:
            rate = 60 * self.count(name) / self._real_s[name] if self._real_s[name] else 0
            failed = self.failed.get(name)
            text = f": {len(failed)} failed, {', '.join(map(str, failed))}" if failed else ""
            lines.append(f"{self.count(name):8} {rate:18.1f}  {name}{text}")
        return "\n".join(lines)


def _events(outcome: Outcome) -> Counter[str]:
    """Return faults, processes, and numbers and truth values of the result."""
    events = Counter({"faults": len(outcome.faults), "processes": outcome.processes, "kills": outcome.kills})
    if isinstance(outcome.result, dict):
        events += Counter({key: int(number) for key, number in outcome.result.items() if isinstance(number, int)})
    return events


def _summary(outcome: Outcome) -> str:
    rate = outcome.switches / outcome.real_s if outcome.real_s else 0
    verdict = f"failed: {outcome.error}" if outcome.error else f"passed: {outcome.result}"
    return (
        f"seed {outcome.seed} {verdict}\n{outcome.virtual_s:.1f} virtual s in {outcome.real_s:.2f} s, "
        f"{outcome.switches} switches ({rate:.0f} a second), {len(outcome.faults) or 'no'} faults, "
        f"digest {outcome.digest}"
    )
