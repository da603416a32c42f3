"""Bytes to and from one peer, as two blocking calls with deadlines: send these buffers, fill this buffer.

Owns a connected socket, which does not block underneath: one thread may send while another receives. Used by
`connection` only. Knows nothing of frames, requests or Kafka. A stream that encrypts is a subclass, since all that it
does otherwise is to send some bytes, to receive some, and to hold some back.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Sequence

from protocol.clock import Deadline
from protocol.errors import ConnectionLost, KafkaError, RequestTimedOut

Buffer = bytes | bytearray | memoryview

# Linux refuses more than this many buffers in one sendmsg (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 512
_SILENCE_MS = 1_000


class ByteStream:
    """A connected socket as it is. `address` is what messages call the peer."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.address = address
        # Called by who has waited in vain for a while, with its deadline, before it waits on; may close.
        self.on_silence: Callable[[Deadline], None] = lambda deadline: None

    def send(self, buffers: Sequence[Buffer], deadline: Deadline) -> None:
        """Sends all buffers in order. By one thread at a time.

        Raises `RequestTimedOut` (the stream must then be closed: a part may be out) or `ConnectionLost`.
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

    def receive_into(self, view: memoryview, deadline: Deadline) -> None:
        """Fills `view` to its end. By one thread at a time. Raises `RequestTimedOut` or `ConnectionLost`."""
        filled = 0
        while filled < len(view):
            try:
                count = self._receive_some(view[filled:])
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN, deadline, "did not come")
                continue
            except OSError as error:
                raise self._broken("receiving", error) from error
            if count == 0:
                raise ConnectionLost(f"{self.address}: the broker closed the connection")
            filled += count

    def pending(self) -> int:
        """How many bytes were taken from the socket and not received yet: a poll of `fileno` does not show them."""
        return 0

    def fileno(self) -> int:
        """The socket's number; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Whoever waits, in any thread, gets `ConnectionLost`."""
        # shutdown wakes a thread that polls this socket; close alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # -- what another kind of stream does in its own way --------------------------------------

    def _send_some(self, buffers: Sequence[memoryview]) -> int:
        """Sends what can be sent now, and how many bytes that was. Raises `BlockingIOError` for none, or `OSError`."""
        return self._socket.sendmsg(buffers[:_MAX_BUFFERS_PER_SEND])

    def _receive_some(self, view: memoryview) -> int:
        """Takes what is there now, and how many bytes that was; 0: the peer closed. Raises as `_send_some` does."""
        return self._socket.recv_into(view)

    def _broken(self, doing: str, error: OSError) -> KafkaError:
        """What an error of these means for who uses the stream."""
        return ConnectionLost(f"{self.address}: the connection broke while {doing} ({error})")

    def _wait(self, event: int, deadline: Deadline, what: str) -> None:
        while True:
            poll = select.poll()
            try:
                poll.register(self._socket, event)
            except (OSError, ValueError) as error:
                raise ConnectionLost(f"{self.address}: the connection was closed here") from error
            if poll.poll(min(deadline.remaining_s() * 1000, _SILENCE_MS)):
                return
            if deadline.passed:
                raise RequestTimedOut(f"{self.address}: the bytes {what} before the deadline")
            self.on_silence(deadline)
