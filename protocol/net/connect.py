"""Open a TCP connection: try all addresses of a host name, each shortly after the previous one.

Used by `pool`, which owns the socket afterwards.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from protocol.base.clock import Deadline
from protocol.base.interrupts import interruptible
from protocol.base.listing import listed
from protocol.errors import ConnectFailed
from protocol.net.resolver import Address, resolve

# The wait for one address before the next is tried in parallel (recommended by RFC 8305).
BETWEEN_ATTEMPTS_MS = 250


def connect(
    host: str,
    port: int,
    deadline: Deadline,
    *,
    send_buffer_bytes: int = -1,
    receive_buffer_bytes: int = -1,
    first: int = 0,
) -> socket.socket:
    """Connect to the first address of a host name that accepts.

    `send_buffer_bytes`, `receive_buffer_bytes`: -1: the system's size.
    `first`: index of the address to begin with, modulo their number; addresses keep the system's order.
    The socket is connected and non-blocking.
    Raises `ConnectFailed`: no address accepted before the deadline; the message lists each with its failure.
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
        why = listed(attempts.failures, separator="; ")
        raise ConnectFailed(f"{host}:{port}: cannot connect ({why})", host=host, port=port)
    return sock


class _Attempts:
    """Connection attempts to several addresses, each started a moment after the previous (RFC 8305, Happy Eyeballs)."""

    def __init__(self, addresses: Sequence[Address], prepare: Callable[[socket.socket], None]) -> None:
        self.failures: list[str] = []
        self._waiting = deque(addresses)
        self._prepare = prepare
        self._trying: dict[int, tuple[socket.socket, str]] = {}
        self._poll = select.poll()

    def first_to_connect(self, deadline: Deadline) -> socket.socket | None:
        """Return a connected non-blocking socket, or None if all attempts failed or the deadline passed."""
        next_begins = deadline
        try:
            while self._waiting or self._trying:
                if self._waiting and (not self._trying or next_begins.passed):
                    self._begin(*self._waiting.popleft())
                    next_begins = Deadline.after_ms(BETWEEN_ATTEMPTS_MS, deadline.clock)
                until = next_begins if self._waiting and next_begins.at_s < deadline.at_s else deadline
                if (connected := self._wait(until)) is not None:
                    return connected
                if deadline.passed:
                    break
            self.failures += [f"{name}: no answer in time" for _, name in self._trying.values()]
            self.failures += [f"{address[0]}: not tried, the deadline had passed" for *_, address in self._waiting]
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
        for number, _ in interruptible(self._poll.poll, until.remaining_s() * 1000):
            sock, name = self._trying.pop(number)
            self._poll.unregister(number)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code == 0:
                return sock
            sock.close()
            self.failures.append(f"{name}: {OSError(code, os.strerror(code))}")
        return None
