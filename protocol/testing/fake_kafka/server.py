"""The model with sockets: a listener on a loopback port for each broker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TypeVar

from protocol.clock import SYSTEM_CLOCK, Clock
from protocol.testing.fake_broker import CUT, FakeBroker, Handler, kept_port
from protocol.testing.fake_kafka.cluster import Cluster
from protocol.testing.fake_kafka.faults import Fault, Kind
from protocol.testing.fake_kafka.handlers import VERSIONS
from protocol.testing.fake_kafka.older_versions import newest_request, reply_in
from protocol.testing.fake_kafka.requests import Body, Pending, Request
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.schema import Api

_LOOK_AGAIN_S = 0.01
"""Maximum time until a pending reply notices a jump of the clock; other events are noticed immediately."""


_Cluster = TypeVar("_Cluster", bound="FakeKafka")


class FakeKafka(Cluster):
    """A cluster that accepts connections until it is closed.

    Attributes
    ----------
    handlers
        By API: a test's handlers in place of the model's, as in `FakeBroker`. `listeners[broker]` has handlers of one
        broker, by API key.
    before
        By API: a function called with each request before it is handled, to change the cluster in between.
    requests
        All requests of all brokers: (API name, version, body).
    """

    def __init__(
        self, brokers: int = 1, *, clock: Clock = SYSTEM_CLOCK, settings: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(brokers, clock=clock, settings=settings)
        self.handlers: dict[Api, Handler] = {}
        self.before: dict[Api, Callable[[Body], object]] = {}
        self.requests: list[tuple[str, int, Body]] = []
        self.closed = False
        self._kept: dict[int, socket.socket] = {}
        self.listeners = {node_id: _Listener(self, node_id) for node_id in self.brokers}
        self.addresses = {node_id: (each.host, each.port) for node_id, each in self.listeners.items()}

    def __enter__(self: _Cluster) -> _Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True
        for listener in self.listeners.values():
            listener.close()
        for kept in self._kept.values():
            kept.close()

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.address, self.brokers))

    def address(self, broker_id: int = 1) -> str:
        host, port = self.addresses[broker_id]
        return f"{host}:{port}"

    def asked(self, api: Api) -> list[Body]:
        """Return the bodies of all requests of one API, in order."""
        return [body for name, _, body in list(self.requests) if name == api.name]

    def stop(self, broker_id: int) -> None:
        self.listeners[broker_id].close()
        self._kept[broker_id] = kept_port(self.addresses[broker_id][1])
        super().stop(broker_id)

    def start(self, broker_id: int) -> None:
        self._kept.pop(broker_id).close()
        self.listeners[broker_id] = _Listener(self, broker_id, self.addresses[broker_id][1])
        super().start(broker_id)

    def move(self, broker_id: int) -> None:
        """Stop the broker, and start it at another address."""
        self.listeners[broker_id].close()
        super().stop(broker_id)
        moved = self.listeners[broker_id] = _Listener(self, broker_id)
        self.addresses[broker_id] = moved.host, moved.port
        super().start(broker_id)


class _Listener(FakeBroker):
    """The sockets of one broker."""

    def __init__(self, kafka: FakeKafka, broker_id: int, port: int = 0) -> None:
        self._kafka = kafka
        self._broker_id = broker_id
        super().__init__(port=port)

    def answer(self, api: Api, version: int, client_id: str | None, body: Body) -> Body | bytes | None:
        kafka = self._kafka
        kafka.requests.append((api.name, version, body))
        kafka.before.get(api, _nothing)(body)
        own = self.handlers.get(api.key) or kafka.handlers.get(api)
        if own is not None:
            return own(body, version)
        first, last = VERSIONS.get(api, (1, 0))
        if not first <= version <= last:
            return CUT
        if kafka.brokers[self._broker_id].silent:
            return None
        if self._fault(Kind.REQUEST_LOST, api):
            return CUT
        request = Request(api, version, newest_request(api, version, body), client_id or "")
        reply = self._when_due(kafka.handle(self._broker_id, request))
        if self._fault(Kind.REPLY_LOST, api):
            return CUT
        late = self._fault(Kind.REPLY_LATE, api)
        if late:
            until_s = kafka.clock.now_s() + late.late_s
            self._when_due(lambda: {} if kafka.clock.now_s() >= until_s else None)
        edited = self._fault(Kind.REPLY_EDITED, api)
        if edited:
            changed = edited.edit(reply)
            return reply_in(api, version, changed) if isinstance(changed, dict) else changed
        if kafka.brokers[self._broker_id].silent:
            return None
        return _without_answer(reply) if api is PRODUCE and body["acks"] == 0 else reply_in(api, version, reply)

    def _fault(self, kind: Kind, api: Api) -> Fault | None:
        return self._kafka.fault(kind, api, self._broker_id)

    def _when_due(self, reply: Body | Pending) -> Body:
        """Wait for a pending reply."""
        kafka = self._kafka
        while callable(reply):
            with kafka.changed:
                found = kafka.look(reply)
                if found is not None or kafka.closed:
                    return found or {}
                kafka.changed.wait(_LOOK_AGAIN_S)
        return reply


def _nothing(body: Body) -> None:
    pass


def _without_answer(reply: Body) -> bytes | None:
    """Handle acks=0, which has no reply: an error closes the connection."""
    rows = (row for topic in reply["responses"] for row in topic["partition_responses"])
    return CUT if any(row["error_code"] for row in rows) else None
