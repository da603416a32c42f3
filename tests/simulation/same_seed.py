"""Same seed, same run: compare the digests of scenarios in processes with different hash seeds.

    python -m tests.simulation.same_seed --seeds 1 2 --repetitions 100 --log build/same-seed.jsonl

Each repetition is another process. A command that was stopped continues with the repetitions that the log lacks.
`--virtual-seconds` ends runs at that time of their world: their digests have all events until then.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from protocol.testing.simulation import Worker
from tests.simulation import SCENARIOS


class Repetition(NamedTuple):
    """One run of a seed; all with the same Python, scenario, seed and time limit have the same digest and error."""

    python: str
    scenario: str
    seed: int
    limit_s: float
    number: int
    digest: str = ""
    error: str | None = None


_LIMIT_S = 900.0
_CUT = "the time limit has passed"
PYTHON = "{}.{}".format(*sys.version_info)


def repeat(due: Iterable[Repetition], jobs: int = 1, report: Callable[[Repetition], object] = id) -> list[Repetition]:
    """Run repetitions, all of one number in one process with this hash seed; return them with their digests."""
    by_number: dict[int, list[Repetition]] = {}
    for repetition in due:
        by_number.setdefault(repetition.number, []).append(repetition)

    def run(number: int) -> list[Repetition]:
        ended = []
        with Worker({"PYTHONHASHSEED": str(number)}) as worker:
            for repetition in by_number[number]:
                scenario = f"tests.simulation.{repetition.scenario}:scenario"
                outcome = worker.run(scenario, repetition.seed, limit_s=repetition.limit_s)
                error = outcome.error and outcome.error.partition("\n")[0]
                ended.append(repetition._replace(digest=outcome.digest, error=error))
                report(ended[-1])
        return ended

    with ThreadPoolExecutor(jobs) as pool:
        return [repetition for ended in pool.map(run, by_number) for repetition in ended]


def different(repetitions: Iterable[Repetition]) -> dict[tuple[str, str, int, float], dict[str, int]]:
    """Return digests and errors with their counts for each seed that has more than one."""
    counts: dict[tuple[str, str, int, float], Counter[str]] = {}
    for repetition in repetitions:
        counts.setdefault(repetition[:4], Counter())[f"{repetition.digest} {repetition.error or ''}".strip()] += 1
    return {key: dict(counter) for key, counter in counts.items() if len(counter) > 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--virtual-seconds", type=float, default=_LIMIT_S, help="time of the world at which a run ends")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", type=Path, default=Path(os.devnull), help="file with a line for each repetition")
    options = parser.parse_args()
    options.log.parent.mkdir(parents=True, exist_ok=True)
    logged = (
        [Repetition(*json.loads(line)) for line in options.log.read_text().splitlines()] if options.log.exists() else []
    )
    ended = {repetition[:5] for repetition in logged}
    limit_s = options.virtual_seconds
    due = [
        Repetition(PYTHON, scenario, seed, limit_s, number)
        for number in range(1, options.repetitions + 1)
        for scenario in options.scenarios
        for seed in options.seeds
        if (PYTHON, scenario, seed, limit_s, number) not in ended
    ]
    with options.log.open("a") as file:

        def report(repetition: Repetition) -> None:
            file.write(json.dumps(repetition) + "\n")
            file.flush()
            if repetition.error is not None and _CUT not in repetition.error:
                print(f"{repetition.scenario} --seed {repetition.seed}: {repetition.error}", flush=True)

        logged += repeat(due, options.jobs, report)
    unequal = different(logged)
    for (python, scenario, seed, _), counts in unequal.items():
        print(f"Python {python}: {scenario} --seed {seed} has different digests: {counts}")
    seeds = len({repetition[:4] for repetition in logged})
    not_run = sum(not repetition.digest for repetition in logged)
    print(f"{len(logged)} repetitions of {seeds} seeds, {len(unequal)} with different digests, {not_run} did not run")
    return 1 if unequal or not_run else 0


if __name__ == "__main__":
    raise SystemExit(main())
