"""A process that dies or hangs makes a run red, with the name of its test; marked tests are tried twice."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support import guarded_run

# In a folder named as a mark: one test that passes the second time, and any number that never do.
TESTS = """
import pathlib
import pytest

{mark}
def test_passes_the_second_time():
    tried = pathlib.Path("tried")
    if not tried.exists():
        tried.touch()
        print("said before")
        raise AssertionError("the first time")

@pytest.mark.spark
@pytest.mark.parametrize("n", range({failing}))
def test_never_passes(n):
    raise AssertionError

def test_passes():
    pathlib.Path("count").open("a").write("x")
"""
FLAKY = "spark/test_it.py::test_passes_the_second_time"
MARKED = "@pytest.mark.kafka"


@pytest.mark.parametrize(
    ("mark", "failing", "code", "flaky", "runs"),
    [(MARKED, 0, 0, [FLAKY], 2), (MARKED, 1, 1, [FLAKY], 2), (MARKED, 2, 1, [], 1), ("", 0, 1, [], 1)],
    ids=["flaky", "and a failing one", "and two failing ones", "flaky without a mark"],
)
def test_second_try_is_for_two_marked_tests(
    mark: str, failing: int, code: int, flaky: list[str], runs: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Slow: up to two runs of pytest in separate processes."""
    workers = ("-p", "tests.support.worker_groups", "-n", "1", "--dist", "loadgroup") if code == 0 else ()
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "test_it.py").write_text(TESTS.format(mark=mark, failing=failing))
    assert guarded_run.main([guarded_run.SECOND_TRY, "-q", *workers], tmp_path) == code
    output = capfd.readouterr().out
    assert output.endswith("".join(f":\n  {test}\n" for test in flaky))
    assert output.count("short test summary info") == runs - (code == 0)
    first_failures = json.loads((tmp_path / guarded_run.FLAKY).read_text())
    assert list(first_failures) == flaky
    assert all("the first time" in text and "said before" in text for text in first_failures.values())
    assert (tmp_path / "count").read_text() == "x"  # what has passed is not repeated


GROUPED = """
import os, pathlib, pytest

@pytest.fixture
def {fixture}():
    pass

@pytest.mark.parametrize("n", range(9))
def test_it({fixture}, n):
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).open("a").write("{fixture} ")
"""


def test_two_workers_have_a_spark_and_the_third_the_brokers(tmp_path: Path) -> None:
    for number, fixture in enumerate(("kafka1", "spark", "kafka1", "spark")):
        (tmp_path / f"test_{number}.py").write_text(GROUPED.format(fixture=fixture))
    both = GROUPED.format(fixture="spark") + GROUPED.format(fixture="kafka1").replace("test_it", "test_without_spark")
    (tmp_path / "test_both.py").write_text(both)
    options = "-q -p tests.support.worker_groups -n 3 --dist loadgroup --no-loadscope-reorder"
    assert guarded_run.main(options.split(), tmp_path) == 0
    assert sorted(path.read_text() for path in tmp_path.glob("gw?")) == ["kafka1 " * 27, "spark " * 9, "spark " * 18]


def test_fault_handler_ends_processes_of_this_project_whose_test_hangs(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getini("faulthandler_exit_on_timeout")
    assert float(pytestconfig.getini("timeout")) < float(pytestconfig.getini("faulthandler_timeout"))


DIES = "import ctypes\ndef test_dies():\n    ctypes.string_at(0)\n"
HANGS = """
import ctypes, pytest, signal
def test_hangs():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(300)  # keeps the interpreter's lock: no Python runs any more
"""
DIES_WITH_A_CHILD = """
import os, signal
def test_dies():
    if os.fork() == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_AT_THE_END = "import atexit, ctypes\ndef test_passes():\n    atexit.register(ctypes.string_at, 0)\n"
HANGS_AT_THE_START = "import signal\nsignal.alarm(60)\nsignal.pause()\n"
PASSES = "def test_passes():\n    pass\n"


@pytest.mark.parametrize(
    ("tests", "patterns"),
    [
        (DIES, ["crashed while running 'test_one.py::test_dies'", "Segmentation fault(.|\n)*in test_dies"]),
        (HANGS, ["crashed while running 'test_one.py::test_hangs'", r"Timeout(.|\n)*in test_hangs"]),
        (DIES_WITH_A_CHILD, ["crashed while running 'test_one.py::test_dies'"]),
        (DIES_AT_THE_END, ["2 passed", "crashed after its tests", "Segmentation fault"]),
        (HANGS_AT_THE_START, ["has not ended within 2 s"]),
    ],
    ids=["dies", "hangs", "dies with a child", "dies at its end", "hangs at its start"],
)
def test_process_that_dies_or_hangs_makes_the_run_red(
    tests: str, patterns: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = "timeout = 1\nfaulthandler_timeout = 2" if tests == HANGS else "timeout = 60\nfaulthandler_timeout = 90"
    settings = f"{limits}\nfaulthandler_exit_on_timeout = true"
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{settings}\n")
    (tmp_path / "test_one.py").write_text(tests)
    (tmp_path / "test_other.py").write_text(PASSES)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # hypothesis alone would take a second in each process
    monkeypatch.setattr(guarded_run, "DEADLINE_S", 2 if tests == HANGS_AT_THE_START else 60)
    plugins = "-p xdist -p pytest_timeout -p tests.support.worker_groups"
    assert guarded_run.main([*plugins.split(), "-n", "2", "--max-worker-restart", "0"], tmp_path) != 0
    output = "".join(capfd.readouterr())
    for pattern in patterns:
        assert re.search(pattern, output), output
