"""Plugin of pytest: a test process that crashes or hangs ends the whole run within a minute, with its stacks.

Every test process writes the stacks of its threads to `build/faulthandler-PROCESS.log` when a signal kills it
(SIGSEGV, SIGABRT, …). A test that exceeds its time limit in native code, where pytest-timeout cannot interrupt it, is
killed. With `pytest -n` the controller watches the workers, since pytest-xdist may wait forever for the tests of a
killed worker: the first death ends the run.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

import pytest
from xdist.workermanage import NodeManager

FOLDER = Path(__file__).parents[2] / "build"
PAST_LIMIT_S = 30.0  # time for a test after its limit, if pytest-timeout did not end it
GRACE_S = 15.0  # time for a process to stop its brokers and exit
END_S = 60  # time for a process after its last test: the 10 s of pytest-xdist are too few on a busy machine

_LOOK_EVERY_S = 0.5
_process = os.environ.get("PYTEST_XDIST_WORKER", "main")
_stacks = pytest.StashKey[IO[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    FOLDER.mkdir(exist_ok=True)
    # Never closed: the process can crash during interpreter shutdown, too.
    config.stash[_stacks] = _log(_process).open("wb", buffering=0)
    faulthandler.enable(config.stash[_stacks])
    if config.getoption("numprocesses", None) and _process == "main":
        NodeManager.EXIT_TIMEOUT = END_S
        config.pluginmanager.register(_Watch(config))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Set a second timer, in a thread that runs without the GIL."""
    faulthandler.dump_traceback_later(settings.timeout + PAST_LIMIT_S, exit=True, file=item.config.stash[_stacks])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()


class _Watch:
    """Watches the worker processes of `pytest -n`. Runs in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._at_work: set[str] = set()
        self._dead: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch over test processes", daemon=True)

    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        self._processes[gateway.id] = gateway._io.popen
        self._at_work.add(gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        self._thread.start()

    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Note that a worker has finished, or that pytest-xdist has detected its death."""
        self._at_work.discard(node.gateway.id)
        if error:
            self._dead = self._dead or node.gateway.id

    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        process = report.node.gateway.id  # type: ignore[attr-defined]
        alone = self._dead in (None, process)
        report.longrepr = self._how(process) if alone else f"ended with the test process {self._dead}, which died"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report workers that ended with an error."""
        self._ended.set()
        for process, ended in self._processes.items():
            if self._dead is None and ended.poll():
                self._report_death(process)
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _run(self) -> None:
        while self._dead is None:
            if self._ended.wait(_LOOK_EVERY_S):
                return
            gone = [process for process in sorted(self._at_work) if self._processes[process].poll() is not None]
            self._dead = self._dead or next(iter(gone), None)
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in self._processes.values():
                if process.poll() is None:
                    process.send_signal(number)
            if self._ended.wait(GRACE_S):
                return
        # A child process may hold the pipe open, so pytest-xdist does not notice the death.
        self._report_death(self._dead)
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        reporter.summary_failures()
        reporter.summary_stats()
        reporter._tw.flush()
        os._exit(pytest.ExitCode.TESTS_FAILED)

    def _report_death(self, process: str) -> None:
        where = (f"test process {process}", None, "")
        report = pytest.TestReport(where[0], where, {}, "failed", self._how(process), "call")
        self._config.hook.pytest_runtest_logreport(report=report)

    def _how(self, process: str) -> str:
        code = self._processes[process].poll()
        return f"the test process {process} died (exit code {code})\n\n{_log(process).read_text(errors='replace')}"


def _log(process: str) -> Path:
    return FOLDER / f"faulthandler-{process}.log"
