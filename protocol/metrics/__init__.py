"""Metrics of a client, with the names of Kafka's Java client.

    for metric in consumer.metrics():
        print(metric.name, metric.value)

The names in `__all__` are the public API, with those of `protocol.metrics.prometheus` and
`protocol.metrics.opentelemetry`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.base.lazy_names import attach

if TYPE_CHECKING:
    from protocol.metrics.client_sensors import Histogram, Metric
    from protocol.metrics.definitions import Kind
    from protocol.metrics.reporter import MetricsReporter

_MODULES = {
    "protocol.metrics.client_sensors": "Histogram Metric",
    "protocol.metrics.definitions": "Kind",
    "protocol.metrics.reporter": "MetricsReporter",
}

__all__ = ["Histogram", "Kind", "Metric", "MetricsReporter"]


__getattr__, __dir__ = attach(__name__, _MODULES)
