"""Servers with broken TLS, or none, and a TLS client: refused in time, and with little work."""

from __future__ import annotations

import functools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509

from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import ConnectionLost, KafkaError, RequestTimedOut, TLSFailed
from protocol.net.tls_context import TLSContext
from protocol.net.tls_stream import TLSStream, connect_tls
from spark_kafka_source.local_kafka import certificates
from tests.protocol.net.test_byte_stream import after, received
from tests.support.tls_ends import Ends, make_ends

Talk = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Ends:
    return make_ends(tmp_path_factory.mktemp("certificates"))


@contextmanager
def server(talk: Talk) -> Iterator[tuple[int, list[float]]]:
    """Yield the port and the times of connections. `talk` gets the client's socket, which is closed afterwards."""
    came: list[float] = []

    def accept() -> None:
        while True:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            came.append(time.monotonic())
            threading.Thread(target=serve, args=(sock,), daemon=True).start()

    def serve(sock: socket.socket) -> None:
        with closing(sock), suppress(OSError, KafkaError):
            talk(sock)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1], came
        # Otherwise `accept` would continue to wait.
        listening.shutdown(socket.SHUT_RDWR)


def says(data: bytes) -> Talk:
    def talk(sock: socket.socket) -> None:
        sock.recv(1)
        sock.sendall(data)
        while sock.recv(65_536):
            pass

    return talk


def floods(data: bytes) -> Talk:
    def talk(sock: socket.socket) -> None:
        while True:
            sock.sendall(data * 1_000)

    return talk


def drips(sock: socket.socket) -> None:
    """Send the start of a message announced as long, slowly."""
    sock.sendall(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc\x03\x03")
    while True:
        time.sleep(0.05)
        sock.sendall(b"\x00")


ALERT, CHANGE_CIPHER = b"\x15\x03\x03\x00\x02\x02", b"\x14\x03\x03\x00\x01\x01"
HOSTILE: dict[str, tuple[Talk, type[KafkaError], str]] = {
    "handshake failure": (says(ALERT + b"\x28"), TLSFailed, "no cipher suite in common"),
    "internal error": (says(ALERT + b"\x50"), TLSFailed, "the TLS handshake failed"),
    "protocol version": (says(ALERT + b"\x46"), TLSFailed, "does not support TLSv1.2 and TLSv1.3"),
    "HTTP": (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), TLSFailed, "did not respond with TLS"),
    "garbage": (
        says(random.Random(5).randbytes(65_536)),
        TLSFailed,
        "did not respond with TLS|the TLS handshake failed",
    ),
    "garbage in a record": (says(b"\x16\x03\x03\x40\x00" + b"\x63" * 16_384), TLSFailed, "the TLS handshake failed"),
    "a flood of garbage": (floods(b"\x00"), TLSFailed, "did not respond with TLS"),
    "a flood of warnings": (floods(b"\x15\x03\x03\x00\x02\x01\x70"), TLSFailed, "the TLS handshake failed"),
    "a flood of nothing": (floods(CHANGE_CIPHER), TLSFailed, "the TLS handshake failed"),
    "silence": (says(b""), RequestTimedOut, "of the TLS handshake did not come"),
    "drops": (drips, RequestTimedOut, "of the TLS handshake did not come"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_hostile_server_is_refused(ends: Ends, how: str) -> None:
    talk, kind, words = HOSTILE[how]
    setup_ms = 5_000 if kind is TLSFailed else 1_000
    with server(talk) as (port, came):
        properties = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "SSL",
            "ssl.truststore.location": ends.config.truststore_location,
            "socket.connection.setup.timeout.ms": setup_ms,
            "default.api.timeout.ms": setup_ms + 500,
        }
        began_s, cpu_s = time.monotonic(), time.thread_time()
        with Client(parse_client(properties)) as client, pytest.raises(KafkaError, match=words) as raised:
            client.metadata([])
        assert time.thread_time() - cpu_s < 1
        assert time.monotonic() - began_s < 15
        if kind is TLSFailed:
            assert isinstance(raised.value, TLSFailed)
            assert len(came) <= 3


def test_ip_address_among_dns_names_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The IP address is a DNS name of the certificate: "not for 127.0.0.1, but for 127.0.0.1" would not help."""
    monkeypatch.setattr(certificates, "_host", x509.DNSName)
    ends = make_ends(tmp_path)

    def talk(sock: socket.socket) -> None:
        TLSStream(sock, "us", ends.server_context(), server_side=True).handshake(after(10_000))

    with server(talk) as (port, _):
        open_socket = functools.partial(socket.create_connection, ("127.0.0.1", port))
        with pytest.raises(TLSFailed, match=r"but for localhost, 127.0.0.1 \(as a host name, not as an address\)\."):
            connect_tls(open_socket, "127.0.0.1", port, TLSContext(ends.config), after(10_000))


@contextmanager
def established(ends: Ends, talk: Callable[[socket.socket, TLSStream], None]) -> Iterator[TLSStream]:
    """Yield our end of a connection after its handshake; the peer continues with `talk`."""

    def serve(sock: socket.socket) -> None:
        with closing(TLSStream(sock, "us", ends.server_context(), server_side=True)) as stream:
            stream.handshake(after(10_000))
            # As ApiVersions does: a server that speaks TLS 1.3 sends session tickets before its first bytes.
            stream.send([b"hello"], after(10_000))
            talk(sock, stream)

    with server(serve) as (port, _):
        sock = socket.create_connection(("127.0.0.1", port))
        with closing(
            TLSStream(sock, "peer", ends.client_context(), server_hostname="localhost", config=ends.config)
        ) as ours:
            ours.handshake(after(10_000))
            assert received(ours, 5) == b"hello"
            yield ours


@pytest.mark.parametrize("data", [ALERT + b"\x50", b"\x17\x03\x03\x00\x20" + bytes(32), b"plain text"])
def test_broken_record_after_the_handshake_is_a_lost_connection(ends: Ends, data: bytes) -> None:
    def talk(sock: socket.socket, stream: TLSStream) -> None:
        sock.setblocking(True)
        sock.sendall(data)
        sock.recv(1)

    with established(ends, talk) as ours, pytest.raises(ConnectionLost, match="peer: the connection broke while rec"):
        received(ours, 1)
