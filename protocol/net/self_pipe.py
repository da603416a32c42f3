"""Wakes a thread that polls sockets: a pipe to oneself, that is polled with them.

Used by threads that wait for replies and for work at once (the producer's sender).
"""

from __future__ import annotations

import contextlib
import socket


class SelfPipe:
    """`wake` from any thread; the one that polls `fileno` then calls `drain`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        # When it is full there is enough to wake up for, and when it is closed nobody waits.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        with contextlib.suppress(OSError):
            while self._reader.recv(4_096):
                pass

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
