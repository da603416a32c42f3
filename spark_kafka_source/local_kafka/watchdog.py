"""A tiny process that ends local brokers and deletes their data when the Python that started them is gone.

Run as a script by `process`, with the data folder as its argument; it imports nothing of ours. Standard input
is a pipe whose other end only the parent holds: each line is `+PID` (watch) or `-PID` (ended and reaped, forget it).
When the pipe closes, or the parent is another process than at the start, the parent has died, however it died (also
by SIGKILL): what is still watched is killed, and the folder deleted.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time

_LOOK_AT_PARENT_EVERY_S = 1.0
_WAIT_FOR_DEATH_S = 5.0


def main(folder: str) -> None:
    # The parent may end by a signal to its whole group, or a closed terminal; this process must outlive it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watched = _watch(os.getppid())
    for pid in watched:
        _signal(pid, signal.SIGKILL)
    give_up_s = time.monotonic() + _WAIT_FOR_DEATH_S
    while any(_signal(pid, 0) for pid in watched) and time.monotonic() < give_up_s:
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _watch(parent: int) -> set[int]:
    """Follows the pipe until the parent is gone; the process ids to be ended."""
    watched: set[int] = set()
    rest = b""
    while os.getppid() == parent:
        if not select.select([0], [], [], _LOOK_AT_PARENT_EVERY_S)[0]:
            continue
        read = os.read(0, 4096)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            change = watched.add if line[:1] == b"+" else watched.discard
            change(int(line[1:]))
    return watched


def _signal(pid: int, number: int) -> bool:
    """Signals the process group that `pid` leads; False if there is none any more."""
    try:
        os.killpg(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1])
