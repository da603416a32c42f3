"""Sockets of simulated processes: streams of bytes on the simulated network."""

from __future__ import annotations

import errno
import io
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any

from protocol.testing.simulation.host import Host
from protocol.testing.simulation.network import LOOPBACK, Channel, Network
from protocol.testing.simulation.scheduler import SimulatedThread

_CAPACITY_BYTES = 1 << 20
_SHORT_READ_RATE = 0.02
POLLIN, POLLOUT, POLLERR, POLLHUP, POLLNVAL = 1, 4, 8, 16, 32


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class SimulatedSocket:
    """`socket.socket`, for streams only.

    `outgoing` is the direction in which this end sends. `was_reset`: a reset has arrived; the next receive raises it
    once.
    """

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = 0

    def __init__(self, network: Network, process: Host) -> None:
        self.network = network
        self.process = process
        self.scheduler = network.scheduler
        self.number = process.open_file(self)
        self.timeout_s: float | None = None
        self.incoming = bytearray()
        self.outgoing: Channel | None = None
        self.peer: SimulatedSocket | None = None
        self.address: tuple[str, int] = ("0.0.0.0", 0)  # noqa: S104 - an unbound socket's name
        self.connected = self.closed = self.listening = self.was_reset = False
        self._error = 0
        self._at_end = self._no_more_reading = self._no_more_sending = self._aborts = False
        self._attempt = False
        self._backlog: deque[SimulatedSocket] = deque()
        self._waiters: list[tuple[SimulatedThread, int]] = []

    # -- called by the network ----------------------------------------------------------------

    def changed(self) -> None:
        """Wake the threads that wait for this socket."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for thread, token in waiters:
                self.scheduler.wake(thread, token)

    def deliver(self, data: bytes) -> None:
        """Receive bytes of the other end."""
        if not self.closed and not self.was_reset:
            self.incoming += data
            self.changed()

    def ended(self) -> None:
        """Receive the end of the stream."""
        self._at_end = True
        self.changed()

    def reset(self) -> None:
        """Receive a reset: bytes that were not read are lost."""
        if not self.was_reset and not self.closed:
            self.was_reset = True
            self._error = errno.ECONNRESET
            self.incoming.clear()
            self.changed()

    def attempt_ended(self, error: int) -> None:
        """End the connection attempt with an error number, or 0."""
        if not self.closed:
            self._attempt = False
            self.connected, self._error = not error, error
            self.changed()

    def accepted(self, address: tuple[str, int]) -> SimulatedSocket:
        """Return the server's end of a new connection, which waits for `accept`."""
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True if a receive or an accept would not block."""
        return bool(self.incoming or self._backlog or self._at_end or self.was_reset or self._no_more_reading)

    def writable(self) -> bool:
        """Return True if a send would not block."""
        channel = self.outgoing
        return bool(self._error or self.was_reset or (channel and channel.in_flight < _CAPACITY_BYTES))

    def poll_events(self) -> int:
        """Return the events of `poll` that hold, asked for or not."""
        events = 0
        if self.readable():
            events |= POLLIN
        if self.writable():
            events |= POLLOUT
        if self._error:
            events |= POLLERR | POLLHUP | POLLIN
        if self._at_end and self._no_more_sending:
            events |= POLLHUP
        return events

    def watch(self, thread: SimulatedThread) -> None:
        """Wake a thread, which parks next, at any change."""
        self._waiters.append((thread, thread.token + 1))

    def _wait(self, end_s: float | None) -> None:
        """Wait for a change; raise `TimeoutError`, or `BlockingIOError` if the socket does not block."""
        if self.timeout_s == 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left_s = None if end_s is None else end_s - self.scheduler.now_s
        if left_s is not None and left_s <= 0:
            raise TimeoutError("timed out")
        assert self.scheduler.current is not None
        self.watch(self.scheduler.current)
        self.scheduler.park(left_s)

    def _end_s(self) -> float | None:
        return None if self.timeout_s is None else self.scheduler.now_s + self.timeout_s

    def _require_open(self) -> None:
        if self.closed:
            raise _error(errno.EBADF)

    # -- options and names --------------------------------------------------------------------

    def setsockopt(self, level: int, option: int, value: Any, *_: Any) -> None:
        """Set an option; only SO_LINGER with no time has an effect: `close` resets the connection."""
        if option == socket.SO_LINGER and level == socket.SOL_SOCKET:
            self._aborts = struct.unpack("ii", value) == (1, 0)

    def getsockopt(self, level: int, option: int, *_: Any) -> int:
        """Return an option: 0, or the pending error for SO_ERROR."""
        if option == socket.SO_ERROR and level == socket.SOL_SOCKET:
            error, self._error = self._error, 0
            return error
        return 0

    def setblocking(self, flag: bool) -> None:
        """Block without limit, or not at all."""
        self.timeout_s = None if flag else 0.0

    def settimeout(self, timeout: float | None) -> None:
        """Set the limit of blocking calls."""
        self.timeout_s = timeout

    def gettimeout(self) -> float | None:
        """Return the limit of blocking calls."""
        return self.timeout_s

    def getblocking(self) -> bool:
        """Return True if calls may block."""
        return self.timeout_s != 0

    def fileno(self) -> int:
        """Return the file descriptor; -1 once closed."""
        return -1 if self.closed else self.number

    def getsockname(self) -> tuple[str, int]:
        """Return the address of this end."""
        return self.address

    def getpeername(self) -> tuple[str, int]:
        """Return the address of the other end."""
        if self.peer is None:
            raise _error(errno.ENOTCONN)
        return self.peer.address

    # -- connections --------------------------------------------------------------------------

    def bind(self, address: tuple[str, int]) -> None:
        """Bind to a port; 0 for any."""
        port = address[1] or self.network.port()
        self.address = (address[0] or LOOPBACK, port)

    def listen(self, backlog: int = 0) -> None:
        """Accept connections at the bound port."""
        if self.address[1] in self.network.listeners:
            raise _error(errno.EADDRINUSE)
        self.listening = True
        self.network.listeners[self.address[1]] = self

    def accept(self) -> tuple[SimulatedSocket, tuple[str, int]]:
        """Return the next connection and its client's address."""
        end_s = self._end_s()
        while not self._backlog:
            if self.closed or not self.listening:
                raise _error(errno.EINVAL)
            self._wait(end_s)
        server = self._backlog.popleft()
        return server, server.getpeername() if server.peer else (LOOPBACK, 0)

    def connect(self, address: tuple[str, int]) -> None:
        """Connect to an address."""
        self._require_open()
        self.address = (LOOPBACK, self.network.port())
        self._attempt = True
        self.network.connect(self, address)
        if self.timeout_s == 0:
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        end_s = self._end_s()
        while self._attempt:
            self._wait(end_s)
        if error := self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise _error(error)

    def connect_ex(self, address: tuple[str, int]) -> int:
        """Connect; return the error number, or 0."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.ETIMEDOUT
        return 0

    def shutdown(self, how: int) -> None:
        """End one or both directions."""
        self._require_open()
        if not self.connected and not self.listening:
            raise _error(errno.ENOTCONN)
        if self.listening:
            self._stop_listening()
        if how != socket.SHUT_WR:
            self._no_more_reading = True
        if how != socket.SHUT_RD and not self._no_more_sending:
            self._no_more_sending = True
            if self.outgoing is not None and not self.was_reset:
                self.network.finish(self.outgoing)
        self.changed()

    def _stop_listening(self) -> None:
        self.listening = False
        self.network.listeners.pop(self.address[1], None)
        while self._backlog:
            server = self._backlog.popleft()
            server._aborts = True
            server.close()

    def close(self) -> None:
        """Close the socket; unread bytes reset the connection, as in Linux. Threads that wait for it go on waiting."""
        if self.closed:
            return
        if self.listening:
            self._stop_listening()
        channel = self.outgoing
        if channel is not None and not self.was_reset:
            if self._aborts or self.incoming:
                self.network.abort(channel)
            elif not self._no_more_sending:
                self.network.finish(channel)
        self.closed = True
        self.process.close_file(self.number)
        if channel is not None:
            self.network.forget(self)

    def detach(self) -> int:
        """Not supported."""
        raise NotImplementedError("detach of a simulated socket")

    def __enter__(self) -> SimulatedSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.closed and not self.process.killed:
            self.close()

    # -- bytes --------------------------------------------------------------------------------

    def sendmsg(self, buffers: Iterable[Any], *_: Any) -> int:
        """Send buffers; return the number of bytes taken."""
        scheduler = self.scheduler
        scheduler.maybe_switch()
        data = b"".join(buffers)
        end_s = self._end_s()
        while True:
            self._require_open()
            if self._error:
                raise _error(self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if self.was_reset or self._no_more_sending:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            if self.outgoing is None:
                raise _error(errno.ENOTCONN)
            free_bytes = _CAPACITY_BYTES - self.outgoing.in_flight
            if free_bytes > 0 or not data:
                break
            self._wait(end_s)
        if len(data) > free_bytes:
            data = data[:free_bytes]
        self.network.send(self.outgoing, data)
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send bytes; return the number of bytes taken."""
        return self.sendmsg([data])

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all bytes."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self.sendmsg([view]) :]

    def recv(self, count: int, flags: int = 0) -> bytes:
        """Receive at most `count` bytes; none at the end of the stream."""
        scheduler = self.scheduler
        scheduler.maybe_switch()
        end_s = self._end_s()
        while not self.incoming:
            self._require_open()
            if self._error:
                raise _error(self.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
            if self._at_end or self.was_reset or self._no_more_reading:
                return b""
            if self.outgoing is None:
                raise _error(errno.ENOTCONN)
            self._wait(end_s)
        if count > 1 and self.network.random.random() < _SHORT_READ_RATE:
            count = self.network.random.randrange(1, count)
        data = bytes(self.incoming[:count])
        del self.incoming[:count]
        return data

    def recv_into(self, buffer: Any, count: int = 0, flags: int = 0) -> int:
        """Receive into a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        data = self.recv(count or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def makefile(self, mode: str = "r", buffering: int | None = None, **_: Any) -> Any:
        """Return a stream on the socket: binary, buffered."""
        raw = _RawStream(self)
        if mode == "rb":
            return io.BufferedReader(raw)
        if mode == "wb":
            return raw if buffering == 0 else io.BufferedWriter(raw)
        return io.BufferedRWPair(raw, raw)


class _RawStream(io.RawIOBase):
    def __init__(self, sock: SimulatedSocket) -> None:
        self._socket = sock

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._socket.recv_into(buffer)

    def write(self, data: Any) -> int:
        return self._socket.send(data)
