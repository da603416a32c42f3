"""The open connections of one process, keyed by (host, port, purpose).

A purpose is a word for what waits on the connection ("control", "fetch", "produce", "coordinator"): a Fetch that
waits half a second for data must not hold up a commit. Used by `cluster.client`. Connections that were opened
before a fork, are broken, or have been idle for `connections.max.idle.ms` are replaced, never handed out. The next
`get` closes the idle ones of all addresses, also those to brokers that have left the cluster.
An address that has failed is left alone until its back-off (`reconnect.backoff.ms`) is over: until then `get` fails at
once, so that callers ask others, or wait in the one retry loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from protocol.clock import Clock, Deadline
from protocol.config import ClientConfig
from protocol.errors import ConnectFailed, ConnectionLost, KafkaError, SecurityError
from protocol.net.byte_stream import ByteStream
from protocol.net.connect import connect
from protocol.net.connection import Connection
from protocol.net.reachability import Address, Reachability
from protocol.net.tls_connect import connect_tls
from protocol.net.tls_context import TLSContext

if TYPE_CHECKING:
    from protocol.net.authenticate import Authenticator

# A caller that was just given a connection has sent its request by then.
_IDLE_OF_DEPARTED_S = 5.0


# A connection may have been handed out just before its time was over: its caller sends within this time.
_GRACE_S = 1.0


class ConnectionPool:
    """`is_departed`: whether an address that has gone silent is no broker's any more; may ask others, elsewhere."""

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        is_departed: Callable[[Address, Deadline], bool] = lambda address, deadline: False,
    ) -> None:
        self._config = config
        self._clock = clock
        self._is_departed = is_departed
        self._connections: dict[tuple[str, int, str], Connection] = {}
        self._tls = _tls(config)
        self._authenticator = _authenticator(config, clock)
        self._reachability = Reachability(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        self._lock = threading.Lock()
        self._closed = False
        self._next_look_s = 0.0
        self._process_id = os.getpid()

    def get(self, host: str, port: int, purpose: str, deadline: Deadline) -> Connection:
        """An open connection after its handshake.

        Raises `TransportError`, `ProtocolError` for a strange peer, `SecurityError` for one that we refuse, or it us.
        """
        key = (host, port, purpose)
        with self._lock:
            self._forget_after_fork()
            self._close_idle()
            connection = self._connections.get(key)
            if connection is not None and self._usable(connection):
                return connection
            if connection is not None:
                connection.close()
                del self._connections[key]
            self._require_reachable(host, port)
        # Opened outside the lock: one broker that does not answer must not block the others.
        opened = self._open(host, port, deadline)
        with self._lock:
            if self._closed:
                opened.close()
                raise ConnectionLost(f"{opened.address}: the connection was closed here")
            other = self._connections.get(key)
            if other is not None and self._usable(other):
                opened.close()
                return other
            self._connections[key] = opened
        return opened

    def failed_at_s(self, host: str, port: int) -> float:
        """When that address failed last; -inf: not since it answered."""
        with self._lock:
            return self._reachability.failed_at_s((host, port))

    def discard(self, connection: Connection) -> None:
        """Closes a connection that misbehaved, so that the next `get` opens a new one."""
        connection.close()
        with self._lock:
            for key, value in list(self._connections.items()):
                if value is connection:
                    del self._connections[key]

    def discard_purpose(self, purpose: str) -> None:
        with self._lock:
            gone = [connection for key, connection in self._connections.items() if key[2] == purpose]
        for connection in gone:
            self.discard(connection)

    def close_departed(self, departed: Collection[Address]) -> set[Address]:
        """Close connections to addresses that brokers have left, once nothing has used them for some seconds.

        Returns
        -------
        set of Address
            Those that still have a connection.
        """
        with self._lock:
            self._forget_after_fork()
            for key, connection in list(self._connections.items()):
                idle_s = self._clock.now_s() - connection.last_used_s
                if key[:2] in departed and not connection.in_flight and idle_s >= _IDLE_OF_DEPARTED_S:
                    connection.close()
                    del self._connections[key]
            return {key[:2] for key in self._connections} & set(departed)

    def close(self) -> None:
        """Closes all, also what is just being opened."""
        with self._lock:
            self._closed = True
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def __len__(self) -> int:
        return len(self._connections)

    def _usable(self, connection: Connection) -> bool:
        return not connection.closed and not self._idle_beyond(connection, 0.0)

    def _idle_beyond(self, connection: Connection, grace_s: float) -> bool:
        idle_s = self._clock.now_s() - connection.last_used_s
        return connection.in_flight == 0 and idle_s >= self._config.connections_max_idle_ms / 1000 + grace_s

    def _close_idle(self) -> None:
        """Looks at all connections, at most once a second: `get` is called for each request."""
        now_s = self._clock.now_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + 1.0
        for key, connection in list(self._connections.items()):
            if self._idle_beyond(connection, _GRACE_S):
                connection.close()
                del self._connections[key]

    def _require_reachable(self, host: str, port: int) -> None:
        early = self._reachability.too_early((host, port), self._clock.now_s())
        if early is not None:
            wait_s, error = early
            if isinstance(error, SecurityError):
                raise type(error)(error.message, **error.context) from error.__cause__
            raise ConnectFailed(
                f"{host}:{port}: not connected to again for {wait_s * 1000:.0f} ms, since it has failed ({error})",
                host=host,
                port=port,
            ) from error

    def _open(self, host: str, port: int, deadline: Deadline) -> Connection:
        if self._tls is not None:
            # To read a store may take a second or two, for which no broker is to blame.
            self._tls.current()
        setup = deadline.at_most_ms(self._config.socket_connection_setup_timeout_ms)
        try:
            connection = self._connect(host, port, setup)
        except KafkaError as error:
            self._failed((host, port), error)
            raise
        with self._lock:
            self._reachability.answered((host, port))
        return connection

    def _connect(self, host: str, port: int, setup: Deadline) -> Connection:
        with self._lock:
            failures = self._reachability.failures((host, port))
        open_socket = partial(
            connect,
            host,
            port,
            setup,
            send_buffer_bytes=self._config.send_buffer_bytes,
            receive_buffer_bytes=self._config.receive_buffer_bytes,
            # One that takes connections and then says nothing must not stand before the others for ever.
            first=failures,
        )
        if self._tls is None:
            stream = ByteStream(open_socket(), f"{host}:{port}")
        else:
            stream = connect_tls(open_socket, host, port, self._tls, setup)
        connection = Connection(
            stream,
            self._config.client_id,
            clock=self._clock,
            max_response_bytes=self._config.max_response_bytes,
            on_failure=partial(self._failed, (host, port)),
            is_departed=partial(self._is_departed, (host, port)),
            authenticator=self._authenticator,
        )
        try:
            connection.handshake(setup)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, address: Address, error: KafkaError) -> None:
        with self._lock:
            self._reachability.failed(address, error, self._clock.now_s())

    def _forget_after_fork(self) -> None:
        # A child shares its parent's sockets: talking on them would mix two streams of requests.
        if self._process_id != os.getpid():
            self._process_id = os.getpid()
            self._connections = {}
            # Their locks may have been held.
            self._tls = _tls(self._config)
            self._authenticator = _authenticator(self._config, self._clock)


def _tls(config: ClientConfig) -> TLSContext | None:
    return TLSContext(config.tls) if config.security_protocol.endswith("SSL") else None


def _authenticator(config: ClientConfig, clock: Clock) -> Authenticator | None:
    """Of SASL alone, which those who need none do not import."""
    if not config.security_protocol.startswith("SASL"):
        return None
    from protocol.net.authenticate import Authenticator

    return Authenticator(config.sasl, clock)
