"""The modules `socket` and `select` of a simulated process."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from protocol.testing.simulation.host import Host
from protocol.testing.simulation.network import Network
from protocol.testing.simulation.sockets import POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, SimulatedSocket


def socket_module(network: Network, process: Host) -> ModuleType:
    """Return the module `socket` of a process."""
    module = ModuleType("socket")
    vars(module).update({name: value for name, value in vars(socket).items() if not name.startswith("__")})

    class ProcessSocket(SimulatedSocket):
        def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: Any = None) -> None:
            if fileno is not None:
                raise NotImplementedError("a simulated socket of an existing file descriptor")
            super().__init__(network, process)

        def accepted(self, address: tuple[str, int]) -> SimulatedSocket:
            server = ProcessSocket()
            server.address = address
            self._backlog.append(server)
            return server

    def create_server(address: tuple[str, int], **_: Any) -> SimulatedSocket:
        server = ProcessSocket()
        server.bind(address)
        server.listen()
        return server

    def create_connection(address: tuple[str, int], timeout: Any = None, *_: Any, **__: Any) -> SimulatedSocket:
        client = ProcessSocket()
        client.settimeout(timeout if isinstance(timeout, (int, float)) else None)
        client.connect((next(network.resolve(address[0])), address[1]))
        return client

    def socketpair(*_: Any) -> tuple[SimulatedSocket, SimulatedSocket]:
        first, second = ProcessSocket(), ProcessSocket()
        first.connected = True
        network.pair_locally(first, second)
        return first, second

    def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        addresses = list(network.resolve(host))
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port))) for address in addresses]

    vars(module).update(
        socket=ProcessSocket,
        SocketType=ProcessSocket,
        create_server=create_server,
        create_connection=create_connection,
        socketpair=socketpair,
        getaddrinfo=getaddrinfo,
        gethostname=lambda: process.name,
        getfqdn=lambda name="": name or process.name,
    )
    return module


def select_module(network: Network, process: Host) -> ModuleType:
    """Return the module `select` of a process: `poll` and `select`."""
    module = ModuleType("select")
    scheduler = network.scheduler

    class Poll:
        def __init__(self) -> None:
            self._masks: dict[int, int] = {}

        def register(self, file: Any, events: int = POLLIN | POLLOUT) -> None:
            number = file if isinstance(file, int) else file.fileno()
            if number < 0:
                raise ValueError(f"file descriptor cannot be a negative integer ({number})")
            self._masks[number] = events

        modify = register

        def unregister(self, file: Any) -> None:
            del self._masks[file if isinstance(file, int) else file.fileno()]

        def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
            scheduler.maybe_switch()
            end_s = None if timeout is None or timeout < 0 else scheduler.now_s + timeout / 1000
            sockets = [(number, process.files.get(number), mask) for number, mask in self._masks.items()]
            while True:
                events = []
                for number, sock, mask in sockets:
                    if sock is None:
                        events.append((number, POLLNVAL))
                    elif happened := sock.poll_events() & (mask | POLLERR | POLLHUP):
                        events.append((number, happened))
                left_s = None if end_s is None else end_s - scheduler.now_s
                if events or (left_s is not None and left_s <= 0):
                    return events
                thread = scheduler.current
                assert thread is not None
                for _, sock, _ in sockets:
                    if sock is not None:
                        sock.watch(thread)
                scheduler.park(left_s)

    def select_(
        reading: Sequence[Any], writing: Sequence[Any], failing: Sequence[Any] = (), timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poll = Poll()
        for file in reading:
            poll.register(file, POLLIN)
        for file in writing:
            number = file if isinstance(file, int) else file.fileno()
            poll.register(file, poll._masks.get(number, 0) | POLLOUT)
        events = dict(poll.poll(None if timeout is None else timeout * 1000))

        def happened(files: Sequence[Any], mask: int) -> list[Any]:
            return [file for file in files if events.get(file if isinstance(file, int) else file.fileno(), 0) & mask]

        return happened(reading, POLLIN | POLLHUP), happened(writing, POLLOUT), []

    vars(module).update({name: value for name, value in vars(select).items() if name.startswith("POLL")})
    vars(module).update(poll=Poll, select=select_, error=OSError)
    return module
