"""Look a metric's value up."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.metrics.client_sensors import Histogram, Metric


def value_of(metrics: Iterable[Metric], name: str, group: str | None = None, **tags: str) -> float:
    """Return the value of the only metric with this name and these tags, besides `client-id`."""
    collected = [
        metric
        for metric in metrics
        if metric.name == name
        and group in (None, metric.group)
        and {key: value for key, value in metric.tags.items() if key != "client-id"} == tags
    ]
    (metric,) = collected
    assert not isinstance(metric.value, Histogram)
    return metric.value
