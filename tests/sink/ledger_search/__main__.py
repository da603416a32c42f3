"""Search the configurations and the controls: `python -m tests.sink.ledger_search [NAME …]`.

Prints a row for each, with seconds of processor time, and the steps of a counterexample. The names may be parts; by
default all are searched.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext

from tests.sink.ledger_search.configurations import CONTROLS, LARGE
from tests.sink.ledger_search.search import search


def main(names: list[str]) -> int:
    """Return 1 if a configuration has a counterexample, or a control has none."""
    searches = [(name, configuration, nullcontext, None) for name, configuration in LARGE.items()]
    searches += [
        (f"control: {name}", control.configuration, control.without, control.violated)
        for name, control in CONTROLS.items()
    ]
    failed = 0
    print(f"{'states':>9} {'steps':>9} {'cut':>7} {'s':>6}  search")
    for name, configuration, without, expected in searches:
        if names and not any(part in name for part in names):
            continue
        started_s = time.process_time()
        with without():
            result = search(configuration)
        failed += (result.violation is None) != (expected is None)
        elapsed_s = time.process_time() - started_s
        counts = f"{result.states:9,} {result.steps:9,} {result.cut:7,} {elapsed_s:6.1f}"
        verdict = "holds" if result.is_complete else "holds in the states so far; the search has reached its limit"
        print(f"{counts}  {name}: {result.violation or verdict}")
        if result.violation is not None and expected is None:
            print(*result.counterexample, sep="\n    ")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
