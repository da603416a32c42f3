"""Wake a thread that polls sockets: a pipe within the process that is polled with them.

Used by threads that wait for replies and for work at the same time (the producer's sender).
"""

from __future__ import annotations

import contextlib
import socket


class SelfPipe:
    """Any thread calls `wake`; the thread that polls `fileno` then calls `drain`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor to poll for reading."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Wake the polling thread. Callable from any thread."""
        # If the pipe is full, the thread will wake anyway; if it is closed, no thread waits.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def drain(self) -> None:
        """Remove all wake-ups. Only in the polling thread."""
        with contextlib.suppress(OSError):
            while self._reader.recv(4_096):
                pass

    def close(self) -> None:
        """Close both ends. Later calls of `wake` have no effect."""
        self._reader.close()
        self._writer.close()
