"""One connection to one broker: requests go out pipelined, replies are matched by correlation id.

Owns a `ByteStream` and the queue of what is in flight. Made by `pool`, used by `cluster`. Has no thread of its own:
of those who wait for a reply one reads frames, also for the others. Safe for several threads.
Knows nothing of metadata and never tries again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol.broker_errors import ErrorCode
from protocol.clock import Clock, Deadline
from protocol.condition import Condition
from protocol.errors import ConnectionLost, Corrupt, FrameTooLarge, KafkaError, RequestTimedOut
from protocol.net.byte_stream import ByteStream
from protocol.secret import hide_variables
from protocol.wire import frame, versions
from protocol.wire.messages.m18_api_versions import API_VERSIONS
from protocol.wire.schema import Api

if TYPE_CHECKING:
    from protocol.net.authenticate import Authenticator, Session

log = logging.getLogger(__name__)

# A reply that takes longer makes us ask others about the broker, and again after the same time.
_LATE_S = 2.0
_TLS_ALERT = 0x15
# ApiVersions may be asked for twice. A broker that wants to know who we are hangs up on what comes next.
_FIRST_AFTER_API_VERSIONS = 2
_DESCRIBE_QUORUM = 55
_WANTS_SASL = " (if that listener wants SASL, set security.protocol to SASL_PLAINTEXT or SASL_SSL)"
_HTTP = int.from_bytes(b"HTTP", "big")


class Reply:
    """A reply that is on its way. `result()` waits for it."""

    __slots__ = ("_connection", "api", "correlation_id", "frame", "version")

    def __init__(self, connection: Connection, api: Api, version: int, correlation_id: int) -> None:
        self._connection = connection
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.frame: memoryview | None = None  # set when it has come

    @property
    def arrived(self) -> bool:
        """Whether `result` is there, or a failure, without a look at the socket."""
        return self.frame is not None or self._connection.closed

    def pending(self) -> int:
        """How many bytes wait above the socket, see `ByteStream.pending`."""
        return self._connection.pending()

    def fileno(self) -> int:
        """The socket that will bring it (for `readiness`); -1 once closed."""
        return self._connection.fileno()

    def check_silence(self, deadline: Deadline) -> None:
        """For who waits for several replies: call it from time to time, see `Connection.check_silence`."""
        self._connection.check_silence(deadline)

    def result(self, deadline: Deadline) -> dict[str, Any]:
        """The decoded body. `bytes` and `records` in it are views of the frame, not copies.

        Raises `TransportError` (the connection is then closed), or `ProtocolError` for bytes that make no sense.
        """
        return self._connection.receive(self, deadline)


class Connection:
    """An open connection, after `handshake` signed in, with the versions that its broker speaks and its features.

    `on_failure` is called when the broker broke it, or did not answer in time; `is_departed` when a reply is late: if
    others say so in time that the broker is gone, the connection is given up long before the reply's deadline.
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
    ) -> None:
        self.address = stream.address
        self.versions: Mapping[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        self.last_used_s = clock.now_s()
        self._stream = stream
        self._client_id = client_id
        self._clock = clock
        self._max_response_bytes = max_response_bytes
        self._on_failure = on_failure
        self._is_departed = is_departed
        self._authenticator = authenticator
        self._session: Session | None = None
        self._authenticate_at_s = float("inf")
        # Since when the broker owes us something and says nothing, or when that was looked into last.
        self._silent_since_s = self.last_used_s
        stream.on_silence = self.check_silence
        self._sending = threading.Lock()
        # One thread reads; the others wait until it has what they wait for, or stops.
        self._has_reader = False
        self._arrivals = Condition()
        self._in_flight: deque[Reply] = deque()
        self._next_correlation_id = 0
        self._closed: KafkaError | None = None
        self._size = memoryview(bytearray(4))

    # -- life ---------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._closed is not None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def fileno(self) -> int:
        return self._stream.fileno()

    def pending(self) -> int:
        return self._stream.pending()

    def handshake(self, deadline: Deadline) -> None:
        """Asks for the API versions (KIP-35, KIP-511), then signs in.

        A broker that lacks our version of ApiVersions answers with version 0. Raises what `Authenticator.authenticate`
        does.
        """
        version = API_VERSIONS.last
        body = {"client_software_name": "spark-kafka-source", "client_software_version": "0.1"}
        reply = self.send(API_VERSIONS, version, body, deadline).result(deadline)
        if reply["error_code"] == ErrorCode.UNSUPPORTED_VERSION:
            reply = self.send(API_VERSIONS, 0, {}, deadline).result(deadline)
        if reply["error_code"]:
            raise Corrupt(f"{self.address}: ApiVersions was answered with error {reply['error_code']}")
        self.versions = {row["api_key"]: (row["min_version"], row["max_version"]) for row in reply["api_keys"]}
        self.features = {row["name"]: row["max_version_level"] for row in reply["finalized_features"]}
        if self._authenticator is not None:
            with self._sending:
                self._authenticate(self._authenticator, deadline)

    def _authenticate(self, authenticator: Authenticator, deadline: Deadline) -> None:
        """Signs in, for the first time or again (KIP-368). By who holds `_sending`, since a broker takes nothing else
        meanwhile; what is in flight it answers before."""
        with self._closed_when_broken():
            self._session = authenticator.authenticate(self.address, self._ask, deadline, self._session)
        after_s = self._session.renewed_after_s
        self._authenticate_at_s = float("inf") if after_s is None else self._clock.now_s() + after_s

    @hide_variables
    def _ask(self, api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        return self._send(api, self.choose_version(api, at_least), body, deadline, replies=True).result(deadline)

    @property
    def is_kraft(self) -> bool:
        """True for a broker of a cluster without ZooKeeper: only those have the API DescribeQuorum (KIP-595)."""
        return _DESCRIBE_QUORUM in self.versions

    def choose_version(self, api: Api, at_least: int = 0, at_most: int | None = None) -> int:
        """The version to speak with this broker. Raises `UnsupportedVersion`."""
        return versions.choose(api, self.versions, at_least=at_least, at_most=at_most)

    def close(self, error: KafkaError | None = None) -> None:
        """Closes; whoever waits gets `error`, what the broker did wrong, or a `ConnectionLost` if it did nothing."""
        first, self._closed = self._closed is None, self._closed or error or self._closed_here()
        self._stream.close()
        if first and error is not None:
            self._on_failure(error)

    def _closed_here(self) -> KafkaError:
        return ConnectionLost(f"{self.address}: the connection was closed here")

    # -- traffic ------------------------------------------------------------------------------

    def send(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline, *, replies: bool = True) -> Reply:
        """Sends a request and returns at once. `replies=False`: the broker will not answer (Produce with acks=0).

        Raises `UsageError` for a body that cannot be encoded, `TransportError` when the connection broke, or others
        were sending on it until the deadline.
        """
        if not self._sending.acquire(timeout=deadline.remaining_s()):
            raise RequestTimedOut(f"{self.address}: {api.name} v{version} could not be sent in time")
        try:
            if self._authenticator is not None and self._clock.now_s() >= self._authenticate_at_s:
                self._authenticate(self._authenticator, deadline)
            return self._send(api, version, body, deadline, replies)
        finally:
            self._sending.release()

    def _send(self, api: Api, version: int, body: dict[str, Any], deadline: Deadline, replies: bool) -> Reply:
        self._raise_if_closed()
        correlation_id = self._next_correlation_id
        buffers = frame.encode_request(api, version, correlation_id, self._client_id, body)
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        reply = Reply(self, api, version, correlation_id)
        self.last_used_s = self._clock.now_s()
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s < %s v%d %d bytes", self.address, api.name, version, sum(map(len, buffers)))
        with self._closed_when_broken():
            if not self._in_flight:
                self._silent_since_s = self.last_used_s
            if replies:
                self._in_flight.append(reply)
            self._stream.send(buffers, deadline)
        return reply

    @contextmanager
    def _closed_when_broken(self) -> Iterator[None]:
        """What ends in the middle leaves frames that nobody can tell apart: such a connection is closed."""
        try:
            yield
        except KafkaError as error:
            self.close(error)
            raise
        except BaseException:
            # Such as Ctrl-C: the broker is not to blame.
            self.close()
            raise

    def receive(self, reply: Reply, deadline: Deadline) -> dict[str, Any]:
        """As `Reply.result`. One of those who wait reads what comes, for the others, too."""
        if self._begin_to_read(reply, deadline):
            try:
                with self._closed_when_broken():
                    self._read_until(reply, deadline)
            finally:
                with self._arrivals:
                    self._has_reader = False
                    self._arrivals.notify_all()
        self.last_used_s = self._clock.now_s()
        assert reply.frame is not None
        return frame.decode_response(reply.api, reply.version, reply.frame)

    def _begin_to_read(self, reply: Reply, deadline: Deadline) -> bool:
        """Waits while another thread reads; False: that one has read this reply, too."""
        with self._arrivals:
            while self._has_reader and reply.frame is None and not deadline.passed:
                self._arrivals.wait(deadline.remaining_s())
            if reply.frame is not None:
                return False
            if not self._has_reader:
                self._has_reader = True
                return True
        error = self._no_reply(reply)
        self.close(error)
        raise error

    def _read_until(self, wanted: Reply, deadline: Deadline) -> None:
        while wanted.frame is None:
            self._raise_if_closed(wanted)
            try:
                arrived = self._receive_next(deadline)
            except RequestTimedOut as error:
                raise self._no_reply(wanted) from error
            except ConnectionLost as error:
                self._raise_if_closed(wanted)
                if self._authenticator is None and 0 < wanted.correlation_id <= _FIRST_AFTER_API_VERSIONS:
                    raise ConnectionLost(f"{error}{_WANTS_SASL}", settings=("security.protocol",)) from error
                raise
            if arrived is not wanted:
                with self._arrivals:
                    self._arrivals.notify_all()

    def _no_reply(self, reply: Reply) -> RequestTimedOut:
        """Closes the connection: replies come in order, so with one missing nothing behind it can be told apart."""
        return RequestTimedOut(f"{self.address}: no reply to {reply.api.name} v{reply.version} in time")

    def check_silence(self, deadline: Deadline) -> None:
        """Gives the connection up if the broker has been silent for a while and is gone, as others say until then."""
        now_s = self._clock.now_s()
        if self.closed or not self._in_flight or now_s - self._silent_since_s < _LATE_S:
            return
        self._silent_since_s = now_s
        if self._is_departed(deadline):
            self.close(ConnectionLost(f"{self.address}: no answer, and others say that this broker is gone"))

    def _receive_next(self, deadline: Deadline) -> Reply:
        self._stream.receive_into(self._size, deadline)
        size = int.from_bytes(self._size, "big", signed=True)
        self._check_size(size)
        # Not a bytearray: that would be filled with zeros first.
        buffer = np.empty(size, np.uint8).data
        self._stream.receive_into(buffer, deadline)
        if not self._in_flight:
            raise Corrupt(f"{self.address}: the broker sent {size} bytes that nothing asked for")
        reply = self._in_flight.popleft()
        self._silent_since_s = self._clock.now_s()
        correlation_id = frame.correlation_id(buffer)
        if correlation_id != reply.correlation_id:
            raise Corrupt(
                f"{self.address}: reply {correlation_id} came where {reply.correlation_id} ({reply.api.name}) was due"
            )
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s > %s v%d %d bytes", self.address, reply.api.name, reply.version, size)
        reply.frame = buffer
        return reply

    def _check_size(self, size: int) -> None:
        if 4 <= size <= self._max_response_bytes:
            return
        raw = size & 0xFFFFFFFF
        if raw >> 24 == _TLS_ALERT:
            hint = (
                "; that is a TLS alert: this listener speaks TLS (set security.protocol to SSL or SASL_SSL, or put the "
                "port of a listener without TLS into bootstrap.servers)"
            )
        elif raw == _HTTP:
            hint = "; that is an HTTP reply: this is no Kafka listener (check bootstrap.servers)"
        elif size > self._max_response_bytes:
            hint = f"; the cap is {self._max_response_bytes} bytes: ask for less (fetch.max.bytes)"
        else:
            hint = "; this is no Kafka listener, or its stream is broken"
        settings = ("bootstrap.servers", "fetch.max.bytes", "security.protocol")
        raise FrameTooLarge(f"{self.address}: the reply announces {size} bytes{hint}", settings=settings)

    def _raise_if_closed(self, reply: Reply | None = None) -> None:
        if self._closed is not None:
            what = f"; {reply.api.name} v{reply.version} was in flight" if reply else ""
            raise ConnectionLost(f"{self._closed}{what}") from self._closed
