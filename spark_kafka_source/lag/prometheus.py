"""Lag for Prometheus, under the names of kafka_exporter and Kafka Lag Exporter, which dashboards already have.

Needs the extra `prometheus`. Served by `pykafka groups lag --serve` for groups, and by `LagListener.serve` for the
queries of a Spark session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.errors import UsageError
from spark_kafka_source.lag.table import Lag, smallest_first

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as error:
    raise UsageError(
        "lag for Prometheus needs prometheus_client: pip install 'spark-kafka-source[prometheus]'"
    ) from error

from protocol.metrics.prometheus import serve as serve_registry

_PARTITION = ("consumergroup", "query", "topic", "partition")
NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "kafka_consumergroup_lag": ("offsets from the committed one to the log end", _PARTITION),
    "kafka_consumergroup_current_offset": ("the committed offset", _PARTITION),
    "kafka_consumergroup_group_lag_seconds": ("age of the next record to read", _PARTITION),
    "kafka_consumergroup_members": ("members of the group", ("consumergroup",)),
    "kafka_topic_partition_current_offset": ("the log end", ("topic", "partition")),
    "spark_streaming_query_active": ("1 while the query runs, 0 after its end", ("query",)),
    "spark_streaming_input_rows_per_second": ("rows read per second since the trigger before", ("query",)),
    "spark_streaming_processed_rows_per_second": ("rows per second of the last trigger's duration", ("query",)),
    "spark_streaming_batch_duration_seconds": ("time of the last trigger", ("query",)),
}
"""Meaning and labels by name."""

_RATES = {
    "inputRowsPerSecond": ("spark_streaming_input_rows_per_second", 1.0),
    "processedRowsPerSecond": ("spark_streaming_processed_rows_per_second", 1.0),
    "batchDuration": ("spark_streaming_batch_duration_seconds", 0.001),
}


@dataclass(frozen=True)
class NamedLag:
    """The lag of a group or a query.

    `name`: the group, or the name of the query.
    `members`: None for a query.
    `progress`: a query's progress, for its rates and the time of its trigger.
    `active`: True while the query runs; None for a group.
    `groups`: groups that the sources of a query commit to. Sources without a group have the query's name in their
    place.
    """

    name: str
    lag: Lag
    members: int | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    active: bool | None = None
    groups: Mapping[int | None, str] = field(default_factory=dict)


class LagCollector(Collector):
    """A collector of `prometheus_client`.

    `read`: returns the present lags; called for each scrape, in its thread.
    """

    def __init__(self, read: Callable[[], Iterable[NamedLag]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Any]:
        """Return nothing; without this method, `prometheus_client` would call `collect` at registration."""
        return ()

    def collect(self) -> Iterator[Any]:
        """Yield the families that have values."""
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in NAMES.items()}
        ends: dict[tuple[str, str], int] = {}
        for lag in self._read():
            query = "" if lag.active is None else lag.name
            # Two sources may read a partition in the same group, and a scrape may have each series once.
            rows = {(lag.groups.get(row.source, lag.name), row[:2]): row for row in smallest_first(lag.lag)}
            for (group, _), row in rows.items():
                place = row.topic, str(row.partition)
                values = {
                    "kafka_consumergroup_lag": row.offsets_behind,
                    "kafka_consumergroup_current_offset": row.committed,
                    "kafka_consumergroup_group_lag_seconds": row.seconds_behind,
                }
                for name, value in values.items():
                    if value is not None:
                        families[name].add_metric([group, query, *place], value)
                if row.end is not None:
                    ends[place] = max(row.end, ends.get(place, row.end))
            if lag.members is not None:
                families["kafka_consumergroup_members"].add_metric([lag.name], lag.members)
            if lag.active is not None:
                families["spark_streaming_query_active"].add_metric([lag.name], lag.active)
            for key, (name, factor) in _RATES.items():
                if isinstance(lag.progress.get(key), (int, float)):
                    families[name].add_metric([lag.name], lag.progress[key] * factor)
        for place, end in ends.items():
            families["kafka_topic_partition_current_offset"].add_metric(list(place), end)
        yield from (family for family in families.values() if family.samples)


def serve(port: int, read: Callable[[], Iterable[NamedLag]], address: str = "0.0.0.0") -> tuple[Any, Any]:  # noqa: S104
    """Serve lags over HTTP, as `LagListener.serve`; `read` as of `LagCollector`."""
    registry = CollectorRegistry()
    registry.register(LagCollector(read))
    return serve_registry(port, address, registry)
