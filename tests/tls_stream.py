"""A sketch of TLS over a `ByteStream`, to prove that one fits there. Not a feature: nothing in the product uses it.

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
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from protocol.clock import Deadline
from protocol.errors import ConnectionLost
from protocol.net.byte_stream import ByteStream

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
    ) -> None:
        super().__init__(sock, address)
        self._encrypted_in = ssl.MemoryBIO()
        self._encrypted_out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._encrypted_in, self._encrypted_out, server_side=server_side, server_hostname=server_hostname
        )
        self._lock = threading.Lock()  # for all below, too
        self._unsent = memoryview(b"")
        self._accepted = 0  # so many bytes of those being sent are encrypted already
        self._received = memoryview(bytearray(_MOST_RECEIVED_BYTES))

    def handshake(self, deadline: Deadline) -> None:
        """Raises `RequestTimedOut` or `ConnectionLost`, whose cause says what is wrong with a certificate."""
        while True:
            event = select.POLLOUT
            try:
                with self._lock:
                    done = self._shake_hands()
                    self._flush()
                    if done:
                        return
                    event = select.POLLIN
                    self._take_encrypted()
            except (BlockingIOError, InterruptedError):
                self._wait(event, deadline, "of the TLS handshake did not come")
            except OSError as error:
                raise ConnectionLost(f"{self.address}: the TLS handshake failed ({error})") from error

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
                    return self._tls.read(len(view), view)  # type: ignore[arg-type]
                except ssl.SSLWantReadError:
                    # To read may also mean to write, such as the answer to a change of keys.
                    with contextlib.suppress(BlockingIOError):
                        self._flush()
                    self._take_encrypted()
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0

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


def make_certificate(folder: Path) -> Path:
    """A key and a certificate for "localhost" in one PEM file, signed by itself."""
    file = folder / "localhost.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", *options.split(), *names, "-keyout", str(file), "-out", str(folder / "certificate.pem")],
        check=True,
        capture_output=True,
        timeout=60,
    )
    file.write_text(file.read_text() + (folder / "certificate.pem").read_text())
    return file


def server_context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def client_context(certificate: Path) -> ssl.SSLContext:
    """Trusts that one certificate, and checks the name."""
    return ssl.create_default_context(cafile=str(certificate))
