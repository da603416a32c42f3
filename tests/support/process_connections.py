"""Connections of this process to a server of a test."""

from __future__ import annotations

from collections.abc import Callable

import psutil


def connections_to(address: str) -> Callable[[], int]:
    """Return a function that counts the connections to `address` that were made since this call.

    A connection of an earlier test may come from a port with the number of the server's port.
    """
    port = int(address.rpartition(":")[2])

    def current() -> set[tuple[int, object]]:
        connections = psutil.Process().net_connections()
        return {(connection.fd, connection.laddr) for connection in connections if connection.raddr[1:] == (port,)}

    before = current()
    return lambda: len(current() - before)
