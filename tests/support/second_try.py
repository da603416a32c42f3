"""Runs pytest, and up to two failed tests a second time, alone: `python -m tests.support.second_try ARGUMENTS`.

Only tests marked `kafka` or `spark` have a second try: they wait for processes, which a busy machine of two cores
delays. A test that passes only then is still a fault of the test or of the product. It is named in the last lines of
the output, and in `build/flaky.json` with the output of its first failure.

The functions `pytest_…` are a plugin of the runs (`-p tests.support.second_try`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

MARKS = ("kafka", "spark")
MOST = 2
FLAKY = Path("build/flaky.json")
_MARKED = "marked"
_CACHED = "second_try/failures"
_FAILURES = Path(".pytest_cache/v") / _CACHED


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
    flaky: dict[str, str] = {}
    if code == 1:  # neither passed, nor interrupted, nor failed to collect
        first = json.loads((folder / _FAILURES).read_text())
        if len(first) <= MOST and all(failure[_MARKED] for failure in first.values()):
            code = _pytest(sorted(first), folder)
            if code in (0, 1):
                second = json.loads((folder / _FAILURES).read_text())
                flaky = {test: first[test]["output"] for test in sorted(first.keys() - second.keys())}
    (folder / FLAKY).parent.mkdir(exist_ok=True)
    (folder / FLAKY).write_text(json.dumps(flaky, indent=1))
    if flaky:
        print(f"Passed only the second time, mend them ({FLAKY} has the first failures):", *flaky, sep="\n  ")
    return code


def _pytest(arguments: list[str], folder: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.second_try", *arguments]
    return subprocess.run(command, cwd=folder).returncode


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """Tell the report of the marks; its keywords include names of folders, such as `spark`."""
    report: pytest.TestReport = yield
    report.user_properties.append((_MARKED, any(item.get_closest_marker(name) for name in MARKS)))
    return report


class _Failures:
    """Collects failed tests, in pytest's only process or in pytest-xdist's controller."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache
        self._by_test: dict[str, dict[str, object]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # A worker that died reports its test without properties.
            marked = dict(report.user_properties).get(_MARKED, False)
            failure = self._by_test.setdefault(report.nodeid, {_MARKED: marked, "output": ""})
            captured = (f"\n--- {title} ---\n{text}" for title, text in report.sections)
            failure["output"] = f"{failure['output']}{report.when}: {report.longreprtext}{''.join(captured)}\n"

    def pytest_sessionfinish(self) -> None:
        self._cache.set(_CACHED, self._by_test)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config.cache))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
