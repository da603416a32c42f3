"""A TCP proxy for all brokers of a real Kafka that decodes frames: tests drop, delay or replace single frames.

Addresses in metadata and coordinator replies are rewritten, so that a client that bootstraps from the proxy reaches all
brokers through it. Works for any client whose API versions `protocol.wire` supports.

    with KafkaProxy.of(kafka) as proxy:
        proxy.replies[PRODUCE] = lambda exchange: Fate.CUT if exchange.number % 3 == 0 else Fate.PASS
        client = Client(ClientConfig(proxy.bootstrap_servers))
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from protocol.wire import frame
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA
from protocol.wire.messages.m10_find_coordinator import FIND_COORDINATOR
from protocol.wire.messages.m60_describe_cluster import DESCRIBE_CLUSTER
from protocol.wire.registry import API_BY_KEY
from protocol.wire.schema import Api

_REQUEST_HEADER = struct.Struct(">hhi")
# Replies that contain broker addresses, and the path of their rows.
_ADDRESSES = {
    PRODUCE: "node_endpoints",
    METADATA: "brokers",
    FIND_COORDINATOR: "coordinators",
    DESCRIBE_CLUSTER: "brokers",
}


class Fate(Enum):
    """The treatment of a frame."""

    PASS = "goes on"
    CUT = "is lost, and the connection is reset"


Ends = tuple[tuple[str, int], tuple[str, int]]
"""The addresses of the client and of the proxy."""


@dataclass(frozen=True)
class Exchange:
    """One request, or its reply. `number` counts this API's frames of this direction, from 1, over all brokers."""

    broker_id: int
    api: Api
    version: int
    number: int
    frame: bytes
    """Without the size in front."""
    ends: Ends
    """The addresses of its connection."""

    def request(self) -> dict[str, Any]:
        return frame.decode_request(self.frame)[4]

    def reply(self) -> dict[str, Any]:
        return frame.decode_response(self.api, self.version, memoryview(self.frame))

    def reply_with(self, body: Mapping[str, Any]) -> bytes:
        """Return the reply with another body, for a rule of `replies`."""
        correlation_id = frame.correlation_id(self.frame)
        return b"".join(frame.encode_response(self.api, self.version, correlation_id, dict(body)))[4:]


# Broker id and connection.
_Where = tuple[int, Ends]

# A rule returns a fate, a delay in seconds, or a replacement frame.
Rule = Callable[[Exchange], "Fate | float | bytes"]


@dataclass
class KafkaProxy:
    """Listens on a free loopback port per broker. `requests` and `replies` contain the rules, by API."""

    brokers: Mapping[int, tuple[str, int]]
    requests: dict[Api, Rule] = field(default_factory=dict)
    replies: dict[Api, Rule] = field(default_factory=dict)
    frame_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many frames of each (API name, "request" or "reply") have come."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._servers = {broker_id: socket.create_server(("127.0.0.1", 0)) for broker_id in self.brokers}
        self._sockets: dict[int, list[socket.socket]] = {broker_id: [] for broker_id in self.brokers}
        self._ports = {broker_id: server.getsockname()[1] for broker_id, server in self._servers.items()}
        for broker_id in self.brokers:
            threading.Thread(target=self._accept, args=(broker_id,), daemon=True).start()

    @classmethod
    def of(cls, kafka: Any) -> KafkaProxy:
        """Return a proxy for a `LocalKafka`."""
        brokers = {}
        for broker_id in kafka.broker_ids:
            host, port = kafka.address(broker_id).rsplit(":", 1)
            brokers[broker_id] = (host, int(port))
        return cls(brokers)

    @property
    def bootstrap_servers(self) -> tuple[tuple[str, int], ...]:
        return tuple(("127.0.0.1", port) for port in self._ports.values())

    @property
    def servers(self) -> str:
        """`bootstrap_servers` for clients: host:port,host:port,…"""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap_servers)

    def __enter__(self) -> KafkaProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for server in self._servers.values():
            # shutdown() wakes the thread in accept()
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        self.cut()

    def cut(self, broker_id: int | None = None) -> None:
        """Reset all open connections, or those to one broker."""
        for number in self._sockets if broker_id is None else [broker_id]:
            with self._lock:
                sockets, self._sockets[number] = self._sockets[number], []
            for connection in sockets:
                _reset(connection)

    # -- threads ------------------------------------------------------------------------------

    def _accept(self, broker_id: int) -> None:
        while True:
            try:
                client, _ = self._servers[broker_id].accept()
            except OSError:
                return
            try:
                where = (broker_id, (client.getpeername(), client.getsockname()))
                broker = socket.create_connection(self.brokers[broker_id], timeout=5)
            except OSError:
                _reset(client)
                continue
            broker.settimeout(None)
            for closable in (client, broker):
                closable.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets[broker_id] += [client, broker]
            requested: dict[int, tuple[Api, int]] = {}
            for pump in (self._pump_requests, self._pump_replies):
                threading.Thread(target=pump, args=(where, client, broker, requested), daemon=True).start()

    def _pump_requests(
        self, where: _Where, client: socket.socket, broker: socket.socket, requested: dict[int, tuple[Api, int]]
    ) -> None:
        with contextlib.suppress(OSError):
            while (request := _read_frame(client)) is not None:
                key, version, correlation_id = _REQUEST_HEADER.unpack_from(request)
                api = API_BY_KEY[key]
                requested[correlation_id] = (api, version)
                fated = self._fated(self.requests, "request", where, api, version, request)
                if fated is None:
                    break
                broker.sendall(_sized(fated))
        _reset(client)
        _reset(broker)

    def _pump_replies(
        self, where: _Where, client: socket.socket, broker: socket.socket, requested: dict[int, tuple[Api, int]]
    ) -> None:
        with contextlib.suppress(OSError):
            while (reply := _read_frame(broker)) is not None:
                api, version = requested.pop(frame.correlation_id(reply))
                fated = self._fated(self.replies, "reply", where, api, version, reply)
                if fated is None:
                    break
                client.sendall(_sized(self._through_here(api, version, fated)))
        _reset(client)
        _reset(broker)

    def _fated(
        self, rules: Mapping[Api, Rule], direction: str, where: _Where, api: Api, version: int, bytes_: bytes
    ) -> bytes | None:
        with self._lock:
            self.frame_counts[api.name, direction] += 1
            number = self.frame_counts[api.name, direction]
        rule = rules.get(api)
        fate = rule(Exchange(where[0], api, version, number, bytes_, where[1])) if rule else Fate.PASS
        if fate is Fate.CUT:
            return None
        if isinstance(fate, bytes):
            return fate
        if isinstance(fate, (int, float)):
            time.sleep(fate)
        return bytes_

    def _through_here(self, api: Api, version: int, reply: bytes) -> bytes:
        """Return the reply with broker addresses replaced by those of the proxy."""
        if api not in _ADDRESSES:
            return reply
        body = frame.decode_response(api, version, memoryview(reply))
        key = "broker_id" if api is DESCRIBE_CLUSTER else "node_id"
        rows = [*body[_ADDRESSES[api]], *([body] if api is FIND_COORDINATOR else [])]
        if not rows:
            return reply
        for row in rows:
            if row.get(key) in self._ports:
                row.update(host="127.0.0.1", port=self._ports[row[key]])
        return b"".join(frame.encode_response(api, version, frame.correlation_id(reply), body))[4:]


def _read_frame(connection: socket.socket) -> bytes | None:
    size = _read(connection, 4)
    return None if size is None else _read(connection, int.from_bytes(size, "big"))


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _sized(bytes_: bytes) -> bytes:
    return len(bytes_).to_bytes(4, "big") + bytes_


def _reset(connection: socket.socket) -> None:
    """Close the connection with RST, as a killed broker does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
