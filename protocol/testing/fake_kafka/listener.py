"""The sockets of one broker: accepts connections, and passes decoded requests to `answer`."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import BinaryIO

from protocol.broker_errors import ErrorCode
from protocol.errors import ProtocolError, UnsupportedVersion
from protocol.testing.fake_kafka.requests import Body
from protocol.wire import frame
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.schema import Api

Handler = Callable[[Body, int], "Body | bytes | None"]
"""Returns the reply to a request body of a version: a body, raw bytes to send unchanged, `CUT`, or None for silence."""

# Kafka's default of socket.request.max.bytes. A TLS handshake at a plain listener begins with a larger size.
_MAX_REQUEST_BYTES = 104_857_600

CUT = b""
"""In place of a reply: the connection is reset."""


def kept_port(port: int = 0) -> socket.socket:
    """Refuse connections at a reserved port until closed; `getsockname()` has the address."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


class Listener(ABC):
    """Listens on a loopback port until closed; speaks the server's side of `protocol.wire`.

    `host`, `port`: address to listen on. Port 0: a free port.
    `tls`: the context of a TLS server.
    `record_requests`: keep all requests in `requests`, and their client ids in `client_ids`.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, record_requests: bool) -> None:
        self.record_requests = record_requests
        self.requests: list[tuple[str, int, Body]] = []
        self.client_ids: list[str | None] = []
        self.connections: list[socket.socket] = []
        self._tls = tls
        self._server = socket.create_server((host, port))
        self.host, self.port = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    @abstractmethod
    def answer(self, api: Api, version: int, client_id: str | None, body: Body) -> Body | bytes | None:
        """Return the reply to a request, in the form of `Handler`; runs in the thread of the connection."""

    def close(self) -> None:
        """Stop listening, and close all connections. Idempotent."""
        if self._server.fileno() < 0:
            return
        # shutdown wakes the thread in accept(), which would otherwise take one more connection.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close all open connections."""
        while self.connections:
            connection = self.connections.pop()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                connection = self._secured(connection, self._tls)
            with connection.makefile("rb") as stream:
                while len(size := _read(stream, 4)) == 4 and int.from_bytes(size, "big") <= _MAX_REQUEST_BYTES:
                    request = _read(stream, int.from_bytes(size, "big"))
                    if len(request) < int.from_bytes(size, "big"):
                        return  # connection closed within a frame
                    self._answer(connection, request)
        except OSError:
            pass
        finally:
            with contextlib.suppress(ValueError):  # `cut` has removed it
                self.connections.remove(connection)
            connection.close()

    def _secured(self, connection: socket.socket, tls: ssl.SSLContext) -> socket.socket:
        """Run the TLS handshake of a server; its failure closes the connection."""
        secured = tls.wrap_socket(connection, server_side=True)
        self.connections.append(secured)
        with contextlib.suppress(ValueError):
            self.connections.remove(connection)
        return secured

    def _answer(self, connection: socket.socket, request: bytes) -> None:
        try:
            api, version, correlation_id, client_id, body = frame.decode_request(memoryview(request), exact=False)
        except UnsupportedVersion as error:
            _refuse_version(connection, error)
            return
        except ProtocolError:
            _reset(connection)
            return
        if self.record_requests:
            self.client_ids.append(client_id)
            self.requests.append((api.name, version, body))
        reply = self.answer(api, version, client_id, body)
        if reply is CUT:
            _reset(connection)
        elif isinstance(reply, bytes):
            _send(connection, reply)
        elif reply is not None:
            if api is API_VERSIONS and reply.get("error_code") == ErrorCode.UNSUPPORTED_VERSION:
                version = 0  # so that a client of any version can read it
            _send(connection, b"".join(frame.encode_response(api, version, correlation_id, reply)))


def _read(stream: BinaryIO, count: int) -> bytes:
    try:
        return stream.read(count)
    except ValueError:  # another thread has closed a TLS connection
        return b""


def _send(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ValueError):  # another thread has closed a TLS connection
        connection.sendall(data)


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _refuse_version(connection: socket.socket, error: UnsupportedVersion) -> None:
    """Reply to a newer ApiVersions as brokers do, with error 35 in version 0; close the connection otherwise."""
    if error.context["api_key"] != API_VERSIONS.key:
        _reset(connection)
        return
    row = {"api_key": API_VERSIONS.key, "min_version": API_VERSIONS.first, "max_version": API_VERSIONS.last}
    body = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [row]}
    _send(connection, b"".join(frame.encode_response(API_VERSIONS, 0, error.context["correlation_id"], body)))
