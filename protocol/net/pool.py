"""The open connections of one process, by (host, port, purpose, intended broker).

Requests of different purposes ("control", "fetch", "produce", "coordinator", "liveness") use different connections: a
Fetch that waits half a second for data must not delay a commit. A connection serves only the broker that it was opened
for, since its address may be another broker's by now. One to a bootstrap server, which may be any broker, becomes that
of a broker after a comparison of the ids. `get` replaces connections that are closed, were opened before a fork, or
have been idle for `connections.max.idle.ms`; it also closes idle connections to other addresses. After a failure, `get`
fails at once until the address's back-off (`reconnect.backoff.ms`) is over, so that callers try other brokers or wait
in the retry loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Lock
from protocol.base.interrupts import Deferred
from protocol.config import ClientConfig
from protocol.errors import AuthenticationFailed, ConnectFailed, ConnectionLost, KafkaError, SecurityError
from protocol.metrics.client_sensors import ClientSensors, NodeSensors, Tags
from protocol.net.byte_stream import ByteStream
from protocol.net.connect import connect
from protocol.net.connection import BrokerIdentity, Connection
from protocol.net.reachability import Address, Reachability
from protocol.net.tls_context import TLSContext
from protocol.net.tls_stream import connect_tls
from protocol.wire.messages.m18_api_versions import LAST_WITHOUT_IDS

if TYPE_CHECKING:
    from protocol.net.authenticate import Authenticator

# Connections to former brokers are closed after this time without a request: a caller that has just received one from
# `get` has sent its request by then.
_DEPARTED_IDLE_S = 5.0

# Added to `connections.max.idle.ms` when idle connections are closed: `get` may just have returned one.
_GRACE_S = 1.0


Key = tuple[str, int, str, BrokerIdentity | None]


class ConnectionPool:
    """Connections of one client. Thread-safe.

    `is_departed`: returns True if an unresponsive address has left the cluster; may send requests to other brokers.
    """

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        is_departed: Callable[[Address, Deadline], bool] = lambda address, deadline: False,
        sensors: ClientSensors | None = None,
    ) -> None:
        self._sensors = sensors or ClientSensors()
        self._sensors.add_gauge("connection-count", self, ConnectionPool._open_count)
        self._config = config
        self._clock = clock
        self._is_departed = is_departed
        self.connections: dict[Key, Connection] = {}
        """Open connections by (host, port, purpose, intended broker). Guarded by the pool's lock."""
        self._tls = _tls_context(config)
        self._authenticator = _authenticator(config, clock)
        self._reachability = Reachability(config.reconnect_backoff_ms, config.reconnect_backoff_max_ms)
        # As of the last opened connection, since brokers usually have the same release.
        self._handshake_version = LAST_WITHOUT_IDS
        self._lock = Lock()
        self._closed = False
        self._next_idle_check_s = 0.0
        self._process_id = os.getpid()

    def get(
        self, host: str, port: int, purpose: str, deadline: Deadline, intended: BrokerIdentity | None = None
    ) -> Connection:
        """Return an open connection after its handshake with the broker `intended`; open one if needed.

        Raises `TransportError`: the connection cannot be opened by `deadline`, or the address is in back-off.
        `ProtocolError`: the peer is not a Kafka broker. `SecurityError`: the client refused the broker, or the broker
        the client.
        """
        key: Key = (host, port, purpose, intended)
        bootstrap_key: Key = (host, port, purpose, None)
        with self._lock:
            self._forget_after_fork()
            self._close_idle()
            connection = self._usable_at(key)
            if connection is not None:
                return connection
            bootstrap = self._usable_at(bootstrap_key)
            if bootstrap is None:
                self._require_reachable(host, port)
        # Without the lock: an unresponsive broker must not block requests to others.
        if bootstrap is None:
            opened = self._open(host, port, deadline, intended)
        else:
            opened = bootstrap
            opened.compare(intended, deadline.at_most_ms(self._config.socket_connection_setup_timeout_ms))
        with self._lock:
            if self._closed:
                opened.close()
                raise ConnectionLost(f"{opened.address}: the connection was closed by the client")
            present = self._usable_at(key)
            if present is None:
                self.connections[key] = opened
                if opened is bootstrap:
                    self.connections.pop(bootstrap_key, None)
            elif present is not opened:
                opened.close()
            return present or opened

    def failed_at_s(self, host: str, port: int) -> float:
        """Return the time of the address's last failure; -inf if it has replied since."""
        with self._lock:
            return self._reachability.failed_at_s((host, port))

    def discard(self, connection: Connection) -> None:
        """Close a connection; the next `get` opens a new one."""
        connection.close()
        with self._lock:
            for key, value in list(self.connections.items()):
                if value is connection:
                    del self.connections[key]

    def discard_purpose(self, purpose: str) -> None:
        """Close all connections of a purpose."""
        with self._lock:
            closing = [connection for key, connection in self.connections.items() if key[2] == purpose]
        for connection in closing:
            self.discard(connection)

    def discard_address(self, address: Address, error: KafkaError | None = None, purpose: str = "") -> None:
        """Close the connections to an address whose purpose begins with `purpose`.

        With an error, also back off as after a failed connection attempt.
        """
        with self._lock:
            closing = [key for key in self.connections if key[:2] == address and key[2].startswith(purpose)]
            connections = [self.connections.pop(key) for key in closing]
        for connection in connections:
            connection.close(error)
        if error is not None:
            self._failed(address, error)

    def close_departed(self, departed: Collection[Address]) -> set[Address]:
        """Close connections to addresses of former brokers that have been unused for some seconds.

        Returns the addresses in `departed` that still have a connection.
        """
        with self._lock:
            self._forget_after_fork()
            for key, connection in list(self.connections.items()):
                idle_s = self._clock.now_s() - connection.last_used_s
                is_idle = not connection.in_flight and idle_s >= _DEPARTED_IDLE_S
                if key[:2] in departed and (connection.closed or is_idle):
                    connection.close()
                    del self.connections[key]
            return {key[:2] for key in self.connections} & set(departed)

    def close(self) -> None:
        """Close all connections, including those being opened."""
        with Deferred(), self._lock:  # no gate above `Client.close`: Ctrl-C would leave some of them open
            self._closed = True
            for connection in self.connections.values():
                connection.close()
            self.connections.clear()

    def __len__(self) -> int:
        return len(self.connections)

    def _open_count(self) -> Iterator[tuple[Tags, float]]:
        """Yield the value of the metric `connection-count`."""
        yield (), sum(not connection.closed for connection in list(self.connections.values()))

    def _usable_at(self, key: Key) -> Connection | None:
        """Return the open connection; close and remove one that has been idle for too long."""
        connection = self.connections.get(key)
        if connection is not None and (connection.closed or self._idle_beyond(connection, 0.0)):
            connection.close()
            del self.connections[key]
            return None
        return connection

    def _idle_beyond(self, connection: Connection, grace_s: float) -> bool:
        idle_s = self._clock.now_s() - connection.last_used_s
        return connection.in_flight == 0 and idle_s >= self._config.connections_max_idle_ms / 1000 + grace_s

    def _close_idle(self) -> None:
        """Close idle connections; at most once a second, since `get` is called for each request."""
        now_s = self._clock.now_s()
        if now_s < self._next_idle_check_s:
            return
        self._next_idle_check_s = now_s + 1.0
        for key, connection in list(self.connections.items()):
            if self._idle_beyond(connection, _GRACE_S):
                connection.close()
                del self.connections[key]

    def _require_reachable(self, host: str, port: int) -> None:
        backoff = self._reachability.current_backoff((host, port), self._clock.now_s())
        if backoff is not None:
            wait_s, error = backoff
            if isinstance(error, SecurityError):
                raise type(error)(error.message, **error.context) from error.__cause__
            raise ConnectFailed(
                f"{host}:{port}: in back-off for another {wait_s * 1000:.0f} ms after a failure ({error})",
                host=host,
                port=port,
                retry_in_ms=wait_s * 1000,
            ) from error

    def _open(self, host: str, port: int, deadline: Deadline, intended: BrokerIdentity | None) -> Connection:
        if self._tls is not None:
            # Reading a key store may take seconds, which must not count as the broker's time.
            self._tls.current()
        setup_deadline = deadline.at_most_ms(self._config.socket_connection_setup_timeout_ms)
        try:
            connection = self._connect(host, port, setup_deadline, intended)
        except KafkaError as error:
            if isinstance(error, AuthenticationFailed):
                self._sensors.failed_authentications.record((self._clock.now_s(),))
            self._failed((host, port), error)
            raise
        self._sensors.connections.record((self._clock.now_s(),))
        with self._lock:
            self._reachability.answered((host, port))
            self._handshake_version = connection.handshake_version
        return connection

    def _connect(self, host: str, port: int, setup_deadline: Deadline, intended: BrokerIdentity | None) -> Connection:
        with self._lock:
            failures = self._reachability.failures((host, port))
            version = self._handshake_version
        open_socket = partial(
            connect,
            host,
            port,
            setup_deadline,
            send_buffer_bytes=self._config.send_buffer_bytes,
            receive_buffer_bytes=self._config.receive_buffer_bytes,
            # Start with another address each time: one that accepts and then sends nothing must not block the others.
            first=failures,
        )
        if self._tls is None:
            stream = ByteStream(open_socket(), f"{host}:{port}")
        else:
            stream = connect_tls(open_socket, host, port, self._tls, setup_deadline)
        connection = Connection(
            stream,
            self._config.client_id,
            clock=self._clock,
            max_response_bytes=self._config.max_response_bytes,
            on_failure=partial(self._failed, (host, port)),
            is_departed=partial(self._is_departed, (host, port)),
            authenticator=self._authenticator,
            sensors=NodeSensors(self._sensors, (host, port)),
        )
        try:
            connection.handshake(setup_deadline, version, intended)
        except BaseException:
            connection.close()
            raise
        return connection

    def _failed(self, address: Address, error: KafkaError) -> None:
        with self._lock:
            self._reachability.failed(address, error, self._clock.now_s())

    def _forget_after_fork(self) -> None:
        # A child process shares the parent's sockets: using them would mix two streams of requests.
        if self._process_id != os.getpid():
            self._process_id = os.getpid()
            self.connections = {}
            # Another thread may have held their locks during the fork.
            self._tls = _tls_context(self._config)
            self._authenticator = _authenticator(self._config, self._clock)


def _tls_context(config: ClientConfig) -> TLSContext | None:
    return TLSContext(config.tls) if config.security_protocol.endswith("SSL") else None


def _authenticator(config: ClientConfig, clock: Clock) -> Authenticator | None:
    """Create the authenticator; imported on demand, since most clients do not use SASL."""
    if not config.security_protocol.startswith("SASL"):
        return None
    from protocol.net.authenticate import Authenticator

    return Authenticator(config.sasl, clock)
