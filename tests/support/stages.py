"""Run stages of hours so that they can continue after a stop: `python -m tests.support.stages NAME < STAGES`.

A line of standard input is a stage: a name, a colon and a shell command. Stages that have passed with this commit are
not repeated; `build/NAME-COMMIT.json` has their results. A failed stage does not end the run. The last lines are a
table of all stages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

Results = dict[str, tuple[str, float]]
"""Result and minutes by stage."""


def main(name: str, lines: Iterable[str], folder: Path = Path("build")) -> int:
    """Return 0 if all stages have passed, in this run or in an earlier one of this commit."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    file = folder / f"{name}-{commit.stdout.strip()}.json"
    results: Results = json.loads(file.read_text()) if file.exists() else {}
    stages = dict(line.strip().split(": ", 1) for line in lines if line.strip())
    for stage, command in stages.items():
        if results.get(stage, ("", 0))[0] == "passed":
            continue
        print(f"{name}, {stage}", flush=True)
        began_s = time.monotonic()
        code = subprocess.run(command, shell=True).returncode
        results[stage] = "failed" if code else "passed", round((time.monotonic() - began_s) / 60, 1)
        folder.mkdir(exist_ok=True)
        file.write_text(json.dumps(results, indent=1))
    print(f"\n| {name} | result | minutes |\n| --- | --- | --- |")
    for stage in stages:
        result, minutes = results[stage]
        print(f"| {stage} | {result} | {minutes:g} |")
    return int(any(results[stage][0] != "passed" for stage in stages))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin))
