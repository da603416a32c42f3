"""A test process that dies ends the run soon, as failed, and prints its stacks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

DIES = "import ctypes\ndef test_dies(other_goes_on):\n    ctypes.string_at(0)\n"
HANGS = """
import ctypes, pytest, signal
@pytest.mark.timeout(1, func_only=True)
def test_hangs(other_goes_on):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(300)  # keeps the interpreter's lock: no Python runs any more
"""
# A child process inherits the pipe to the controller and keeps it open.
DIES_WITH_A_CHILD = """
import os, signal, time
def test_dies(other_goes_on):
    if os.fork() == 0:
        time.sleep(120)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_AT_THE_END = """
import atexit, ctypes
def test_passes():
    atexit.register(ctypes.string_at, 0)
"""
GOES_ON = """
import conftest, time
def test_first():
    pass
def test_goes_on():
    conftest.GOES_ON.touch()
    time.sleep(300)
def test_last():
    pass
"""
# The dying process waits until the other one runs its long test, so that its first test is reported as passed.
CONFTEST = """
import pathlib, pytest, time
from tests.support import process_deaths
process_deaths.FOLDER = pathlib.Path(__file__).parent
process_deaths.PAST_LIMIT_S = process_deaths.GRACE_S = 2.0
GOES_ON = process_deaths.FOLDER / "goes on"
@pytest.fixture
def other_goes_on():
    while not GOES_ON.exists():
        time.sleep(0.01)
"""
PASSES = "def test_passes():\n    pass\n"
OPTIONS = (
    "-p xdist -p pytest_timeout -p no:faulthandler -p tests.support.process_deaths -n 2 --dist loadfile "
    "--max-worker-restart 0"
)
SEGMENTATION_FAULT = r"Fatal Python error: Segmentation fault(.|\n)*in test_dies"


@pytest.mark.parametrize(
    ("one", "other", "closing", "pattern"),
    [
        (DIES, GOES_ON, "2 failed, 1 passed", SEGMENTATION_FAULT),
        (HANGS, GOES_ON, "2 failed, 1 passed", r"Timeout(.|\n)*in test_hangs"),
        (DIES_WITH_A_CHILD, GOES_ON, r"[12] failed, 1 passed", "died .exit code -9."),
        (DIES_AT_THE_END, PASSES, "1 failed, 2 passed", "Fatal Python error: Segmentation fault"),
    ],
    ids=["dies", "hangs", "dies with a child", "dies at its end"],
)
def test_process_that_dies_ends_the_run(one: str, other: str, closing: str, pattern: str, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {OPTIONS}\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(one)
    (tmp_path / "test_other.py").write_text(other)
    started_s = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # hypothesis alone would take a second in each process
    with (tmp_path / "output").open("w+") as output:
        command = [sys.executable, "-m", "pytest"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=output, stderr=output, timeout=120)
        assert time.monotonic() - started_s < 60
        output.seek(0)
        text = output.read()
    *_, last = text.splitlines()
    assert re.search(rf"\b{closing} in ", last), text
    assert ended.returncode != 0
    assert re.search(pattern, text), text
