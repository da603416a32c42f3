"""Ways to observe the effect of a property or option: its outcome, its duration, a difference."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from protocol.base.clock import SYSTEM_CLOCK, Clock
from protocol.cluster.client import Client
from protocol.config import parse_client
from protocol.errors import KafkaError
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.plan.offsets import JsonDict
from tests.support.small_cluster import SmallCluster

Properties = Mapping[str, str]
Observe = Callable[[SmallCluster, dict[str, str]], object]

# Real time: 20 ms and 2500 ms differ clearly also on a busy machine.
SHORT, LONG, BETWEEN_S = "20", "2500", 2.0
# A port that a test has closed may be another process's by the next moment; no process has this one.
CLOSED_PORT = "127.0.0.1:1"


def client_of(cluster: SmallCluster, options: Properties, clock: Clock = SYSTEM_CLOCK) -> Client:
    return Client(parse_client({"bootstrap.servers": cluster.bootstrap_servers, **options}), clock)


def plan(reader: KafkaStreamReader, start: JsonDict) -> JsonDict:
    """Return the end of a query's next batch."""
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def first_batch(reader: KafkaStreamReader) -> JsonDict:
    """Return the end of a query's first batch, which also has its start (`@joined`)."""
    return plan(reader, reader.initialOffset())


def outcome(action: Callable[[], object]) -> str:
    """Return the name of the error of `action`, or "done"."""
    try:
        action()
    except KafkaError as error:
        return type(error).__name__
    return "done"


def took_long(action: Callable[[], object], error: str | None = None) -> bool:
    """Return whether `action` failed late; assert that it failed with this error."""
    began_s = time.monotonic()
    result = outcome(action)
    assert result == error if error else result != "done"
    return time.monotonic() - began_s > BETWEEN_S


def tens(number: float) -> int:
    """Return the nearest power of ten, to ignore jitter."""
    return int(10 ** round(math.log10(number)))


def assert_effects(name: str, observers: Mapping[str, tuple[Observe, dict[str, Any]]], *topics: str) -> None:
    """Assert that the values of a property or option have the expected effects, which differ."""
    observe, expected = observers[name]
    observed = {}
    for value in expected:
        with SmallCluster(*topics) as cluster:
            observed[value] = observe(cluster, {name: value})
    if DIFFER not in expected.values():
        assert observed == expected
    assert all(first != second for first, second in itertools.combinations(observed.values(), 2))


# Expected value of tables that only require two different observations.
DIFFER: Any = object()
