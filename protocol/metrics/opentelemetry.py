"""Metrics for OpenTelemetry: `pip install 'spark-kafka-source[opentelemetry]'`. Off until `observe` is called.

    from protocol.metrics.opentelemetry import observe

    observe(consumer)

The instruments are observable: the SDK reads them when it exports. Names are `kafka.`, the group without `-metrics`,
and the metric, such as `kafka.consumer_fetch_manager.records_lag_max`.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from protocol.base.clock import SYSTEM_CLOCK
from protocol.base.condition import Lock
from protocol.errors import UsageError
from protocol.metrics.client_sensors import Histogram, Metric
from protocol.metrics.definitions import Definition, Kind, most_specific
from protocol.metrics.reporter import HasMetrics

try:
    from opentelemetry.metrics import Meter, Observation, get_meter
except ImportError as error:
    raise UsageError(
        "metrics for OpenTelemetry need opentelemetry-api: pip install 'spark-kafka-source[opentelemetry]'"
    ) from error

_SAME_EXPORT_S = 0.1


def observe(source: HasMetrics, meter: Meter | None = None) -> None:
    """Create an observable instrument for each metric of a client, consumer or producer.

    Histograms have none: OpenTelemetry has no observable histogram. A metric that exists for a client and for each
    topic is exported for the topics only. The instruments stop reporting when `source` no longer exists.

    Parameters
    ----------
    source : Client, KafkaConsumer, Consumer, ConsumerGroup or Producer
    meter : opentelemetry.metrics.Meter, optional
        By default that of the global provider.
    """
    meter = meter or get_meter("spark-kafka-source")
    snapshots = _Snapshots(source)
    for definition in most_specific():
        if definition.kind is Kind.HISTOGRAM:
            continue
        create = meter.create_observable_counter if definition.kind is Kind.COUNTER else meter.create_observable_gauge
        callback: Callable[[Any], Iterator[Observation]] = partial(_observations, snapshots, definition)
        create(opentelemetry_name(definition), [callback], description=definition.description)


def opentelemetry_name(definition: Definition) -> str:
    """Return the name of a metric in OpenTelemetry."""
    return f"kafka.{definition.group.removesuffix('-metrics')}.{definition.name}".replace("-", "_")


class _Snapshots:
    """The metrics of a source, read once for all instruments of an export. Thread-safe."""

    def __init__(self, source: HasMetrics) -> None:
        self._source = weakref.ref(source)
        self._lock = Lock()
        self._read_at_s = float("-inf")
        self._values: dict[tuple[str, str, int], list[Metric]] = {}

    def of(self, definition: Definition) -> list[Metric]:
        with self._lock:
            source, now_s = self._source(), SYSTEM_CLOCK.now_s()
            if source is None:
                return []
            if now_s - self._read_at_s >= _SAME_EXPORT_S:
                self._values = {}
                for metric in source.metrics():
                    self._values.setdefault((metric.group, metric.name, len(metric.tags) - 1), []).append(metric)
                self._read_at_s = now_s
            return self._values.get((definition.group, definition.name, len(definition.tags)), [])


def _observations(snapshots: _Snapshots, definition: Definition, _: Any) -> Iterator[Observation]:
    for metric in snapshots.of(definition):
        if not isinstance(metric.value, Histogram) and not math.isnan(metric.value):
            yield Observation(metric.value, dict(metric.tags))
