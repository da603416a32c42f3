"""A `ByteStream` with TLS: opened by `connect_tls`, which diagnoses the peer if the handshake fails.

OpenSSL reads and writes memory buffers, never the socket. Its object needs a lock, which is held only while bytes are
encrypted, decrypted, or passed to the non-blocking socket; waiting happens without the lock. `ssl.SSLSocket` is unsafe
here: after a shutdown by another thread it returns the remaining socket data as if it were plain text.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from protocol.base.clock import Deadline
from protocol.base.condition import Lock
from protocol.errors import ConnectionLost, KafkaError
from protocol.net.byte_stream import ByteStream, empty_buffer
from protocol.net.connection import Connection
from protocol.net.tls_context import TLSContext, new_context
from protocol.net.tls_refusal import (
    NO_TLS_THERE,
    is_about_our_certificate,
    is_about_the_host,
    refused,
    tls_failed,
    wrong_host,
)
from protocol.security.tls_config import DEFAULT_TLS, TLSConfig

# Limit of the bytes encrypted at once: they are held twice until sent.
_MAX_ENCRYPTED_BYTES = 262_144
_MAX_RECEIVED_BYTES = 262_144


class TLSStream(ByteStream):
    """TLS on a connected socket; call `handshake` first.

    `address`: name of the peer in messages.
    `server_hostname`: name to verify and to send (SNI).
    `config`: source of `context`, for messages.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        server_side: bool = False,
        config: TLSConfig = DEFAULT_TLS,
    ) -> None:
        super().__init__(sock, address)
        self._config = config
        self._shaken = False
        self._encrypted_in = ssl.MemoryBIO()
        self._encrypted_out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._encrypted_in, self._encrypted_out, server_side=server_side, server_hostname=server_hostname
        )
        self._lock = Lock()  # also for the fields below
        self._unsent = memoryview(b"")
        self._accepted = 0  # number of bytes of the current send that are already encrypted
        self._received = empty_buffer(_MAX_RECEIVED_BYTES)

    def handshake(self, deadline: Deadline) -> None:
        """Perform the handshake. Raises `RequestTimedOut`, `ConnectionLost`, or `TLSFailed` from an `ssl.SSLError`."""
        while True:
            event = select.POLLOUT
            try:
                with self._lock:
                    done = self._shake_hands()
                    self._flush()
                    if done:
                        self._shaken = True
                        return
                    event = select.POLLIN
                    self._take_encrypted()
            except (BlockingIOError, InterruptedError):
                self._wait(event, deadline, "of the TLS handshake did not come")
            except OSError as error:
                raise self._broken("performing the TLS handshake", error) from error

    def peer_names(self) -> list[str]:
        """Return the host names and addresses in the peer's certificate, or else its common name."""
        certificate: Any = self._tls.getpeercert() or {}
        names = [_named(*pair) for pair in certificate.get("subjectAltName", ())]
        subject = (pair for row in certificate.get("subject", ()) for pair in row)
        return names or [str(value) for key, value in subject if key == "commonName"]

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError:
            # Send the alert that tells the peer the reason.
            with contextlib.suppress(OSError):
                self._flush()
            raise
        return True

    def close(self) -> None:
        """Close the socket, after `close_notify` if it can be sent without blocking."""
        with self._lock, contextlib.suppress(OSError):
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        super().close()

    def _send_some(self, buffers: Sequence[memoryview]) -> int:
        with self._lock:
            self._flush()
            if not self._accepted:
                self._accepted = self._tls.write(_first_bytes(buffers, _MAX_ENCRYPTED_BYTES))
                self._flush()
            # Report the bytes only after all of them were sent.
            accepted, self._accepted = self._accepted, 0
            return accepted

    def _receive_some(self, view: memoryview) -> int:
        with self._lock:
            while True:
                try:
                    return self._tls.read(len(view), view)  # type: ignore[return-value]
                except ssl.SSLWantReadError:
                    # Reading may require writing, such as the reply to a key update.
                    with contextlib.suppress(BlockingIOError):
                        self._flush()
                    self._take_encrypted()
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0

    def _broken(self, doing: str, error: OSError) -> KafkaError:
        # With TLS 1.3, a broker may refuse the client certificate after the client's handshake has ended.
        lost = not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError)
        if lost or (self._shaken and not is_about_our_certificate(error)):
            return super()._broken(doing, error)
        return refused(error, self.address, self._config)

    def _take_encrypted(self) -> None:
        count = self.socket.recv_into(self._received)
        if count:
            self._encrypted_in.write(self._received[:count])
        else:
            self._encrypted_in.write_eof()

    def _flush(self) -> None:
        """Write pending bytes. Raises `BlockingIOError` if the socket does not accept all of them."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._encrypted_out.read())
                if not self._unsent:
                    return
            self._unsent = self._unsent[self.socket.send(self._unsent) :]


def _named(kind: str, name: str) -> str:
    """Format a name of a certificate, and mark addresses entered as host names: clients do not match those."""
    slip = kind == "DNS" and (":" in name or name.replace(".", "").isdigit())
    return f"{name} (as a host name, not as an address)" if slip else name


def _first_bytes(buffers: Sequence[memoryview], most: int) -> bytes | memoryview:
    """Join enough bytes of the buffers to make an encryption call worthwhile, at most `most`."""
    if len(buffers) == 1 or len(buffers[0]) >= most:
        return buffers[0][:most]
    taken: list[memoryview] = []
    room = most
    for buffer in buffers:
        taken.append(buffer[:room])
        room -= len(taken[-1])
        if not room:
            break
    return b"".join(taken)


# Limit of the second connection that looks for the reason of a failure.
_LOOK_MS = 2_000
_MAX_REPLY_BYTES = 1_048_576


def connect_tls(
    open_socket: Callable[[], socket.socket], host: str, port: int, context: TLSContext, deadline: Deadline
) -> TLSStream:
    """Connect to a broker and perform the TLS handshake.

    `open_socket`: opens a TCP connection; called again to diagnose a failed handshake.
    Raises `TLSFailed`: the handshake failed. `ConfigurationError`: a store cannot be read. `TransportError`: the
    connection failed.
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
    connection = Connection(stream, "", clock=deadline.clock, max_response_bytes=_MAX_REPLY_BYTES)
    try:
        connection.handshake(deadline.at_most_ms(_LOOK_MS))
    except KafkaError:
        return False
    finally:
        connection.close()
    return True
