"""Open a TLS connection, and diagnose the peer if the handshake fails. Used by `pool`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace

from protocol.clock import Deadline
from protocol.errors import ConnectionLost, KafkaError
from protocol.net.byte_stream import ByteStream
from protocol.net.connection import Connection
from protocol.net.tls_context import TLSContext, new_context
from protocol.net.tls_refusal import NO_TLS_THERE, is_about_the_host, tls_failed, wrong_host
from protocol.net.tls_stream import TLSStream
from protocol.security.tls_config import TLSConfig

# Limit of the second connection that looks for the reason of a failure.
_LOOK_MS = 2_000
_MOST_REPLY_BYTES = 1_048_576


def connect_tls(
    open_socket: Callable[[], socket.socket], host: str, port: int, context: TLSContext, deadline: Deadline
) -> TLSStream:
    """Connect to a broker and perform the TLS handshake.

    Parameters
    ----------
    open_socket : callable
        Opens a TCP connection; called again to diagnose a failed handshake.
    host : str
    port : int
    context : TLSContext
    deadline : Deadline

    Returns
    -------
    TLSStream

    Raises
    ------
    TLSFailed
        The handshake failed.
    ConfigurationError
        A store cannot be read.
    TransportError
        The connection failed.
    """
    address = f"{host}:{port}"
    name = host.rstrip(".")
    stream = TLSStream(open_socket(), address, context.current(), server_hostname=name, config=context.config)
    try:
        stream.handshake(deadline)
    except BaseException as error:
        stream.close()
        cause = error.__cause__
        if is_about_the_host(cause):
            names = _names(open_socket(), address, context.config, name, deadline)
            raise wrong_host(address, host, names) from cause
        if isinstance(error, ConnectionLost) and _speaks_plain_text(open_socket(), address, deadline):
            raise tls_failed(address, NO_TLS_THERE) from error
        raise
    return stream


def _names(sock: socket.socket, address: str, config: TLSConfig, name: str, deadline: Deadline) -> list[str]:
    """Return the names in the broker's certificate, by an unverified handshake: OpenSSL hides refused certificates."""
    unchecked = replace(config, endpoint_identification_algorithm="")
    stream = TLSStream(sock, address, new_context(unchecked), server_hostname=name, config=unchecked)
    with contextlib.closing(stream), contextlib.suppress(KafkaError):
        stream.handshake(deadline.at_most_ms(_LOOK_MS))
        return stream.peer_names()
    return []


def _speaks_plain_text(sock: socket.socket, address: str, deadline: Deadline) -> bool:
    """Return True if a peer that closes TLS handshakes replies to a plain-text request (ApiVersions, not sensitive)."""
    stream = ByteStream(sock, address)
    connection = Connection(stream, "", clock=deadline.clock, max_response_bytes=_MOST_REPLY_BYTES)
    try:
        connection.handshake(deadline.at_most_ms(_LOOK_MS))
    except KafkaError:
        return False
    finally:
        connection.close()
    return True
