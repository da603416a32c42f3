"""One HTTP request and its response, within a deadline: for token endpoints and schema registries.

Redirects are not followed. Messages contain no sent data.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress

from protocol.base.clock import Deadline
from protocol.base.condition import Event
from protocol.base.interrupts import interruptible
from protocol.errors import ConfigurationError, ConnectFailed
from protocol.net.connect import connect
from protocol.net.tls_refusal import NO_TLS
from protocol.settings.property_kinds import URL_PORTS

_MAX_BYTES = 1 << 20

# Status codes that another attempt may resolve.
TRANSIENT_STATUS = frozenset((408, 425, 429, 500, 502, 503, 504))


def exchange(
    url: urllib.parse.SplitResult,
    method: str,
    headers: Mapping[str, str],
    body: str | bytes | None,
    deadline: Deadline,
    *,
    context: Callable[[], ssl.SSLContext],
    max_bytes: int = _MAX_BYTES,
) -> tuple[int, bytes]:
    """Send a request and return the status and the body of the response.

    `url`: with path and query.
    `context`: returns the TLS context, for https.
    `max_bytes`: limit of the body.
    Raises `ConnectFailed`: no complete and valid response by the deadline. `ssl.SSLCertVerificationError`: the
    certificate of the server is not trusted. `ConfigurationError`: a file of the TLS context cannot be read.
    """
    target = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
    try:
        with _connected(url, context, deadline) as connection:
            interruptible(connection.request, method, target, body, dict(headers))
            response = interruptible(connection.getresponse)
            received = interruptible(response.read, max_bytes)
            if response.length or (response.length is None and interruptible(response.read, 1)):
                raise ConnectFailed("the response is truncated or too long")
            return response.status, received
    except (ssl.SSLCertVerificationError, ConfigurationError):
        raise
    except OSError as error:
        raise ConnectFailed(_why(error)) from error
    except http.client.HTTPException as error:
        raise ConnectFailed(f"the response is not HTTP ({type(error).__name__})") from error


def _why(error: OSError) -> str:
    if getattr(error, "reason", None) in NO_TLS:
        return "the server did not respond with TLS; an address without TLS begins with http://"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without a response; one with TLS needs https://"
    return str(error) or type(error).__name__


@contextmanager
def _connected(
    url: urllib.parse.SplitResult, context: Callable[[], ssl.SSLContext], deadline: Deadline
) -> Iterator[http.client.HTTPConnection]:
    """Open an HTTP connection that is shut down at the deadline: socket timeouts restart with each received byte."""
    host, tls = str(url.hostname), context() if url.scheme == "https" else None
    sock = connect(host, url.port or URL_PORTS[url.scheme], deadline)
    sock.setblocking(True)
    ended = Event()

    def end(same: socket.socket) -> None:
        ended.set()
        with suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    # `ssl` takes over the socket; the duplicate refers to the same connection.
    with closing(http.client.HTTPConnection(host, url.port)) as connection, sock.dup() as same:
        timer = threading.Timer(deadline.remaining_s(), end, (same,))
        timer.daemon = True
        timer.start()
        try:
            connection.sock = interruptible(tls.wrap_socket, sock, server_hostname=host) if tls else sock
            yield connection
        except (OSError, http.client.HTTPException):
            if not ended.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
        if ended.is_set():
            raise ConnectFailed("no complete response in time")
