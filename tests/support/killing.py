"""Kill (SIGKILL) the process that sends a given Kafka request, before or after the broker handles it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from protocol.wire.schema import Api
from tests.support.kafka_proxy import Ends, Exchange, Fate, KafkaProxy


@dataclass
class Kill:
    """Kills once: at the `nth` request of `api` whose body `matches`. The request, or its reply, is dropped.

    after: count only after a request of this API. answered: kill after the broker's reply.
    kill: called with the id of the sending process.
    """

    api: Api
    matches: Callable[[dict[str, Any]], bool] = lambda body: True
    nth: int = 1
    after: Api | None = None
    answered: bool = False
    kill: Callable[[int], None] = lambda pid: psutil.Process(pid).kill()
    done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: int = 0
    _awaited: Ends | None = None
    _begun: Callable[[], bool] = lambda: True

    def arm(self, proxy: KafkaProxy) -> None:
        """Start counting requests."""
        before = proxy.frame_counts[self.after.name, "request"] if self.after else -1
        self._begun = lambda: self.after is None or proxy.frame_counts[self.after.name, "request"] > before
        proxy.requests[self.api] = self._request
        proxy.replies[self.api] = self._reply

    def _request(self, exchange: Exchange) -> Fate:
        if self.done.is_set() or not self._begun() or not self.matches(exchange.request()):
            return Fate.PASS
        with self._lock:  # each connection has a thread
            self._seen += 1
            if self._seen != self.nth:
                return Fate.PASS
        if not self.answered:
            return self._kill(exchange.ends)
        self._awaited = exchange.ends
        return Fate.PASS

    def _reply(self, exchange: Exchange) -> Fate:
        if self._awaited != exchange.ends or self.done.is_set():
            return Fate.PASS
        return self._kill(exchange.ends)

    def _kill(self, ends: Ends) -> Fate:
        self.kill(_process_at(ends))
        self.done.set()
        return Fate.CUT


def _process_at(ends: Ends) -> int:
    """Return the process of a connection. Its local address may also belong to a connection to another address."""
    connections = psutil.net_connections("tcp4")
    owners = {
        connection.pid
        for connection in connections
        if (connection.laddr, connection.raddr) == ends and connection.pid is not None
    }
    assert len(owners) == 1, f"{ends} belongs to the processes {owners}"
    return owners.pop()
