"""One connection to one broker: pipelined requests, with replies matched by correlation id.

`pool` creates connections; `cluster` uses them. A connection has no thread: one of the threads that wait for a reply
reads frames for all of them. Thread-safe. Never retries.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Condition, Lock, locked
from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import (
    ConnectFailed,
    ConnectionLost,
    Corrupt,
    FrameTooLarge,
    KafkaError,
    RequestTimedOut,
    Truncated,
)
from protocol.metrics.client_sensors import ClientSensors, NodeSensors
from protocol.net.byte_stream import ByteStream, empty_buffer
from protocol.settings.secret import hide_variables
from protocol.version import CLIENT_SOFTWARE
from protocol.wire import frame
from protocol.wire.messages.m18_api_versions import API_VERSIONS, LAST_WITHOUT_IDS
from protocol.wire.schema import Api, choose_version

if TYPE_CHECKING:
    from protocol.net.authenticate import Authenticator, Session

log = logging.getLogger(__name__)

# Interval of silence, while a reply is awaited, after which the client asks other brokers if this one has left.
SILENCE_CHECK_S = 2.0
_SIZE_BYTES = 4
_TLS_ALERT = 0x15
# A SASL listener closes the connection on the first request after ApiVersions, which may be sent twice (ids 0 and 1).
_LAST_ID_REFUSED_WITHOUT_SASL = 2
_DESCRIBE_QUORUM = 55
_SASL_HINT = " (if that listener requires SASL, set security.protocol to SASL_PLAINTEXT or SASL_SSL)"
_HTTP = int.from_bytes(b"HTTP", "big")


class BrokerIdentity(NamedTuple):
    """The ids of a broker, as in ApiVersions."""

    cluster_id: str
    node_id: int


class Reply:
    """A pending reply. `result()` waits for it."""

    __slots__ = ("_connection", "api", "arrived_s", "correlation_id", "error", "frame", "sent_s", "version")

    def __init__(self, connection: Connection, api: Api, version: int, correlation_id: int, sent_s: float) -> None:
        self._connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.sent_s = sent_s
        self.arrived_s = sent_s
        self.frame: memoryview | None = None  # set on arrival
        self.error: KafkaError | None = None  # raised by `result` instead

    @property
    def address(self) -> str:
        """Host and port of the broker."""
        return self._connection.address

    @property
    def done(self) -> bool:
        """True if `result` returns or raises without reading the socket."""
        return self.frame is not None or self._connection.closed

    def poll(self) -> bool:
        """Read available bytes without waiting; return True if the reply is complete or the connection has failed."""
        return self.done or self._connection.poll(self)

    def fileno(self) -> int:
        """Return the file descriptor of the socket that receives the reply (for `readiness`); -1 once closed."""
        return self._connection.fileno()

    def check_silence(self, deadline: Deadline) -> None:
        """Call `Connection.check_silence`; for callers that wait for several replies, at regular intervals."""
        self._connection.check_silence(deadline)

    def result(self, deadline: Deadline) -> dict[str, Any]:
        """Wait for the reply and decode its body.

        `bytes` and `records` in the body are views of the frame, not copies.
        Raises `TransportError`: the connection is closed then. `ProtocolError`: the reply cannot be decoded.
        """
        return self._connection.receive(self, deadline)


class Connection:
    """A connection to a broker, ready for requests after `handshake`. Thread-safe.

    `max_response_bytes`: larger replies close the connection.
    `on_failure`: called with the error when the broker closed the connection, sent invalid bytes or did not reply in
    time.
    `is_departed`: called when a reply is late. Returns True if other brokers report that this one has left the cluster;
    the connection is then closed long before the deadline of the reply.
    `authenticator`: for SASL.
    `sensors`: record requests and replies.
    `versions`: lowest and highest version of each API key that the broker supports.
    `features`: finalized cluster features (KIP-584).
    `handshake_version`: newest version of ApiVersions that client and broker support.
    """

    def __init__(
        self,
        stream: ByteStream,
        client_id: str,
        *,
        clock: Clock,
        max_response_bytes: int,
        on_failure: Callable[[KafkaError], None] = lambda error: None,
        is_departed: Callable[[Deadline], bool] = lambda deadline: False,
        authenticator: Authenticator | None = None,
        sensors: NodeSensors | None = None,
    ) -> None:
        self.address = stream.address
        self._sensors = sensors or NodeSensors(ClientSensors(), (stream.address, 0))
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        self.handshake_version = API_VERSIONS.first
        self.last_used_s = clock.now_s()
        self.stream = stream
        self._client_id = client_id
        self._clock = clock
        self._max_response_bytes = max_response_bytes
        self._on_failure = on_failure
        self._is_departed = is_departed
        self._authenticator = authenticator
        self._session: Session | None = None
        self.reauthenticate_at_s = float("inf")
        """Clock time in seconds of the next reauthentication (KIP-368); inf without an expiring session."""
        # Start of the wait for a reply while the broker sends nothing, or time of the last check of that.
        self._silent_since_s = self.last_used_s
        stream.on_silence = self.check_silence
        self._sending = Lock()
        # One thread reads for all; the others wait until their reply has arrived or the reader stops.
        # The call that reads frames. An object of each call: after Ctrl-C it is unknown if the call became the reader.
        self._reader: object = None
        self._arrivals = Condition()
        self._in_flight: deque[Reply] = deque()
        self._next_correlation_id = 0
        self._closed: KafkaError | None = None
        # The frame that is being received: its size, then its bytes.
        self._size = memoryview(bytearray(_SIZE_BYTES))
        self._incoming = self._size
        self._received_bytes = 0

    # -- state --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True after `close`, also after a failure."""
        return self._closed is not None

    @property
    def in_flight(self) -> int:
        """Number of requests without a reply."""
        return len(self._in_flight)

    def fileno(self) -> int:
        """Return the socket's file descriptor; -1 once closed."""
        return self.stream.fileno()

    def handshake(
        self, deadline: Deadline, version: int = LAST_WITHOUT_IDS, intended: BrokerIdentity | None = None
    ) -> None:
        """Request the API versions (KIP-35, KIP-511) with the ids of a broker (KIP-1242), and authenticate.

        `version`: version of ApiVersions to try first. Any is right; the one that the broker supports saves a round
        trip.
        `intended`: the broker that should reply. Brokers before Kafka 4.4 do not compare it with their own ids.
        Raises `ConnectFailed`: another broker replied; or an error code or a malformed reply came, as from a broker
        that is starting. `KafkaError`: as `Authenticator.authenticate`.
        """
        try:
            version = self._ask_versions(version, intended, deadline)
            if self._authenticator is not None:
                with self._sending:
                    self._authenticate(self._authenticator, deadline)
            # SASL listeners compare the ids only after authentication.
            if version <= LAST_WITHOUT_IDS or self._authenticator is not None:
                self.compare(intended, deadline)
        except (Corrupt, Truncated) as error:
            raise ConnectFailed(error.message, **error.context) from error

    def compare(self, intended: BrokerIdentity | None, deadline: Deadline) -> None:
        """Let the broker compare its ids with those of the broker that should reply; no broker before Kafka 4.4 does.

        Raises `ConnectFailed`, and closes the connection, if another broker replies.
        """
        if intended is not None and self.handshake_version > LAST_WITHOUT_IDS:
            try:
                self._ask_versions(self.handshake_version, intended, deadline)
            except KafkaError as error:
                self.close(error)
                raise

    def _ask_versions(self, version: int, intended: BrokerIdentity | None, deadline: Deadline) -> int:
        """Send ApiVersions, and adopt the reply. Returns `version`, or the broker's newest if that is lower."""
        body = {**CLIENT_SOFTWARE, **({} if intended is None else intended._asdict())}
        reply = self.send(API_VERSIONS, version, body, deadline).result(deadline)
        code = reply["error_code"]
        versions = {row["api_key"]: (row["min_version"], row["max_version"]) for row in reply["api_keys"]}
        newest = min(versions.get(API_VERSIONS.key, (0, 0))[1], API_VERSIONS.last)
        if code == ErrorCode.UNSUPPORTED_VERSION and newest < version:
            return self._ask_versions(newest, intended, deadline)
        if code == ErrorCode.REBOOTSTRAP_REQUIRED and intended is not None:
            raise ConnectFailed(
                f"{self.address}: this is not broker {intended.node_id} of cluster {intended.cluster_id} "
                "(REBOOTSTRAP_REQUIRED): another broker uses the address now, or advertised.listeners of two brokers "
                "have it. The client asks other brokers for the new address",
                intended=intended,
            )
        if code:
            raise ConnectFailed(f"{broker_error(code, f'{self.address}: ApiVersions')}")
        self.versions, self.handshake_version = versions, newest
        self.features = {row["name"]: row["max_version_level"] for row in reply["finalized_features"]}
        return version

    def _authenticate(self, authenticator: Authenticator, deadline: Deadline) -> None:
        """Authenticate, or reauthenticate (KIP-368). The caller holds `_sending`.

        The broker accepts no other request until the end of the exchange, but still replies to those in flight.
        """
        try:
            self._session = authenticator.authenticate(self.address, self._ask, deadline, self._session)
        except BaseException as error:
            self._close_broken(error)
            raise
        after_s = self._session.reauthenticate_after_s
        self.reauthenticate_at_s = float("inf") if after_s is None else self._clock.now_s() + after_s

    @hide_variables
    def _ask(self, api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        return self._send(api, self.choose_version(api, at_least), body, deadline, replies=True).result(deadline)

    @property
    def is_kraft(self) -> bool:
        """True if the cluster runs without ZooKeeper: only KRaft brokers have the API DescribeQuorum (KIP-595)."""
        return _DESCRIBE_QUORUM in self.versions

    def choose_version(self, api: Api, at_least: int = 0, at_most: int | None = None) -> int:
        """Return the newest version that client and broker support. Raises `UnsupportedVersion`."""
        return choose_version(api, self.versions, at_least=at_least, at_most=at_most)

    def close(self, error: KafkaError | None = None) -> None:
        """Close the connection; waiting calls raise `error` (a failure of the broker), by default `ConnectionLost`."""
        is_first = self._closed is None
        if is_first:
            self._closed = error or self._closed_by_client()
        self.stream.close()
        if is_first and error is not None:
            self._on_failure(error)

    def _closed_by_client(self) -> KafkaError:
        return ConnectionLost(f"{self.address}: the connection was closed by the client")

    # -- requests and replies -----------------------------------------------------------------

    def send(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline, *, replies: bool = True) -> Reply:
        """Send a request and return without waiting for the reply.

        `version`: from `choose_version`.
        `replies`: False if the broker sends no reply (Produce with acks=0).
        Raises `UsageError`: the body cannot be encoded. `TransportError`: the connection failed, or other threads were
        sending until the deadline.
        """

        def send(free: bool) -> Reply:
            if not free:
                raise RequestTimedOut(f"{self.address}: {api.name} v{version} could not be sent in time")
            if self._authenticator is not None and self._clock.now_s() >= self.reauthenticate_at_s:
                self._authenticate(self._authenticator, deadline)
            return self._send(api, version, body, deadline, replies)

        return locked(self._sending, deadline.remaining_s(), send)

    def _send(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline, replies: bool) -> Reply:
        self._raise_if_closed()
        correlation_id = self._next_correlation_id
        buffers = frame.encode_request(api, version, correlation_id, self._client_id, body)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        self.last_used_s = now_s = self._clock.now_s()
        reply = Reply(self, api, version, correlation_id, now_s)
        size_bytes = frame.size_bytes(buffers)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s: sent %s v%d, correlation id %d, %d bytes", *_names(reply), size_bytes)
        try:
            if not self._in_flight:
                self._silent_since_s = now_s
            if replies:
                self._in_flight.append(reply)
            self.stream.send(buffers, deadline)
        except BaseException as error:
            self._close_broken(error)
            raise
        self._sensors.sent.record((now_s, size_bytes))
        return reply

    def _close_broken(self, error: BaseException) -> None:
        """Close the connection after an error: a partly sent or received frame makes it unusable."""
        # Other errors, for example Ctrl-C, are not a failure of the broker.
        self.close(error if isinstance(error, KafkaError) else None)

    def receive(self, reply: Reply, deadline: Deadline) -> dict[str, Any]:
        """Wait for a reply, as `Reply.result`. One of the waiting threads reads frames for all."""
        if reply.error is not None:
            raise reply.error
        this_call = object()
        try:
            if self._become_reader(this_call, reply, deadline):
                try:
                    self._read_until(reply, deadline)
                except BaseException as error:
                    self._close_broken(error)
                    raise
        finally:
            self._stop_reading(this_call)
        self.last_used_s = now_s = self._clock.now_s()
        assert reply.frame is not None
        body = frame.decode_response(reply.api, reply.version, reply.frame)
        throttle_ms = body.get("throttle_time_ms", 0)
        latency_ms = (reply.arrived_s - reply.sent_s) * 1000
        self._sensors.answered(reply.api.key).record((now_s, latency_ms, _SIZE_BYTES + len(reply.frame), throttle_ms))
        if throttle_ms:
            log.debug("%s: throttled %s v%d, correlation id %d, for %d ms", *_names(reply), throttle_ms)
        return body

    def _become_reader(self, this_call: object, reply: Reply, deadline: Deadline) -> bool:
        """Wait while another thread reads. Returns False if that thread has read this reply."""
        with self._arrivals:
            while self._reader is not None and reply.frame is None and not deadline.passed:
                self._arrivals.wait(deadline.remaining_s())
            if reply.frame is not None:
                return False
            if self._reader is None:
                self._reader = this_call
                return True
        error = self._no_reply(reply)
        self.close(error)
        raise error

    def _stop_reading(self, this_call: object) -> None:
        with self._arrivals:
            if self._reader is this_call:
                self._reader = None
                self._arrivals.notify_all()

    def poll(self, reply: Reply) -> bool:
        """Read available bytes, as `Reply.poll`, unless another thread is reading."""
        this_call = object()
        try:
            with self._arrivals:
                if self._reader is not None or reply.done:
                    return reply.done
                self._reader = this_call
            try:
                while reply.frame is None and self._receive_frame() is not None:
                    pass
            except BaseException as error:
                self._close_broken(error)
                raise
        except KafkaError as error:
            reply.error = error
        finally:
            self._stop_reading(this_call)
        return reply.done

    def _read_until(self, awaited: Reply, deadline: Deadline) -> None:
        while awaited.frame is None:
            self._raise_if_closed(awaited)
            try:
                while (received := self._receive_frame()) is None:
                    self.stream.wait_readable(deadline)
            except RequestTimedOut as error:
                raise self._no_reply(awaited) from error
            except ConnectionLost as error:
                self._raise_if_closed(awaited)
                if self._authenticator is None and 0 < awaited.correlation_id <= _LAST_ID_REFUSED_WITHOUT_SASL:
                    raise ConnectionLost(f"{error}{_SASL_HINT}", settings=("security.protocol",)) from error
                raise
            if received is not awaited:
                with self._arrivals:
                    self._arrivals.notify_all()

    def _no_reply(self, reply: Reply) -> RequestTimedOut:
        """Return the error of a missing reply, which closes the connection: replies are ordered, so later ones wait."""
        return RequestTimedOut(f"{self.address}: no reply to {reply.api.name} v{reply.version} in time")

    def check_silence(self, deadline: Deadline) -> None:
        """Close the connection if the broker is unresponsive and other brokers report that it has left the cluster."""
        now_s = self._clock.now_s()
        if self.closed or not self._in_flight or now_s - self._silent_since_s < SILENCE_CHECK_S:
            return
        self._silent_since_s = now_s
        if self._is_departed(deadline):
            self.close(ConnectionLost(f"{self.address}: no reply, and other brokers say that it has left the cluster"))

    def _receive_frame(self) -> Reply | None:
        """Read available bytes. Return the reply that they complete; None if its frame is incomplete."""
        while count := self.stream.receive_some(self._incoming[self._received_bytes :]):
            self._received_bytes += count
            if self._received_bytes < len(self._incoming):
                continue
            frame, self._received_bytes = self._incoming, 0
            if frame is not self._size:
                self._incoming = self._size
                return self._complete(frame)
            size = int.from_bytes(self._size, "big", signed=True)
            self._check_size(size)
            self._incoming = empty_buffer(size)
        return None

    def _complete(self, buffer: memoryview) -> Reply:
        size = len(buffer)
        if not self._in_flight:
            raise Corrupt(f"{self.address}: the broker sent {size} bytes without a request")
        reply = self._in_flight.popleft()
        self._silent_since_s = reply.arrived_s = self._clock.now_s()
        correlation_id = frame.correlation_id(buffer)
        if correlation_id != reply.correlation_id:
            raise Corrupt(
                f"{self.address}: reply {correlation_id} came, {reply.correlation_id} ({reply.api.name}) was expected"
            )
        if log.isEnabledFor(logging.DEBUG):
            latency_ms = (reply.arrived_s - reply.sent_s) * 1000
            text = "%s: answered %s v%d, correlation id %d, %d bytes in %.1f ms"
            log.debug(text, *_names(reply), size, latency_ms)
        reply.frame = buffer
        return reply

    def _check_size(self, size: int) -> None:
        if 4 <= size <= self._max_response_bytes:
            return
        raw = size & 0xFFFFFFFF
        if raw >> 24 == _TLS_ALERT:
            hint = (
                "; that is a TLS alert: this listener uses TLS (set security.protocol to SSL or SASL_SSL, or put the "
                "port of a listener without TLS into bootstrap.servers)"
            )
        elif raw == _HTTP:
            hint = "; that is an HTTP reply: this is not a Kafka listener (check bootstrap.servers)"
        elif size > self._max_response_bytes:
            hint = (
                f"; the limit is max.response.bytes={self._max_response_bytes}: raise it, or request less "
                "(fetch.max.bytes; a larger record batch is returned whole)"
            )
        else:
            hint = "; this is not a Kafka listener, or the stream is corrupt"
        settings = ("bootstrap.servers", "fetch.max.bytes", "max.response.bytes", "security.protocol")
        raise FrameTooLarge(f"{self.address}: the reply announces {size} bytes{hint}", settings=settings)

    def _raise_if_closed(self, reply: Reply | None = None) -> None:
        if self._closed is not None:
            in_flight = f"; {reply.api.name} v{reply.version} was in flight" if reply else ""
            raise ConnectionLost(f"{self._closed}{in_flight}") from self._closed


def _names(reply: Reply) -> tuple[str, str, int, int]:
    """Return broker, API, version and correlation id, for the log lines of a request's life."""
    return reply.address, reply.api.name, reply.version, reply.correlation_id
