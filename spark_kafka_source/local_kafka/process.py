"""Java processes, and a watchdog that ends them if this process dies.

Called by `cluster`; independent of Kafka. Each process leads a separate process group, so that Ctrl-C in a terminal
reaches only Python, which then ends the processes. Signals go to process ids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

_WATCHDOG = Path(__file__).with_name("watchdog.py")


class Watchdog:
    """A process that ends the watched processes and deletes `folder` as soon as this process is gone.

    A thread or an exit handler would not survive SIGKILL, and Linux sends its parent-death signal when the *thread*
    that started a child ends.
    """

    def __init__(self, folder: Path) -> None:
        # Isolated and without site-packages, it starts in about 15 ms.
        command = [sys.executable, "-I", "-S", str(_WATCHDOG), str(folder)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """The process id of the watchdog."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Add the process group that `pid` leads."""
        self._send(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        """Remove a process group, whose leader has ended."""
        self._send(f"-{pid}\n")

    def close(self) -> None:
        """End the watchdog, which first kills the processes that it still watches."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        # The watchdog was killed or closed; `close` of the cluster still ends the processes.
        with contextlib.suppress(OSError, ValueError):
            pipe.write(line.encode())
            pipe.flush()


class JavaProcess:
    """A restartable command whose output goes to `log`."""

    def __init__(self, name: str, log: Path, watchdog: Watchdog) -> None:
        self.name = name
        self.log = log
        self._watchdog = watchdog
        self._log_start_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the process runs or is paused, else None."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        """True while the process runs or is paused."""
        return self._process is not None and self._process.poll() is None

    def start(self, command: list[str]) -> None:
        """Start the command in the log's folder, without waiting for its effect."""
        with self.log.open("ab") as output:
            self._log_start_bytes = output.tell()
            self._process = _spawn(command, output)
        self._watchdog.watch(self._process.pid)

    def signal(self, number: int) -> None:
        """Send a signal to the process and its children, unless it has ended."""
        # The process was not reaped, so its id cannot belong to another process.
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def pause(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped: one may still answer a request after the signal."""
        self.signal(signal.SIGSTOP)
        if self._process is not None and self.running and sys.platform != "darwin":
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM, also to a paused process; after `timeout_s` send SIGKILL and return False."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self._reap(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def log_excerpt(self, lines: int = 15) -> str:
        """Return log lines since the last start, for messages: from the first error on, else the last ones."""
        try:
            log_lines = printed_lines(self.log.read_bytes()[self._log_start_bytes :].decode(errors="replace"))
        except OSError:
            return ""
        errors = (number for number, line in enumerate(log_lines) if " ERROR " in line)
        start = next(errors, max(0, len(log_lines) - lines))
        return "\n".join(log_lines[start : start + lines])

    def _reap(self, timeout_s: float | None = None) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
            self._watchdog.forget(self._process.pid)


def printed_lines(text: str) -> list[str]:
    """Return the lines that a JVM has printed, without options of variables: they may have the password of a proxy."""
    return [line for line in text.splitlines() if not line.startswith(("Picked up ", "NOTE: Picked up "))]


def _spawn(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=os.path.dirname(output.name),
    )
