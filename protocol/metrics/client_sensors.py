"""The sensors of one client, and their values as metrics.

Connections, consumers and producers record events here; `Client.metrics` reads them. No method sends requests.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from protocol.base.condition import Lock
from protocol.errors import UsageError
from protocol.metrics.definitions import BROKER, CLIENT_GROUPS, DEFINITIONS, NODE_ID, TOPIC, Definition, Kind, Stat
from protocol.metrics.sensor import Family, Reading, Sensor, combined

Address = tuple[str, int]
Tags = tuple[tuple[str, str], ...]
Owner = TypeVar("Owner")

NO_NODE = -1
"""Node id of an address that no metadata name, such as a bootstrap server; as in Java."""
_NAN = float("nan")
_CLIENT_ID = "client-id"


@dataclass(frozen=True)
class Histogram:
    """Numbers of events by upper bound of their value, cumulative and in ascending order, and the sum of all values.

    The last bound is infinite, and its number is that of all events.
    """

    counts: tuple[tuple[float, int], ...]
    total: float

    @property
    def count(self) -> int:
        """Number of events."""
        return self.counts[-1][1]

    @property
    def mean(self) -> float:
        """Mean of all values; NaN without any."""
        return self.total / self.count if self.count else _NAN

    def quantile(self, fraction: float) -> float:
        """Return the bound below which this fraction of the values lies; NaN without any.

        Raises `UsageError`: the fraction is not from 0 to 1.
        """
        if not 0 <= fraction <= 1:
            raise UsageError(f"the fraction of a quantile is {fraction!r}; it must be from 0 to 1")
        if not self.count:
            return _NAN
        return next(bound for bound, count in self.counts if count >= fraction * self.count)


@dataclass(frozen=True)
class Metric:
    """One metric with its value.

    Attributes
    ----------
    name, group : str
        As in Kafka's Java client, see docs/metrics.md.
    tags : mapping of str to str
        `client-id`, and for some metrics `node-id` and `broker`, or `topic` and `partition`.
    value : float or Histogram
        NaN for a mean or a maximum without events in the last minute.
    description : str
    kind : Kind
    """

    name: str
    group: str
    tags: Mapping[str, str]
    value: float | Histogram
    description: str
    kind: Kind = Kind.GAUGE

    def __str__(self) -> str:
        tags = ", ".join(f"{name}={value}" for name, value in self.tags.items())
        value = f"mean {self.value.mean:g}" if isinstance(self.value, Histogram) else f"{self.value:g}"
        return f"{self.group} {self.name} {{{tags}}} {value}"


@dataclass(frozen=True)
class _Gauge:
    owner: weakref.ref[Any]
    read: Callable[[Any], Iterable[tuple[Tags, float]]]


class ClientSensors:
    """All sensors of a client. Thread-safe. Values of an event follow its time in seconds.

    `requests`: a request was sent: bytes.
    `replies`: a reply was decoded: latency in ms, bytes, throttle time in ms.
    `connections`, `failed_authentications`: a connection was opened, or refused the credentials: no values.
    `polls`: `poll` was called: ms since the previous call.
    `fetches`: a reply to Fetch had records: bytes of its record batches.
    `partition_replies`: the records of one partition in a reply were delivered: number.
    `consumed`: records of a topic were delivered: number, and bytes of the record batches begun.
    `filtered`: a filter left out records of a topic: number.
    `lag`: records were delivered: the lag of their partition.
    `rebalances`: a rebalance was completed: ms.
    `produced`: a record batch of a topic was sent: records, bytes, ms since it was encoded, compressed over
    uncompressed size.
    `produce_requests`: a Produce request was sent: no values.
    `retried`, `failed`: a record batch of a topic was sent again, or given up: records.
    `splits`: a record batch was split, since a broker found it too large: no values.
    `record_sizes`: records were accepted: bytes of the largest, bytes of all, number. Bytes are those without
    compression.
    `exhausted`: records were refused, since `buffer.memory` stayed full: number.
    `flushes`, `metadata_waits`, `memory_waits`: a producer's `flush`, or its wait for a topic that is not in the cached
    metadata or for `buffer.memory`, has ended: ns.
    `txn_init`, `txn_begin`, `txn_send_offsets`, `txn_commit`, `txn_abort`, `txn_prepare`: a call of a transactional
    producer has returned: ns.
    """

    def __init__(self, client_id: str = "") -> None:
        self.requests: Family[Address] = Family(1)
        self.replies: Family[tuple[Address, int]] = Family(3, buckets=True)
        self.connections = Sensor(0)
        self.failed_authentications = Sensor(0)
        self.polls = Sensor(1)
        self.fetches = Sensor(1)
        self.partition_replies = Sensor(1, buckets=True)
        self.consumed: Family[str] = Family(2)
        self.filtered: Family[str] = Family(1)
        self.lag = Sensor(1)
        self.rebalances = Sensor(1)
        self.produced: Family[str] = Family(4)
        self.produce_requests = Sensor(0)
        self.retried: Family[str] = Family(1)
        self.failed: Family[str] = Family(1)
        self.splits = Sensor(0)
        self.record_sizes = Sensor(3)
        self.exhausted = Sensor(1)
        self.flushes = Sensor(1)
        self.memory_waits = Sensor(1)
        self.metadata_waits = Sensor(1)
        self.txn_init = Sensor(1)
        self.txn_begin = Sensor(1)
        self.txn_send_offsets = Sensor(1)
        self.txn_commit = Sensor(1)
        self.txn_abort = Sensor(1)
        self.txn_prepare = Sensor(1)
        self._client_id = client_id
        self._lock = Lock()  # guards the fields below
        self._groups = set(CLIENT_GROUPS)
        self._gauges: dict[str, list[_Gauge]] = {}

    def use(self, groups: Collection[str]) -> None:
        """Report metrics of these groups from now on."""
        with self._lock:
            self._groups.update(groups)

    def add_gauge(self, name: str, owner: Owner, read: Callable[[Owner], Iterable[tuple[Tags, float]]]) -> None:
        """Report values of an object for as long as it exists.

        `name`: name of a metric whose definition has no sensor.
        `read`: returns the values of `owner` by tags. Must not refer to `owner` itself.
        """
        with self._lock:
            alive = [gauge for gauge in self._gauges.get(name, ()) if gauge.owner() is not None]
            self._gauges[name] = [*alive, _Gauge(weakref.ref(owner), read)]

    # -- reading ------------------------------------------------------------------------------

    def read(
        self, now_s: float, node_ids: Mapping[Address, int], groups: Collection[str] | None = None
    ) -> list[Metric]:
        """Return all metrics.

        `node_ids`: known brokers by address.
        `groups`: groups to return; by default all that are in use.
        """
        with self._lock:
            chosen = self._groups.intersection(self._groups if groups is None else groups)
        reader = _Reader(self, now_s, node_ids)
        return [
            Metric(
                definition.name,
                definition.group,
                dict(((_CLIENT_ID, self._client_id), *tags)),
                value,
                definition.description,
                definition.kind,
            )
            for definition in DEFINITIONS
            if definition.group in chosen
            for tags, value in reader.values(definition)
        ]

    def gauge_values(self, definition: Definition) -> dict[Tags, float]:
        """Return the values of objects, combined if they have the same tags."""
        with self._lock:
            gauges = list(self._gauges.get(definition.name, ()))
        combine = sum if definition.stat is Stat.SUM_OF_GAUGES else max
        values_by_tags: dict[Tags, list[float]] = {}
        for gauge in gauges:
            if (owner := gauge.owner()) is not None:
                for tags, value in gauge.read(owner):
                    values_by_tags.setdefault(tags, []).append(value)
        return {tags: float(combine(values)) for tags, values in values_by_tags.items()}


class NodeSensors:
    """The sensors of requests to one address.

    `sent`: a request was sent: bytes.
    """

    def __init__(self, sensors: ClientSensors, address: Address) -> None:
        self.sent = sensors.requests[address]
        self._replies = sensors.replies
        self._address = address
        self._of_api: dict[int, Sensor] = {}

    def answered(self, api_key: int) -> Sensor:
        """Return the sensor of decoded replies: latency in ms, bytes, throttle time in ms."""
        sensor = self._of_api.get(api_key)
        if sensor is None:
            sensor = self._of_api[api_key] = self._replies[self._address, api_key]
        return sensor


class _Reader:
    """One reading of all sensors: each is read once."""

    def __init__(self, sensors: ClientSensors, now_s: float, node_ids: Mapping[Address, int]) -> None:
        self._sensors = sensors
        self._now_s = now_s
        self._node_ids = node_ids
        self._by_label: dict[str, Mapping[Any, Reading]] = {}
        self._by_tags: dict[tuple[str, tuple[str, ...], tuple[int, ...]], dict[Tags, Reading]] = {}
        self._gauges: dict[str, dict[Tags, float]] = {}

    def values(self, definition: Definition) -> list[tuple[Tags, float | Histogram]]:
        if definition.is_gauge:
            return list(self._of_gauge(definition).items())
        readings = self._readings(definition.sensor, definition.tags, definition.apis)
        return [(tags, self._value(definition, reading)) for tags, reading in readings.items()]

    def _value(self, definition: Definition, reading: Reading) -> float | Histogram:
        at = definition.value
        match definition.stat:
            case Stat.TOTAL:
                return reading.totals[at]
            case Stat.RATE:
                return reading.rates[at]
            case Stat.NS_RATIO:
                return reading.rates[at] / 1e9
            case Stat.COUNT:
                return float(reading.count)
            case Stat.COUNT_RATE:
                return reading.count_rate
            case Stat.COUNT_RATE_PER_HOUR:
                return reading.count_rate * 3600
            case Stat.AVG:
                divisor = self._divisor(definition, reading)
                return reading.recent_totals[at] / divisor if divisor else _NAN
            case Stat.MAX:
                return self._maximum(definition, reading.maxima[at])
            case Stat.SECONDS_AGO:
                return self._now_s - reading.last_s if reading.count else -1.0
            case _:
                return _histogram(reading)

    def _divisor(self, definition: Definition, reading: Reading) -> float:
        if definition.over is not None:
            return reading.recent_totals[definition.over]
        return self._readings(definition.per, (), ())[()].recent_count if definition.per else reading.recent_count

    def _maximum(self, definition: Definition, largest: float) -> float:
        if definition.gauge:
            (of_gauge,) = (gauges for gauges in DEFINITIONS if gauges.name == definition.gauge)
            largest = max([largest, *self._of_gauge(of_gauge).values()])
        return largest if largest > float("-inf") else _NAN

    def _of_gauge(self, definition: Definition) -> dict[Tags, float]:
        if definition.name not in self._gauges:
            self._gauges[definition.name] = self._sensors.gauge_values(definition)
        return self._gauges[definition.name]

    def _readings(self, name: str, tags: tuple[str, ...], apis: tuple[int, ...]) -> dict[Tags, Reading]:
        """Return the readings of a sensor by tags."""
        key = name, tags, apis
        if key not in self._by_tags:
            grouped: dict[Tags, list[Reading]] = {} if tags else {(): []}
            for label, reading in self._labelled(name).items():
                if not apis or label[1] in apis:
                    grouped.setdefault(self._tags(label, tags), []).append(reading)
            values = getattr(self._sensors, name).values
            self._by_tags[key] = {tags: combined(readings, values) for tags, readings in grouped.items()}
        return self._by_tags[key]

    def _labelled(self, name: str) -> Mapping[Any, Reading]:
        if name not in self._by_label:
            sensor = getattr(self._sensors, name)
            self._by_label[name] = (
                {None: sensor.read(self._now_s)} if isinstance(sensor, Sensor) else sensor.read(self._now_s)
            )
        return self._by_label[name]

    def _tags(self, label: Any, tags: tuple[str, ...]) -> Tags:
        if tags == (TOPIC,):
            return ((TOPIC, label),)
        if tags == (NODE_ID, BROKER):
            address = label[0] if isinstance(label[0], tuple) else label
            node_id = self._node_ids.get(address, NO_NODE)
            return ((NODE_ID, f"node-{node_id}"), (BROKER, f"{address[0]}:{address[1]}"))
        return ()


def _histogram(reading: Reading) -> Histogram:
    counts: list[tuple[float, int]] = []
    below = 0
    for power in range(max(reading.buckets, default=-1) + 1):
        below += reading.buckets.get(power, 0)
        counts.append((float(2**power), below))
    return Histogram((*counts, (float("inf"), reading.count)), reading.totals[0])
