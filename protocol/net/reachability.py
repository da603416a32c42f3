"""Failed addresses, and the time from which each may be connected to again. Sans-IO.

Owned by `pool`, under its lock. `cluster.client` prefers brokers that have not failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.base.clock import Backoff
from protocol.errors import KafkaError

Address = tuple[str, int]


@dataclass
class _Failing:
    backoff: Backoff
    at_s: float
    retry_at_s: float
    error: KafkaError


class Reachability:
    """Addresses that failed after their last reply, with back-off as configured by `reconnect.backoff.ms`."""

    def __init__(self, initial_ms: float, maximum_ms: float) -> None:
        self._initial_ms = initial_ms
        self._maximum_ms = maximum_ms
        self._failing: dict[Address, _Failing] = {}

    def failed(self, address: Address, error: KafkaError, now_s: float) -> None:
        """Record that a connection could not be opened, was lost, or had no reply in time.

        Failures during the back-off count as the same failure: the back-off grows once.
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
        """Record that the address works: forget its failures."""
        self._failing.pop(address, None)

    def failed_at_s(self, address: Address) -> float:
        """Return the time of the last failure; -inf if the address has replied since."""
        failing = self._failing.get(address)
        return float("-inf") if failing is None else failing.at_s

    def failures(self, address: Address) -> int:
        """Return the number of consecutive failures, as counted for the back-off."""
        failing = self._failing.get(address)
        return 0 if failing is None else failing.backoff.tries

    def current_backoff(self, address: Address, now_s: float) -> tuple[float, KafkaError] | None:
        """Return the seconds until the next attempt and the failure; None if the address may be tried now."""
        failing = self._failing.get(address)
        if failing is None or now_s >= failing.retry_at_s:
            return None
        return failing.retry_at_s - now_s, failing.error
