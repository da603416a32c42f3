"""Runs pytest, and at most three failed tests a second time, alone: `python -m tests.support.second_try ARGUMENTS`.

Most tests start processes and wait for them. Nine thousand of them on a busy machine of two cores meet delays that no
single run shows, and one failure hides what the others say. A test that passes only the second time is a fault of the
test or of the product all the same, so its name is printed at the end of the run. (Kafka's own build does the same.)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str], folder: Path = Path()) -> int:
    """Return the exit code of pytest: of the second run if there was one.

    Parameters
    ----------
    arguments : list of str
        Arguments of the first run. The second run has no workers.
    folder : Path
        Working folder of pytest.
    """
    code = _pytest([*arguments, "--cache-clear"], folder)
    if code != 1:  # passed, interrupted, or nothing could be collected
        return code
    failed = sorted(json.loads((folder / _FAILED).read_text()))
    if len(failed) > MOST:
        return code
    code = _pytest(failed, folder)
    if code == 0:
        print("Passed only the second time:", *failed, sep="\n  ")
    return code


def _pytest(arguments: list[str], folder: Path) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
