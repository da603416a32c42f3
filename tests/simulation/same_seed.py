"""Same seed, same run: compare the digests of scenarios in processes with different hash seeds.

python -m tests.simulation.same_seed --repetitions 100
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

from protocol.testing.simulation import Outcome, Worker
from tests.simulation import SCENARIOS


def digests(scenario: str, seed: int, repetitions: int, jobs: int = 1) -> list[tuple[str, str]]:
    """Return the distinct digests and errors of a seed, each repetition in a new process with a random hash seed."""

    def run(number: int) -> Outcome:
        with Worker({"PYTHONHASHSEED": str(number)}) as worker:
            return worker.run(f"tests.simulation.{scenario}:scenario", seed)

    with ThreadPoolExecutor(jobs) as pool:
        outcomes = list(pool.map(run, range(1, repetitions + 1)))
    return sorted({(outcome.digest, str(outcome.error)) for outcome in outcomes})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", nargs="*", default=SCENARIOS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    different = 0
    for scenario in options.scenarios:
        for seed in options.seeds:
            found = digests(scenario, seed, options.repetitions, options.jobs)
            different += len(found) > 1
            print(f"{scenario} --seed {seed}: {', '.join(' '.join(pair) for pair in found)}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
