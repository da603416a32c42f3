"""Resolve host names with a deadline: the system's resolver has none and cannot be interrupted.

Used by `connect`. Each pending name has one thread. Concurrent calls for the same name share its result, also after an
earlier call has timed out. Nothing is cached.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from protocol.base.clock import Deadline
from protocol.base.condition import Event, Lock
from protocol.errors import ConnectFailed

# An entry of `socket.getaddrinfo`: family, kind, protocol, canonical name, address.
Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


class _Lookup:
    """One pending resolution."""

    def __init__(self) -> None:
        self.answered = Event()
        self.addresses: Sequence[Address] = ()
        self.error: Exception | None = None


_lock = Lock()
_pending: dict[tuple[str, int], _Lookup] = {}


def resolve(host: str, port: int, deadline: Deadline) -> Sequence[Address]:
    """Return the addresses of a host name, at least one, in the system's order. Raises `ConnectFailed`."""
    try:
        try:
            # A numeric address needs no resolver thread.
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            lookup = _pending_lookup(host, port)
    except (ValueError, OverflowError, RuntimeError) as error:
        # The name cannot be encoded, the port is invalid, or no thread can be started.
        raise _failed(host, port, f"cannot be resolved ({error})") from error
    if not lookup.answered.wait(deadline.remaining_s()):
        raise _failed(host, port, "was not resolved in time")
    if lookup.error is not None:
        raise _failed(host, port, f"cannot be resolved ({lookup.error})") from lookup.error
    return lookup.addresses


def _pending_lookup(host: str, port: int) -> _Lookup:
    with _lock:
        lookup = _pending.get((host, port))
        if lookup is None:
            lookup = _Lookup()
            # The thread cannot finish before it is registered, since that needs the lock.
            threading.Thread(target=_run, args=(lookup, host, port), name=f"resolve-{host}", daemon=True).start()
            _pending[host, port] = lookup
        return lookup


def _run(lookup: _Lookup, host: str, port: int) -> None:
    try:
        lookup.addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as error:  # raised in the waiting threads
        lookup.error = error
    finally:
        with _lock:
            if _pending.get((host, port)) is lookup:
                del _pending[host, port]
        lookup.answered.set()


def _failed(host: str, port: int, why: str) -> ConnectFailed:
    return ConnectFailed(f"{host}:{port}: the host name {why}", host=host, port=port)


def _forget_after_fork() -> None:
    """Reset the state: a child has none of its parent's threads, and the lock may have been held."""
    global _lock
    _lock = Lock()
    _pending.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
