"""Java processes that this one starts, signals and surely ends, and the watchdog that ends them if it cannot.

Called by `cluster`. Knows nothing of Kafka. Each process leads a process group of its own, so that Ctrl-C in a
terminal reaches only Python, which then ends them in its own order. Everything goes by process id.
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
    """Ends the processes it was told of, and deletes `folder`, once this process is gone, however it went.

    A process of its own, because a thread or an exit handler dies with a SIGKILL, and Linux's parent-death signal
    comes when the *thread* that started a child ends.
    """

    def __init__(self, folder: Path) -> None:
        # isolated and without site-packages: it starts in some 15 ms and holds nothing
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
        return self._process.pid

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Lets it go: it kills what it still watches and ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # somebody ended the watchdog; the owner still ends its processes itself
            pipe.write(line.encode())
            pipe.flush()


class JavaProcess:
    """One command that can be started, and started again after it ended. Its output goes to `log`."""

    def __init__(self, name: str, log: Path, watchdog: Watchdog) -> None:
        self.name = name
        self.log = log
        self._watchdog = watchdog
        self._log_start_bytes = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs (a paused one does), else None."""
        return self._process.pid if self.running and self._process is not None else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, command: list[str]) -> None:
        """Starts the command in the log's folder; does not wait for anything."""
        with self.log.open("ab") as output:
            self._log_start_bytes = output.tell()
            self._process = _spawn(command, output)
        self._watchdog.watch(self._process.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to the process and what it started; nothing if it has ended."""
        # Not yet waited for, so the id cannot belong to another process.
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self, timeout_s: float) -> bool:
        """SIGTERM, also to a paused process; SIGKILL, and False, if it has not ended after `timeout_s` seconds."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self._reap(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def last_words(self, lines: int = 15) -> str:
        """What it logged since its last start, for error messages: from the first error on, or else the end."""
        try:
            said = self.log.read_bytes()[self._log_start_bytes :].decode(errors="replace").splitlines()
        except OSError:
            return ""
        errors = (number for number, line in enumerate(said) if " ERROR " in line)
        start = next(errors, max(0, len(said) - lines))
        return "\n".join(said[start : start + lines])

    def _reap(self, timeout_s: float | None = None) -> None:
        if self._process is not None:
            self._process.wait(timeout_s)
            self._watchdog.forget(self._process.pid)


def _spawn(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=os.path.dirname(output.name),
    )
