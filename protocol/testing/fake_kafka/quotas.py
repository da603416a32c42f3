"""Client quotas, and throttle times of Produce and Fetch (KIP-13, KIP-546).

As in Kafka, a quota is the mean rate over the last ten seconds, so a client that was idle before may exceed it for a
short time. A reply is sent at once, with its throttle time (KIP-219). Unlike Kafka, this model does not delay further
requests of the connection.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.broker_errors import ErrorCode
from protocol.testing.fake_kafka.requests import Body, Refused, Request

PRODUCED, CONSUMED = "producer_byte_rate", "consumer_byte_rate"

# `quota.window.num` less the present window, times `quota.window.size.seconds`.
_WINDOW_S = 10.0
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"
_OF_CLIENTS = (PRODUCED, CONSUMED, "request_percentage", "controller_mutation_rate")
_OF_ADDRESSES = ("connection_creation_rate",)

Entity = frozenset[tuple[str, str | None]]
"""Types of entities with their names; None is the default entity."""


class Quotas:
    """All quotas of a cluster, and the time until which the bytes of each client are within its rate."""

    def __init__(self) -> None:
        self.values: dict[Entity, dict[str, float]] = {}
        self._paid_until_s: dict[tuple[int, str, Entity], float] = {}

    def limit_bytes(self, quota: str, request: Request) -> float:
        """Return the maximum bytes of one reply; infinite without a quota."""
        _, rate = self._applying(quota, request)
        return rate * _WINDOW_S

    def throttle_ms(self, quota: str, broker_id: int, request: Request, size_bytes: int, now_s: float) -> int:
        """Return the throttle time in ms that a request would have after `count` of its bytes. Counts nothing."""
        sharers, rate = self._applying(quota, request)
        paid_until_s = max(self._paid_until_s.get((broker_id, quota, sharers), 0.0), now_s)
        return max(0, round((paid_until_s + size_bytes / rate - now_s - _WINDOW_S) * 1000))

    def count(self, quota: str, broker_id: int, request: Request, size_bytes: int, now_s: float) -> None:
        """Count the bytes of a request."""
        sharers, rate = self._applying(quota, request)
        if rate < float("inf"):
            key = broker_id, quota, sharers
            self._paid_until_s[key] = max(self._paid_until_s.get(key, 0.0), now_s) + size_bytes / rate

    def _applying(self, quota: str, request: Request) -> tuple[Entity, float]:
        """Return the user and client id that share the most specific quota, and its value."""
        if not self.values:
            return frozenset(), float("inf")
        user, client_id = request.principal.removeprefix("User:"), request.client_id
        for names in _levels(user, client_id):
            values = self.values.get(frozenset(names.items()), {})
            if quota in values:
                actual = {_USER: user, _CLIENT_ID: client_id}
                return frozenset((kind, actual[kind]) for kind in names), values[quota]
        return frozenset(), float("inf")


def _levels(user: str, client_id: str) -> Iterator[dict[str, str | None]]:
    """Yield entities from the most to the least specific one, in Kafka's order."""
    for name in (user, None):
        yield {_USER: name, _CLIENT_ID: client_id}
        yield {_USER: name, _CLIENT_ID: None}
        yield {_USER: name}
    yield {_CLIENT_ID: client_id}
    yield {_CLIENT_ID: None}


def check_quota(entity: Entity, operation: Body) -> None:
    """Raise `Refused` for an operation of AlterClientQuotas that is not valid for the entity."""
    kinds, key, value = {kind for kind, _ in entity}, operation["key"], operation["value"]
    if not kinds or not (kinds <= {_USER, _CLIENT_ID} or kinds == {_IP}):
        raise Refused(ErrorCode.INVALID_REQUEST, error_message="Invalid client quota entity")
    if key not in (_OF_ADDRESSES if kinds == {_IP} else _OF_CLIENTS):
        raise Refused(ErrorCode.INVALID_REQUEST, error_message=f"Invalid configuration key {key}")
    if not operation["remove"] and value <= 0:
        raise Refused(ErrorCode.INVALID_REQUEST, error_message=f"Quota {key} must be greater than 0")
