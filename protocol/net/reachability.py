"""Which addresses have failed last, and from when on each may be connected to again. Pure: takes `now_s`.

Owned by `pool`, under its lock; `cluster.client` asks whom to prefer.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.clock import Backoff
from protocol.errors import KafkaError

Address = tuple[str, int]


@dataclass
class _Failing:
    backoff: Backoff
    at_s: float
    retry_at_s: float
    error: KafkaError


class Reachability:
    """The addresses that have failed since they answered last. Back-off as `reconnect.backoff.ms` and its maximum."""

    def __init__(self, initial_ms: float, maximum_ms: float) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms
        self._failing: dict[Address, _Failing] = {}

    def failed(self, address: Address, error: KafkaError, now_s: float) -> None:
        """A connection could not be opened, was lost, or brought no reply in time.

        Several that fail at the same time are one failure: the back-off grows once.
        """
        failing = self._failing.get(address)
        if failing is None:
            backoff = Backoff(self._initial_ms, self._maximum_ms)
            self._failing[address] = _Failing(backoff, now_s, now_s + backoff.next_s(), error)
            return
        if now_s >= failing.retry_at_s:
            failing.retry_at_s = now_s + failing.backoff.next_s()
        failing.at_s, failing.error = now_s, error

    def answered(self, address: Address) -> None:
        self._failing.pop(address, None)

    def failed_at_s(self, address: Address) -> float:
        """When it failed last; -inf: not since it answered."""
        failing = self._failing.get(address)
        return float("-inf") if failing is None else failing.at_s

    def failures(self, address: Address) -> int:
        """How often in a row, as far as the back-off counts."""
        failing = self._failing.get(address)
        return 0 if failing is None else failing.backoff.tries

    def too_early(self, address: Address, now_s: float) -> tuple[float, KafkaError] | None:
        """Seconds until it may be connected to, and why it failed; None: now."""
        failing = self._failing.get(address)
        if failing is None or now_s >= failing.retry_at_s:
            return None
        return failing.retry_at_s - now_s, failing.error
