"""One TCP connection as two blocking calls with deadlines: send these buffers, fill this buffer.

Owns the socket. Used by `connection` only. Knows nothing of frames, requests or Kafka.
The socket is non-blocking underneath, so one thread may send while another receives.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Sequence

from protocol.clock import Deadline
from protocol.errors import ConnectFailed, ConnectionLost, RequestTimedOut

# Linux refuses more than this many buffers in one sendmsg (IOV_MAX).
_MAX_BUFFERS_PER_SEND = 512


class Transport:
    """An open TCP connection to `host:port`."""

    def __init__(self, sock: socket.socket, host: str, port: int) -> None:
        self._socket = sock
        self.address = f"{host}:{port}"

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        deadline: Deadline,
        *,
        send_buffer_bytes: int = -1,
        receive_buffer_bytes: int = -1,
    ) -> Transport:
        """Connects to the first of the name's addresses that answers; buffer sizes of -1 are the system's.

        Raises `ConnectFailed` with every address that was tried.
        """
        try:
            candidates = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(
                f"{host}:{port}: the host name cannot be resolved ({error})", host=host, port=port
            ) from error
        failures: list[str] = []
        last: OSError | None = None
        for family, kind, protocol, _, address in candidates:
            sock = socket.socket(family, kind, protocol)
            try:
                if send_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
                if receive_buffer_bytes > 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
                sock.settimeout(max(deadline.remaining_s(), 0.001))
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setblocking(False)
                return cls(sock, host, port)
            except OSError as error:
                sock.close()
                last = error
                failures.append(f"{address[0]}: {error}")
        raise ConnectFailed(f"{host}:{port}: cannot connect ({'; '.join(failures)})", host=host, port=port) from last

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
        poll = select.poll()
        try:
            poll.register(self._socket, event)
        except (OSError, ValueError) as error:
            raise ConnectionLost(f"{self.address}: the connection was closed here") from error
        if not poll.poll(max(deadline.remaining_s() * 1000, 0)):
            raise RequestTimedOut(f"{self.address}: the bytes {what} before the deadline")

    def fileno(self) -> int:
        """The socket's number; -1 once closed."""
        return self._socket.fileno()

    def close(self) -> None:
        # shutdown wakes a thread that polls this socket; close alone would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
