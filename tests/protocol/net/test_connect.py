"""Opening a connection: names with several addresses, and a resolver that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.base.clock import Deadline
from protocol.errors import ConnectFailed
from protocol.net.connect import connect
from protocol.testing.fake_kafka.listener import kept_port
from protocol.testing.fake_kafka.server import FakeKafka

NUMERIC = socket.getaddrinfo


def resolves_to(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Resolve all names to these addresses, in this order."""

    def getaddrinfo(host: str, port: int, *_: Any, flags: int = 0, **__: Any) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            return list(NUMERIC(host, port, type=socket.SOCK_STREAM, flags=flags))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """Yield an address that answers no connection attempt, because its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()
        waiting = []
        while True:
            waiting.append(socket.socket())
            waiting[-1].settimeout(0.3)
            try:
                waiting[-1].connect(address)
            except TimeoutError:
                break
        yield address
        for sock in waiting:
            sock.close()


def test_connect_uses_the_next_address_if_the_first_is_a_black_hole(
    monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    with FakeKafka() as kafka:
        resolves_to(monkeypatch, black_hole, kafka.addresses[1])
        started_s = time.monotonic()
        connect("broker.example", 9092, Deadline.after_ms(60_000)).close()
        assert time.monotonic() - started_s < 15


def test_failed_addresses_are_named_with_their_errors(
    monkeypatch: pytest.MonkeyPatch, black_hole: tuple[str, int]
) -> None:
    monkeypatch.setattr("protocol.net.connect.BETWEEN_ATTEMPTS_MS", 1)
    with kept_port() as closed_port:
        resolves_to(monkeypatch, black_hole, closed_port.getsockname())
        started_s = time.monotonic()
        with pytest.raises(
            ConnectFailed, match=r"broker\.example:9092: cannot connect \(.*refused; .*no answer in time"
        ):
            connect("broker.example", 9092, Deadline.after_ms(1_500))
    assert 1.4 < time.monotonic() - started_s < 15


def test_connect_after_a_failure_starts_with_the_next_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeKafka(2) as kafka:
        resolves_to(monkeypatch, *kafka.addresses.values())
        for first, broker_id in enumerate([1, 2, 1]):
            with connect("broker.example", 9092, Deadline.after_ms(5_000), first=first) as sock:
                assert sock.getpeername() == kafka.addresses[broker_id]


def test_hanging_resolver_is_called_once_and_awaited_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    requested: list[str] = []

    def getaddrinfo(host: str, port: int, *_: Any, flags: int = 0, **__: Any) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not numeric")
        requested.append(host)
        release.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    with FakeKafka() as kafka:
        port = kafka.addresses[1][1]
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        started_s = time.monotonic()
        for _ in range(3):
            with pytest.raises(ConnectFailed, match=r"hangs\.example:\d+: the host name was not resolved in time"):
                connect("hangs.example", port, Deadline.after_ms(100))
        assert time.monotonic() - started_s < 15
        assert requested == ["hangs.example"]
        assert [thread.name for thread in threading.enumerate()].count("resolve-hangs.example") == 1
        release.set()
        connect("hangs.example", port, Deadline.after_ms(5_000)).close()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "nul\0l", ""])
def test_invalid_host_name_is_a_connect_failure(host: str) -> None:
    with pytest.raises(ConnectFailed, match="9092: the host name cannot be resolved"):
        connect(host, 9092, Deadline.after_ms(5_000))


@pytest.mark.parametrize("port", [-1, 99_999, 2**40])
def test_invalid_port_is_a_connect_failure(port: int) -> None:
    with pytest.raises(ConnectFailed):
        connect("127.0.0.1", port, Deadline.after_ms(500))
