"""One TCP connection as two blocking calls with deadlines: send these buffers, fill this buffer.

Owns the socket. Used by `connection` only. Knows nothing of frames, requests or Kafka.
The socket is non-blocking underneath, so one thread may send while another receives.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from protocol.clock import Deadline
from protocol.errors import ConnectFailed, ConnectionLost, RequestTimedOut
from protocol.net.resolver import Address, resolve

# Linux refuses more than this many buffers in one sendmsg (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 512
# An address that does not answer keeps the next one waiting for so long (RFC 8305 recommends it).
_BETWEEN_ATTEMPTS_MS = 250
_SILENCE_MS = 1_000


class Transport:
    """An open TCP connection to `host:port`."""

    def __init__(self, sock: socket.socket, host: str, port: int) -> None:
        self._socket = sock
        self.address = f"{host}:{port}"
        # Called by who has waited in vain for a while, with its deadline, before it waits on; may close.
        self.on_silence: Callable[[Deadline], None] = lambda deadline: None

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        deadline: Deadline,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
        first: int = 0,
    ) -> Transport:
        """Connects to whichever of the name's addresses answers first; buffer sizes of -1 are the system's.

        They are tried in the system's order, beginning with number `first` (counted round and round), each a moment
        after the one before and all until the deadline. Raises `ConnectFailed` with every address and what became of
        it.
        """

        def prepare(sock: socket.socket) -> None:
            if send_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
            if receive_buffer_bytes > 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

        addresses = resolve(host, port, deadline)
        first %= len(addresses)
        attempts = _Attempts([*addresses[first:], *addresses[:first]], prepare)
        sock = attempts.first_to_connect(deadline)
        if sock is None:
            why = "; ".join(attempts.failures)
            raise ConnectFailed(f"{host}:{port}: cannot connect ({why})", host=host, port=port)
        return cls(sock, host, port)

    def send(self, buffers: Sequence[bytes | bytearray | memoryview], deadline: Deadline) -> None:
        """Sends all buffers in order.

        Raises `RequestTimedOut` (the connection must then be closed: a part may be out) or `ConnectionLost`.
        """
        waiting = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while waiting:
            try:
                sent = self._socket.sendmsg(waiting[:_MAX_BUFFERS_PER_SEND])
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, deadline, "could not be sent")
                continue
            except OSError as error:
                raise ConnectionLost(f"{self.address}: the connection broke while sending ({error})") from error
            done = 0
            while done < len(waiting) and sent >= len(waiting[done]):
                sent -= len(waiting[done])
                done += 1
            waiting = waiting[done:]
            if sent:
                waiting[0] = waiting[0][sent:]

    def receive_into(self, view: memoryview, deadline: Deadline) -> None:
        """Fills `view` to its end. Raises `RequestTimedOut` or `ConnectionLost`."""
        filled = 0
        while filled < len(view):
            try:
                count = self._socket.recv_into(view[filled:])
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN, deadline, "did not come")
                continue
            except OSError as error:
                raise ConnectionLost(f"{self.address}: the connection broke while receiving ({error})") from error
            if count == 0:
                raise ConnectionLost(f"{self.address}: the broker closed the connection")
            filled += count

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

    def fileno(self) -> int:
        """The socket's number; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        # shutdown wakes a thread that polls this socket; close alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class _Attempts:
    """Attempts to connect to several addresses, one begun after the other (RFC 8305, "Happy Eyeballs")."""

    def __init__(self, addresses: Sequence[Address], prepare: Callable[[socket.socket], None]) -> None:
        self.failures: list[str] = []
        self._waiting = deque(addresses)
        self._prepare = prepare
        self._trying: dict[int, tuple[socket.socket, str]] = {}
        self._poll = select.poll()

    def first_to_connect(self, deadline: Deadline) -> socket.socket | None:
        """A connected socket that does not block; None when all have failed, or the deadline passed."""
        next_begins = deadline
        try:
            while self._waiting or self._trying:
                if self._waiting and (not self._trying or next_begins.passed):
                    self._begin(*self._waiting.popleft())
                    next_begins = Deadline.after_ms(_BETWEEN_ATTEMPTS_MS, deadline.clock)
                until = next_begins if self._waiting and next_begins.at_s < deadline.at_s else deadline
                if (connected := self._wait(until)) is not None:
                    return connected
                if deadline.passed:
                    break
            self.failures += [f"{name}: no answer in time" for _, name in self._trying.values()]
            self.failures += [f"{address[0]}: not tried, the time was over" for *_, address in self._waiting]
            return None
        finally:
            for sock, _ in self._trying.values():
                sock.close()

    def _begin(self, family: int, kind: int, protocol: int, _: str, address: Any) -> None:
        name = str(address[0])
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            self._prepare(sock)
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.connect(address)
        except OSError as error:
            if sock is not None:
                sock.close()
            self.failures.append(f"{name}: {error}")
            return
        self._trying[sock.fileno()] = sock, name
        self._poll.register(sock, select.POLLOUT)

    def _wait(self, until: Deadline) -> socket.socket | None:
        if not self._trying:
            return None
        for number, _ in self._poll.poll(until.remaining_s() * 1000):
            sock, name = self._trying.pop(number)
            self._poll.unregister(number)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                return sock
            sock.close()
            self.failures.append(f"{name}: {OSError(code, os.strerror(code))}")
        return None
