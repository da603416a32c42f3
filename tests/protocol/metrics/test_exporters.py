"""Readers of metrics: a callback, Prometheus, OpenTelemetry."""

from __future__ import annotations

import gc
import logging
import math
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from protocol import Client, KafkaConsumer, UsageError
from protocol.metrics.definitions import DEFINITIONS, most_specific
from protocol.metrics.opentelemetry import observe
from protocol.metrics.prometheus import MetricsCollector, prometheus_name, start_http_server
from protocol.metrics.reporter import MetricsReporter
from tests.protocol.metrics.values import value_of
from tests.support.small_cluster import END, PARTITIONS, SmallCluster
from tests.support.wait_until import wait_until


@pytest.fixture
def consumer() -> Iterator[KafkaConsumer]:
    """A consumer that has read all 20 records of `orders`."""
    properties = {"client.id": "etl", "auto.offset.reset": "earliest"}
    with SmallCluster() as fake, KafkaConsumer(properties, bootstrap_servers=fake.bootstrap_servers) as opened:
        opened.assign([("orders", partition) for partition in range(PARTITIONS)])
        rows = 0
        while rows < PARTITIONS * END:
            rows += opened.poll(1_000).num_rows
        yield opened


# -- callback ---------------------------------------------------------------------------------


def test_callback_gets_metrics_at_the_interval_and_at_the_end(consumer: KafkaConsumer) -> None:
    reports: list[float] = []
    reporter = MetricsReporter(
        consumer, lambda metrics: reports.append(value_of(metrics, "records-consumed-total")), interval_ms=5
    )
    wait_until(lambda: len(reports) >= 3)
    reporter.close()
    count = len(reports)
    reporter.close()
    assert (set(reports), len(reports)) == ({PARTITIONS * END}, count)
    with MetricsReporter(consumer, reports.append):  # type: ignore[arg-type]
        pass
    assert len(reports) == count + 1


def test_failing_callback_is_logged_and_called_again(consumer: KafkaConsumer, caplog: pytest.LogCaptureFixture) -> None:
    calls = []

    def fail(_: object) -> None:
        calls.append(None)
        raise ValueError("no disk")

    with caplog.at_level(logging.ERROR), MetricsReporter(consumer, fail, interval_ms=1):
        wait_until(lambda: len(calls) > 2)
    assert "a report of metrics has failed" in caplog.text
    with pytest.raises(UsageError, match="interval_ms=0"):
        MetricsReporter(consumer, fail, interval_ms=0)


# -- Prometheus -------------------------------------------------------------------------------


def _exported(*sources: Client | KafkaConsumer) -> str:
    registry = CollectorRegistry()
    registry.register(MetricsCollector(*sources))
    return generate_latest(registry).decode()


def _samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_endpoint_serves_metrics_of_consumer(consumer: KafkaConsumer) -> None:
    server, thread = start_http_server(0, consumer, address="127.0.0.1")
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20).read().decode()
    finally:
        server.shutdown()
        thread.join()
    assert server.socket.fileno() == -1, "the port is free"
    samples = _samples(text)
    client, topic = ("client_id", "etl"), ("topic", "orders")
    assert samples["kafka_consumer_fetch_manager_records_consumed_total", (client, topic)] == PARTITIONS * END
    assert samples["kafka_consumer_fetch_manager_records_lag", (client, ("partition", "0"), topic)] == 0
    assert samples["kafka_consumer_fetch_manager_records_lag_max", (client,)] == 0
    assert samples["kafka_client_response_total", (client,)] >= 2
    sizes = "kafka_consumer_fetch_manager_consumer_batch_size"
    assert samples[f"{sizes}_sum", (client,)] <= PARTITIONS * END
    assert samples[f"{sizes}_bucket", (client, ("le", "+Inf"))] == samples[f"{sizes}_count", (client,)]
    assert "# TYPE kafka_consumer_fetch_manager_records_consumed_total counter" in text
    assert {name for name, _ in samples if not name.startswith("kafka_")} == set()


def test_prometheus_has_no_series_twice(consumer: KafkaConsumer) -> None:
    lines = [line for line in _exported(consumer).splitlines() if not line.startswith("#")]
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(series) == len(set(series)) > 50
    names = [prometheus_name(definition) for definition in DEFINITIONS]
    assert len({name for name in names if names.count(name) > 1}) == len(DEFINITIONS) - len(most_specific())


def test_prometheus_refuses_two_clients_of_the_same_name() -> None:
    first, namesake, third = (Client(bootstrap_servers="127.0.0.1:1", client_id=name) for name in ("a", "a", "b"))
    with pytest.raises(UsageError, match=r"client\.id=a"):
        _exported(first, namesake)
    assert 'client_id="b"' in _exported(first, third)


# -- OpenTelemetry ----------------------------------------------------------------------------


def _points(reader: InMemoryMetricReader) -> dict[str, list[tuple[float, dict[str, Any]]]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: [(point.value, dict(point.attributes)) for point in metric.data.data_points]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_reads_instruments_of_consumer(consumer: KafkaConsumer) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    assert _points(reader) == {}
    observe(consumer, provider.get_meter("test"))
    points = _points(reader)
    attributes = {"client-id": "etl", "topic": "orders"}
    assert points["kafka.consumer_fetch_manager.records_consumed_total"] == [(PARTITIONS * END, attributes)]
    assert points["kafka.client.request_rate"][0][0] > 0
    assert not any(math.isnan(value) for point in points.values() for value, _ in point)
    provider.shutdown()


def test_opentelemetry_does_not_keep_its_source_alive() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    client = Client({"bootstrap.servers": "127.0.0.1:1"})
    observe(client, provider.get_meter("test"))
    assert _points(reader) != {}
    del client
    gc.collect()
    assert all(points == [] for points in _points(reader).values())
    provider.shutdown()


@pytest.mark.parametrize(
    ("module", "package"), [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry")]
)
def test_missing_extra_is_named(module: str, package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import protocol.metrics.{module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert f"pip install 'spark-kafka-source[{module}]'" in ended.stderr


def test_client_imports_no_exporter() -> None:
    program = "import sys, protocol; protocol.KafkaConsumer, protocol.Producer; print([*sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "protocol.metrics.client_sensors" in ended.stdout
    assert "prometheus" not in ended.stdout
    assert "opentelemetry" not in ended.stdout
