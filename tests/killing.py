"""SIGKILL for whoever sends a given request of Kafka's protocol, before a broker gets it or when it has answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from protocol.wire.schema import Api
from tests.kafka_proxy import Exchange, Fate, KafkaProxy


@dataclass
class Kill:
    """Kills once: at the `nth` request of `api` that `matches` its body. The request, or its reply, is lost.

    after: do not count until a request of this API has come. answered: kill when a broker has answered it.
    kill: takes the id of the process that has sent it.
    """

    api: Api
    matches: Callable[[dict[str, Any]], bool] = lambda body: True
    nth: int = 1
    after: Api | None = None
    answered: bool = False
    kill: Callable[[int], None] = lambda pid: psutil.Process(pid).kill()
    done: threading.Event = field(default_factory=threading.Event)
    _seen: int = 0
    _awaited: tuple[str, int] | None = None
    _begun: Callable[[], bool] = lambda: True

    def arm(self, proxy: KafkaProxy) -> None:
        """From now on."""
        before = proxy.seen[self.after.name, "request"] if self.after else -1
        self._begun = lambda: self.after is None or proxy.seen[self.after.name, "request"] > before
        proxy.requests[self.api] = self._request
        proxy.replies[self.api] = self._reply

    def _request(self, exchange: Exchange) -> Fate:
        if self.done.is_set() or not self._begun() or not self.matches(exchange.request()):
            return Fate.PASS
        self._seen += 1
        if self._seen != self.nth:
            return Fate.PASS
        if not self.answered:
            return self._kill(exchange.client)
        self._awaited = exchange.client
        return Fate.PASS

    def _reply(self, exchange: Exchange) -> Fate:
        if self._awaited != exchange.client or self.done.is_set():
            return Fate.PASS
        return self._kill(exchange.client)

    def _kill(self, client: tuple[str, int]) -> Fate:
        self.kill(_process_at(client))
        self.done.set()
        return Fate.CUT


def _process_at(address: tuple[str, int]) -> int:
    """Whose socket that is."""
    for connection in psutil.net_connections("tcp4"):
        if connection.laddr == address and connection.pid is not None:
            return connection.pid
    raise AssertionError(f"nobody has {address}")
