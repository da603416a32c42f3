"""Authenticate with a broker that takes every token, and return what it was sent."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from protocol.base.clock import SYSTEM_CLOCK, Clock, Deadline
from protocol.config import parse_client
from protocol.errors import KafkaError
from protocol.net.authenticate import Authenticator
from protocol.wire.messages.m17_sasl_handshake import SASL_HANDSHAKE
from protocol.wire.schema import Api
from tests.support.wall_clock import WallClock

EVENT_HUBS = "orders.servicebus.windows.net:9093"
MSK = "b-1.orders.abc123.c2.kafka.eu-north-1.amazonaws.com:9098"
BASE = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
TYPE, CONFIG = "sasl.oauthbearer.metadata.authentication.type", "sasl.oauthbearer.config"


class SigningIn:
    """A client's authentication. `sent` has the tokens; `fields` all fields of the last message."""

    def __init__(self, address: str, options: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        self._address, self._clock = address, clock
        self.config = parse_client({"bootstrap.servers": address, **BASE, **options})
        self._authenticator = Authenticator(self.config.sasl, clock)
        self.sent: list[str] = []
        self.fields: dict[str, str] = {}

    def again(self, timeout_s: float = 60) -> str:
        """Authenticate; return the token."""
        self._authenticator.authenticate(self._address, self._ask, Deadline.after_ms(1_000 * timeout_s, self._clock))
        return self.sent[-1]

    def _ask(self, api: Api, at_least: int, body: dict[str, Any], deadline: Deadline) -> Mapping[str, Any]:
        if api is not SASL_HANDSHAKE:
            parts = bytes(body["auth_bytes"]).decode().split("\x01")[1:-2]
            self.fields = dict(part.split("=", 1) for part in parts)
            self.sent.append(self.fields["auth"].removeprefix("Bearer "))
        return {"error_code": 0, "auth_bytes": b"", "session_lifetime_ms": 0}


def tokens_over_time(address: str, options: Mapping[str, str], waits_s: Sequence[float]) -> list[str]:
    """Return the token that a client sends after each of these waits."""
    clock = WallClock()
    client = SigningIn(address, options, clock)
    for wait_s in waits_s:
        clock.at_s += wait_s
        client.again()
    return client.sent


def failure(address: str, options: Mapping[str, str], timeout_s: float = 60) -> KafkaError:
    with pytest.raises(KafkaError) as failed:
        SigningIn(address, options).again(timeout_s)
    return failed.value


def all_that_shows(error: KafkaError) -> str:
    """Return the traceback with all variables, as error collectors record it."""
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())


def decoded(part: str) -> str:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode()


def jwt(**claims: Any) -> str:
    """Return a JSON Web Token, unsigned."""
    parts = (json.dumps(part).encode() for part in ({"alg": "none"}, claims))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "c2lnbmF0dXJl"])
