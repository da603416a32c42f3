"""A process that ends local brokers and deletes their data when the Python process that started them is gone.

`process` runs it as a script with the data folder as its argument; it imports nothing of this package. Standard input
is a pipe from the parent with the lines `+PID` (watch) and `-PID` (ended, forget). If the pipe closes, or the parent
process id changes, the parent is dead: the watchdog kills the watched processes and deletes the folder.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

_PARENT_CHECK_INTERVAL_S = 1.0
_KILL_TIMEOUT_S = 5.0


def main(folder: str) -> None:
    """Watch until the parent is gone, then kill the watched process groups and delete `folder`."""
    # The parent may end by a signal to its process group or by a closed terminal; the watchdog must outlive it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = _watch(os.getppid())
    for pid in watched:
        _signal(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while any(_signal(pid, 0) for pid in watched) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _watch(parent: int) -> set[int]:
    """Read the pipe until the parent is gone; return the process ids to end."""
    watched: set[int] = set()
    partial_line = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], _PARENT_CHECK_INTERVAL_S)[0]:
            continue
        data = os.read(0, 4096)
        if not data:
            break
        *lines, partial_line = (partial_line + data).split(b"\n")
        for line in lines:
            change = watched.add if line[:1] == b"+" else watched.discard
            change(int(line[1:]))
    return watched


def _signal(pid: int, number: int) -> bool:
    """Send a signal to the process group that `pid` leads; return False if it does not exist."""
    try:
        os.killpg(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
