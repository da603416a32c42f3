"""A broker with scripted replies: a loopback server that answers each API with the replies of a test.

It speaks the real wire format through `protocol.wire` (its server side), or sends raw bytes for hostile replies.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from protocol.broker_errors import ErrorCode
from protocol.errors import ProtocolError, UnsupportedVersion
from protocol.wire import frame
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api

Handler = Callable[[dict[str, Any], int], "dict[str, Any] | bytes | None"]

CUT = b""
"""In place of a reply: the connection is reset."""


def kept_port(port: int = 0) -> socket.socket:
    """Refuse connections at a reserved port until closed; `getsockname()` has the address."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", port))
    return kept


class FakeBroker:
    """Answers on a free loopback port until closed.

    `handlers[api]` gets (body, version) and returns a body, raw bytes to send as they are, `CUT`, or None for silence.
    `greeting`: bytes sent in place of any reply (a peer that is no Kafka broker). `tls`: the context of a TLS server.
    `record_requests`: keep all in `requests`, and their client ids in `client_ids`.
    """

    def __init__(
        self,
        handlers: dict[Api, Handler] | None = None,
        *,
        greeting: bytes | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        record_requests: bool = True,
    ) -> None:
        self.record_requests = record_requests
        self.handlers = {api.key: handler for api, handler in (handlers or {}).items()}
        self.greeting = greeting
        self.requests: list[tuple[str, int, dict[str, Any]]] = []
        self.client_ids: list[str | None] = []
        self.connections: list[socket.socket] = []
        self._tls = tls
        self._server = socket.create_server((host, port))
        self.host, self.port = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
                while len(size := _read(stream, 4)) == 4:
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
        if self.greeting is not None:
            _send(connection, self.greeting)
            return
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
            _send(connection, b"".join(frame.encode_response(api, version, correlation_id, reply)))

    def answer(
        self, api: Api, version: int, client_id: str | None, body: dict[str, Any]
    ) -> dict[str, Any] | bytes | None:
        """Return the reply to a request; a subclass may override it."""
        handler = self.handlers.get(api.key, _api_versions if api is API_VERSIONS else None)
        return handler(body, version) if handler else None


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


def _api_versions(body: dict[str, Any], version: int) -> dict[str, Any]:
    rows = [{"api_key": api.key, "min_version": api.first, "max_version": api.last} for api in API_BY_KEY.values()]
    return {"error_code": 0, "api_keys": rows}
