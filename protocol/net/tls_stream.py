"""A `ByteStream` that encrypts.

OpenSSL talks to two buffers in memory, never to the socket. So the one lock that its object needs (OpenSSL allows no
two threads in it at once) is only held for as long as bytes are encrypted, decrypted, or handed to a socket that does
not block; whoever has to wait, waits without it. An `ssl.SSLSocket` would not do: one that is shut down by another
thread forgets its TLS, and hands out what is left in the socket as if it was plain text.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.clock import Deadline
from protocol.errors import KafkaError
from protocol.net.byte_stream import ByteStream
from protocol.net.tls_refusal import is_about_our_certificate, refused
from protocol.security.tls_config import DEFAULT_TLS, TLSConfig

# Of what is sent, so much is encrypted in one go: it is held twice until it is out.
_MOST_ENCRYPTED_BYTES = 262_144
_MOST_RECEIVED_BYTES = 262_144


class TLSStream(ByteStream):
    """TLS on a connected socket; `handshake` comes first."""

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
        self._config = config  # what `context` was made from, for messages
        self._shaken = False
        self._encrypted_in = ssl.MemoryBIO()
        self._encrypted_out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._encrypted_in, self._encrypted_out, server_side=server_side, server_hostname=server_hostname
        )
        self._lock = threading.Lock()  # for all below, too
        self._unsent = memoryview(b"")
        self._accepted = 0  # so many bytes of those being sent are encrypted already
        # Not a bytearray: that would take all of its memory at once.
        self._received = np.empty(_MOST_RECEIVED_BYTES, np.uint8).data

    def handshake(self, deadline: Deadline) -> None:
        """Raises `RequestTimedOut`, `ConnectionLost`, or `TLSFailed`, whose cause is an `ssl.SSLError`."""
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
                raise self._broken("shaking hands for TLS", error) from error

    def peer_names(self) -> list[str]:
        """Whose certificate the peer has: its host names and addresses, or else its common name. After `handshake`."""
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
            # The alert that tells the peer why.
            with contextlib.suppress(OSError):
                self._flush()
            raise
        return True

    def pending(self) -> int:
        with self._lock:
            # What is not decrypted yet counts by its size: there may be a whole record in it.
            return self._tls.pending() + self._encrypted_in.pending

    def close(self) -> None:
        # Tells the peer that this end is no accident, if it can be told at once.
        with self._lock, contextlib.suppress(OSError):
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        super().close()

    def _send_some(self, buffers: Sequence[memoryview]) -> int:
        with self._lock:
            self._flush()
            if not self._accepted:
                self._accepted = self._tls.write(_first_bytes(buffers, _MOST_ENCRYPTED_BYTES))
                self._flush()
            # Not before all of it is out.
            accepted, self._accepted = self._accepted, 0
            return accepted

    def _receive_some(self, view: memoryview) -> int:
        with self._lock:
            while True:
                try:
                    return self._tls.read(len(view), view)  # type: ignore[return-value]
                except ssl.SSLWantReadError:
                    # To read may also mean to write, such as the answer to a change of keys.
                    with contextlib.suppress(BlockingIOError):
                        self._flush()
                    self._take_encrypted()
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0

    def _broken(self, doing: str, error: OSError) -> KafkaError:
        # With TLS 1.3 a broker looks at our certificate when the handshake is over on our side.
        lost = not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError)
        if lost or (self._shaken and not is_about_our_certificate(error)):
            return super()._broken(doing, error)
        return refused(error, self.address, self._config)

    def _take_encrypted(self) -> None:
        count = self._socket.recv_into(self._received)
        if count:
            self._encrypted_in.write(self._received[:count])
        else:
            self._encrypted_in.write_eof()

    def _flush(self) -> None:
        """Raises `BlockingIOError` while something is left that the socket does not take."""
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._encrypted_out.read())
                if not self._unsent:
                    return
            self._unsent = self._unsent[self._socket.send(self._unsent) :]


def _named(kind: str, name: str) -> str:
    """A common slip is an address among the host names, where nobody looks for it."""
    slip = kind == "DNS" and (":" in name or name.replace(".", "").isdigit())
    return f"{name} (as a host name, not as an address)" if slip else name


def _first_bytes(buffers: Sequence[memoryview], most: int) -> bytes | memoryview:
    """As many bytes of these buffers as make one call worth while, and no more than `most`."""
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
