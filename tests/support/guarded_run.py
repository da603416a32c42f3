"""Runs pytest so that it ends: `python -m tests.support.guarded_run [--second-try] ARGUMENTS`.

The run is red if it exceeds `DEADLINE_S`, or if a process crashes after its tests, which pytest-xdist does not report.
Crashes and hangs of a test are found by pytest: its fault handler, pytest-timeout and pytest-xdist (`pyproject.toml`).

With `--second-try` up to two failed tests run again, alone. Only tests marked `kafka` or `spark` do: they wait for
processes, which a busy machine of two cores delays. A test that passes only then is still a fault of the test or of the
product. It is named in the last lines of the output, and in `build/flaky.json` with the output of its first failure.

The functions `pytest_…` are a plugin of the runs (`-p tests.support.guarded_run`).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

DEADLINE_S = 2_400.0
SECOND_TRY = "--second-try"
MARKS = ("kafka", "spark")
MOST = 2
FLAKY = Path("build/flaky.json")
_GRACE_S = 20.0  # workers notice within this time that their controller has ended
_MARKED = "marked"
_FATAL = "Fatal Python error: "

_Failures = dict[str, dict[str, Any]]


def main(arguments: list[str], folder: Path = Path()) -> int:
    """Return the exit code of pytest: of the second run if there was one.

    Parameters
    ----------
    arguments : list of str
        Arguments of the first run, after `--second-try` if there may be a second run, which has no workers.
    folder : Path
        Working folder of pytest.
    """
    second_try = arguments[:1] == [SECOND_TRY]
    code, failures = _run(arguments[second_try:], folder)
    if not second_try:
        return code
    flaky: dict[str, str] = {}
    # Code 1: neither passed, nor interrupted, nor failed to collect.
    if code == 1 and 0 < len(failures) <= MOST and all(failure[_MARKED] for failure in failures.values()):
        code, repeated = _run(sorted(failures), folder)
        if code in (0, 1):
            flaky = {test: failures[test]["output"] for test in sorted(failures.keys() - repeated.keys())}
    (folder / FLAKY).parent.mkdir(exist_ok=True)
    (folder / FLAKY).write_text(json.dumps(flaky, indent=1))
    if flaky:
        print(f"Passed only the second time, mend them ({FLAKY} has the first failures):", *flaky, sep="\n  ")
    return code


def _run(arguments: list[str], folder: Path) -> tuple[int, _Failures]:
    with TemporaryDirectory() as scratch, Path(scratch, "stderr").open("w+", errors="replace") as errors:
        report = Path(scratch, "failures.json")
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.guarded_run", "--failures", str(report)]
        process = subprocess.Popen([*command, *arguments], cwd=folder, stderr=errors)
        try:
            code = process.wait(DEADLINE_S)
        except KeyboardInterrupt:  # of pytest, too
            code = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            print(f"pytest has not ended within {DEADLINE_S:g} s. Its stacks follow.")
            process.send_signal(signal.SIGABRT)  # the fault handler prints the stacks
            code = process.wait(_GRACE_S)
        finally:
            process.kill()
        errors.seek(0)
        stderr = errors.read()
        sys.stderr.write(stderr)
        if _FATAL in stderr and code == 0:
            print("A test process has crashed after its tests: see the stacks above.")
            code = 3
        return code, json.loads(report.read_text()) if report.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, help="file for the failed tests and their output, as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, pytest.TestReport]:
    """Tell the report of the marks; its keywords include names of folders, such as `spark`."""
    report: pytest.TestReport = yield
    report.user_properties.append((_MARKED, any(item.get_closest_marker(name) for name in MARKS)))
    return report


class _FailureReport:
    """Writes failed tests to a file, in pytest's only process or in pytest-xdist's controller."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failures: _Failures = {}

    @pytest.hookimpl(trylast=True)  # after `worker_groups` has removed the group from the id
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # A worker that died reports its test without properties: its other tests did not run.
            marked = dict(report.user_properties).get(_MARKED, False)
            failure = self._failures.setdefault(report.nodeid, {_MARKED: marked, "output": ""})
            captured = (f"\n--- {title} ---\n{text}" for title, text in report.sections)
            failure["output"] = f"{failure['output']}{report.when}: {report.longreprtext}{''.join(captured)}\n"

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._failures))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("failures")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailureReport(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
