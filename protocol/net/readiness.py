"""Wait for any of several replies, on several connections, or for a wake-up by another thread (`SelfPipe`).

For threads that communicate with many brokers (the producer's sender); `Reply.result` waits for one reply only.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Sequence

from protocol.base.clock import Deadline
from protocol.base.interrupts import interruptible
from protocol.net.connection import Reply

_MAX_POLL_S = 3_600.0


def ready(
    replies: Sequence[Reply],
    timeout_s: float = 0.0,
    deadline: Deadline | None = None,
    self_pipe: SelfPipe | None = None,
) -> list[Reply]:
    """Wait until a reply arrives or fails. Reads available bytes, so `result` of the returned replies does not wait.

    `replies`: the oldest pending reply of each connection, since replies are ordered.
    `timeout_s`: maximum wait until a reply arrives.
    `deadline`: limit of requests that ask other brokers about a silent one (`Connection.check_silence`); not sent if
    None.
    `self_pipe`: ends the wait when woken, and is drained.
    The result may be empty: after `timeout_s`, after a wake-up, or if only part of a reply has arrived.
    """
    arrived = [reply for reply in replies if reply.poll()]
    if arrived or not (replies or self_pipe):
        return arrived
    poll = select.poll()
    by_number: dict[int, Reply] = {}
    for reply in replies:
        number = reply.fileno()
        if number < 0:
            arrived.append(reply)
            continue
        by_number[number] = reply
        poll.register(number, select.POLLIN)
    if self_pipe is not None:
        poll.register(self_pipe.fileno(), select.POLLIN)
    events = interruptible(poll.poll, 0 if arrived else min(max(0.0, timeout_s), _MAX_POLL_S) * 1000)
    if self_pipe is not None and any(number == self_pipe.fileno() for number, _ in events):
        self_pipe.drain()
    if not events and not arrived and deadline is not None and not deadline.passed:
        for reply in replies:
            reply.check_silence(deadline)
    ready_sources = [by_number[number] for number, _ in events if number in by_number]
    return arrived + [reply for reply in ready_sources if reply.poll()]


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
        try:  # noqa: SIM105 - needs no memory: a thread must be stopped also without
            self._writer.send(b"\0")
        except OSError:
            pass

    def drain(self) -> None:
        """Remove all wake-ups. Only in the polling thread."""
        with contextlib.suppress(OSError):
            while self._reader.recv(4_096):
                pass

    def close(self) -> None:
        """Close both ends. Later calls of `wake` have no effect."""
        self._reader.close()
        self._writer.close()
