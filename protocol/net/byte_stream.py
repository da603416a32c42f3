"""Send bytes with a deadline, and receive available bytes, on a non-blocking socket.

Used by `connection`. One thread may send while another receives. The TLS stream is a subclass: it overrides how bytes
are sent, received and buffered.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Sequence

from protocol.base.clock import Deadline
from protocol.base.interrupts import interruptible
from protocol.errors import ConnectionLost, KafkaError, RequestTimedOut

Buffer = bytes | bytearray | memoryview

# Half of the 1024 buffers that Linux allows in one sendmsg (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 512
SILENCE_MS = 1_000
_SMALL_BYTES = 65_536


def empty_buffer(size_bytes: int) -> memoryview:
    """Return memory to receive into. A large buffer is not filled with zeros, and occupies what is written only."""
    if size_bytes <= _SMALL_BYTES:
        return memoryview(bytearray(size_bytes))
    import numpy as np  # half of the startup time of a short command, whose replies are small

    return np.empty(size_bytes, np.uint8).data


class ByteStream:
    """A connected socket without encryption.

    `sock`: the stream takes ownership and sets it to non-blocking.
    `address`: name of the peer in messages.
    """

    def __init__(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        self.socket = sock
        """The non-blocking socket."""
        self.address = address
        # Called by a waiting thread every SILENCE_MS, with its deadline. May close the stream.
        self.on_silence: Callable[[Deadline], None] = lambda deadline: None

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        """Send all buffers in order. At most one thread at a time.

        Raises `RequestTimedOut`: close the stream then, since a part may have been sent. `ConnectionLost`.
        """
        waiting = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while waiting:
            try:
                sent = self._send_some(waiting)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, deadline, "could not be sent")
                continue
            except OSError as error:
                raise self._broken("sending", error) from error
            done = 0
            while done < len(waiting) and sent >= len(waiting[done]):
                sent -= len(waiting[done])
                done += 1
            waiting = waiting[done:]
            if sent:
                waiting[0] = waiting[0][sent:]

    def receive_some(self, view: memoryview) -> int:
        """Fill `view` as far as bytes have come, and return their number; 0 for none. At most one thread at a time.

        Never waits. Raises `ConnectionLost`, also if the peer closed.
        """
        try:
            count = self._receive_some(view)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise self._broken("receiving", error) from error
        if count == 0:
            raise ConnectionLost(f"{self.address}: the broker closed the connection")
        return count

    def wait_readable(self, deadline: Deadline) -> None:
        """Wait after a `receive_some` that returned 0. Raises `RequestTimedOut` or `ConnectionLost`."""
        self._wait(select.POLLIN, deadline, "did not come")

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 once closed."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the socket. Waiting calls in any thread raise `ConnectionLost`."""
        # shutdown wakes a thread that polls this socket; close alone would not.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    # -- overridden by TLS --------------------------------------------------------------------

    def _send_some(self, buffers: Sequence[memoryview]) -> int:
        """Send without blocking and return the number of bytes; raise `BlockingIOError` for none, or `OSError`."""
        return self.socket.sendmsg(buffers[:_MAX_BUFFERS_PER_SEND])

    def _receive_some(self, view: memoryview) -> int:
        """Receive without blocking and return the number of bytes, 0 if the peer closed; raise as `_send_some`."""
        return self.socket.recv_into(view)

    def _broken(self, doing: str, error: OSError) -> KafkaError:
        """Convert an error of these calls to the error to raise."""
        return ConnectionLost(f"{self.address}: the connection broke while {doing} ({error})")

    def _wait(self, event: int, deadline: Deadline, operation: str) -> None:
        while True:
            poll = select.poll()
            try:
                poll.register(self.socket, event)
            except (OSError, ValueError) as error:
                raise ConnectionLost(f"{self.address}: the connection was closed by the client") from error
            if interruptible(poll.poll, min(deadline.remaining_s() * 1000, SILENCE_MS)):
                return
            if deadline.passed:
                raise RequestTimedOut(f"{self.address}: the bytes {operation} before the deadline")
            self.on_silence(deadline)
