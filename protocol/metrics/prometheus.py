"""Metrics for Prometheus: `pip install 'spark-kafka-source[prometheus]'`.

    from protocol.metrics.prometheus import start_http_server

    start_http_server(9400, consumer)

Names are those of Micrometer's binder for the Java client: `kafka_`, the group without `-metrics`, and the metric, such
as `kafka_consumer_fetch_manager_records_lag_max`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from protocol.errors import UsageError
from protocol.metrics.client_sensors import Histogram, Metric
from protocol.metrics.definitions import Definition, Kind, most_specific
from protocol.metrics.reporter import HasMetrics

__all__ = ["MetricsCollector", "prometheus_name", "start_http_server"]

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client import start_http_server as start_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise UsageError(
        "metrics for Prometheus need prometheus_client: pip install 'spark-kafka-source[prometheus]'"
    ) from error

_CLIENT_ID = "client-id"


class MetricsCollector(Collector):
    """A collector of `prometheus_client`, for `REGISTRY.register` or another registry.

    A metric that exists for a client and for each topic is exported for the topics only: their sum is that of the
    client.

    Parameters
    ----------
    *sources : Client, KafkaConsumer, Consumer, ConsumerGroup or Producer
        If consumers and producers share a client, name only one of them, or the client.
    """

    def __init__(self, *sources: HasMetrics) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Any]:
        """Return nothing: `prometheus_client` would collect the metrics at registration."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield the families of all sources. Raises `UsageError` if two clients have the same `client.id`."""
        families: dict[tuple[str, str, tuple[str, ...]], list[Metric]] = {}
        exported: set[tuple[str, str, tuple[tuple[str, str], ...]]] = set()
        for source in self._sources:
            for metric in source.metrics():
                identity = metric.group, metric.name, tuple(metric.tags.items())
                if identity in exported:
                    client_id = metric.tags[_CLIENT_ID]
                    raise UsageError(
                        f"client.id={client_id}: two clients with this name would have the same series in Prometheus. "
                        "Set client.id of each.",
                        settings=("client.id",),
                    )
                exported.add(identity)
                tags = tuple(tag for tag in metric.tags if tag != _CLIENT_ID)
                families.setdefault((metric.group, metric.name, tags), []).append(metric)
        for definition in most_specific():
            if metrics := families.get((definition.group, definition.name, definition.tags)):
                yield _family(definition, metrics)


def prometheus_name(definition: Definition) -> str:
    """Return the name of a metric in Prometheus."""
    return f"kafka_{definition.group.removesuffix('-metrics')}_{definition.name}".replace("-", "_")


def start_http_server(port: int, *sources: HasMetrics, address: str = "0.0.0.0") -> tuple[Any, Any]:  # noqa: S104
    """Serve the metrics of `sources` over HTTP, and no others.

    Parameters
    ----------
    port : int
        0: a free port.
    *sources : Client, KafkaConsumer, Consumer, ConsumerGroup or Producer
        As of `MetricsCollector`.
    address : str

    Returns
    -------
    (server, thread)
        As of `prometheus_client.start_http_server`: `server.server_port` is the port, `server.shutdown()` ends it
        and frees the port.
    """
    registry = CollectorRegistry()
    registry.register(MetricsCollector(*sources))
    return serve(port, address, registry)


def serve(port: int, address: str, registry: CollectorRegistry) -> tuple[Any, Any]:
    """Serve a registry over HTTP; returns as `start_http_server`."""
    server, thread = start_server(port, address, registry)
    end_loop = server.shutdown

    def shutdown() -> None:
        # With its loop alone ended, the server would accept connections and never reply.
        end_loop()
        server.server_close()

    server.shutdown = shutdown  # type: ignore[method-assign]
    return server, thread


def _family(definition: Definition, metrics: list[Metric]) -> Any:
    name = prometheus_name(definition)
    labels = [label.replace("-", "_") for label in (_CLIENT_ID, *definition.tags)]
    if definition.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(name, definition.description, labels=labels)
        for metric in metrics:
            assert isinstance(metric.value, Histogram)
            buckets = [("+Inf" if bound == float("inf") else f"{bound:.0f}", n) for bound, n in metric.value.counts]
            histogram.add_metric(list(metric.tags.values()), buckets, metric.value.total)
        return histogram
    kind = CounterMetricFamily if definition.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, definition.description, labels=labels)
    for metric in metrics:
        assert not isinstance(metric.value, Histogram)
        family.add_metric(list(metric.tags.values()), metric.value)
    return family
