"""How a property, or an option, shows: in what an action comes to, how long it takes, what differs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from protocol.clock import SYSTEM_CLOCK, Clock
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from tests.ten_records import TenRecords

Properties = Mapping[str, str]
Observe = Callable[[TenRecords, dict[str, str]], object]

# Of real time: what ends after 20 ms and after 2500 is told apart on a busy machine, too.
SHORT, LONG, BETWEEN_S = "20", "2500", 2.0


def client_of(cluster: TenRecords, given: Properties, clock: Clock = SYSTEM_CLOCK) -> Client:
    return Client(parse_client({"bootstrap.servers": cluster.bootstrap_servers, **given}), clock)


def outcome(action: Callable[[], object]) -> str:
    """The name of the error of `action`, or "done"."""
    try:
        action()
    except KafkaError as error:
        return type(error).__name__
    return "done"


def took_long(action: Callable[[], object]) -> bool:
    began_s = time.monotonic()
    assert outcome(action) != "done"
    return time.monotonic() - began_s > BETWEEN_S


def tens(number: float) -> int:
    """The power of ten that a number with some jitter is about."""
    return int(10 ** round(math.log10(number)))


# The two values are told apart, whatever is seen.
DIFFER: Any = object()
