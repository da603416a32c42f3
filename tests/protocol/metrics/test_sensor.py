"""Sensors: totals, and rates, means and maxima of a window, by the rules of Java's `Rate` and `SampledStat`."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from protocol.errors import UsageError
from protocol.metrics import sensor as sensor_module
from protocol.metrics.client_sensors import ClientSensors, Histogram, Metric
from protocol.metrics.sensor import Family, Sensor
from protocol.wire.messages.m00_produce import PRODUCE
from protocol.wire.messages.m03_metadata import METADATA

ADDRESS = ("broker-1", 9092)


def sensors_of(group: str) -> ClientSensors:
    sensors = ClientSensors()
    sensors.use([group])
    return sensors


def test_totals_and_window_of_events_are_kept() -> None:
    sensor = Sensor(2)
    for nth in range(100):
        sensor.record((nth * 0.1, nth, 1))
    reading = sensor.read(10.0)
    assert (reading.count, reading.totals, reading.last_s) == (100, (4_950, 100), pytest.approx(9.9))
    assert (reading.recent_count, reading.recent_totals, reading.maxima) == (100, (4_950, 100), (99, 1))


def test_rate_is_exact_once_windows_are_complete_and_low_before() -> None:
    """As in Java: after a second, one of two windows of 30 s counts as complete, so a burst is no high rate."""
    sensor = Sensor(1)
    sensor.record((0.0, 310.0))
    assert sensor.read(1.0).rates == (pytest.approx(310 / 31),)
    assert sensor.read(1.0).count_rate == pytest.approx(1 / 31)
    for second in range(1, 600):
        sensor.record((float(second), 50.0))
    assert sensor.read(600.0).rates[0] == pytest.approx(50, rel=0.02)


def test_events_leave_the_window_but_not_the_total() -> None:
    sensor = Sensor(1)
    sensor.record((0.0, 900.0))
    sensor.record((45.0, 5.0))
    assert sensor.read(46.0).maxima == (900.0,)
    assert sensor.read(80.0).maxima == (5.0,)
    quiet = sensor.read(200.0)
    assert (quiet.recent_count, quiet.maxima, quiet.rates) == (0, (float("-inf"),), (0.0,))
    assert (quiet.count, quiet.totals) == (2, (905.0,))


@pytest.mark.parametrize("start_s", [0.0, 2025.329])  # the second plus 30 is rounded down to less than 30 s later
def test_one_fold_distributes_events_over_windows(start_s: float) -> None:
    sensor = Sensor(1)
    for second in range(0, 100, 10):  # fewer than one fold needs
        sensor.record((start_s + second, 1.0))
    reading = sensor.read(start_s + 100)
    assert reading.count == 10
    assert reading.recent_count < 10
    assert reading.rates[0] == pytest.approx(0.1, rel=0.1)


def test_no_event_of_several_threads_is_lost() -> None:
    sensor = Sensor(1)
    start = threading.Barrier(5)

    def record() -> None:
        start.wait()
        for nth in range(5_000):
            sensor.record((nth * 1e-3, 1.0))

    with ThreadPoolExecutor(4) as threads:
        recording = [threads.submit(record) for _ in range(4)]
        start.wait()
        while not all(future.done() for future in recording):
            sensor.read(5.0)
    assert sensor.read(5.0).totals == (20_000,)


def test_queue_of_events_stays_short_without_a_reader() -> None:
    sensor = Sensor(1)
    for nth in range(1_000):
        sensor.record((float(nth), 1.0))
    tracemalloc.start()
    try:
        for nth in range(1_000, 10_000):
            sensor.record((float(nth), 1.0))
        allocated = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    ours = allocated.filter_traces([tracemalloc.Filter(True, name) for name in (__file__, sensor_module.__file__)])
    held_bytes = sum(trace.size for trace in ours.traces)
    assert held_bytes < 60_000, "9,000 events take about a megabyte, their samples 100 kB"


def test_reading_of_a_family_adds_its_sensors() -> None:
    sensors = ClientSensors("etl")
    for topic, records in (("orders", 10), ("payments", 30)):
        sensors.consumed[topic].record((1.0, records, 100))
    sensors.use(["consumer-fetch-manager-metrics"])
    metrics = sensors.read(2.0, {}, ["consumer-fetch-manager-metrics"])
    totals = {metric.tags.get("topic"): metric.value for metric in metrics if metric.name == "records-consumed-total"}
    assert totals == {None: 40, "orders": 10, "payments": 30}
    assert {metric.tags["client-id"] for metric in metrics} == {"etl"}


def test_replies_count_for_their_broker_and_their_api() -> None:
    sensors = sensors_of("consumer-fetch-manager-metrics")
    sensors.replies[ADDRESS, 1].record((1.0, 5.0, 1_000, 0))
    sensors.replies[ADDRESS, 3].record((1.0, 50.0, 10, 100))
    metrics = sensors.read(2.0, {ADDRESS: 7})
    assert _value(metrics, "fetch-latency-max") == 5.0
    assert _value(metrics, "request-latency-max") == 50.0
    assert _value(metrics, "response-total", **{"node-id": "node-7", "broker": "broker-1:9092"}) == 2
    assert _value(metrics, "throttle-time-avg") == 50.0
    assert _value(metrics, "incoming-byte-total") == 1_010


def test_address_without_metadata_is_node_minus_one() -> None:
    sensors = ClientSensors()
    sensors.requests[ADDRESS].record((1.0, 10.0))
    assert _value(sensors.read(2.0, {}), "request-total", **{"node-id": "node--1"}) == 1


def test_groups_without_use_are_not_reported() -> None:
    sensors = ClientSensors()
    assert {metric.group for metric in sensors.read(0.0, {})} == {"client-metrics"}
    sensors.use(["producer-metrics"])
    assert {metric.group for metric in sensors.read(0.0, {})} == {"client-metrics", "producer-metrics"}


def test_gauge_ends_with_its_owner() -> None:
    class Owner:
        size = 3

    sensors, owner, second = ClientSensors(), Owner(), Owner()
    for gauge_owner in (owner, second):
        sensors.add_gauge("connection-count", gauge_owner, lambda owner: [((), owner.size)])
    assert _value(sensors.read(0.0, {}), "connection-count") == 6
    del second, gauge_owner
    assert _value(sensors.read(0.0, {}), "connection-count") == 3


def test_mean_and_maximum_without_events_are_nan() -> None:
    metrics = ClientSensors().read(0.0, {})
    assert str(_value(metrics, "request-latency-avg")) == str(_value(metrics, "request-latency-max")) == "nan"
    assert _value(metrics, "request-rate") == 0


def test_wait_ratio_is_the_share_of_elapsed_time() -> None:
    sensors = sensors_of("producer-metrics")
    for end_s in (100.0, 120.0):
        sensors.memory_waits.record((end_s, 3e9))
    metrics = sensors.read(130.0, {})
    assert _value(metrics, "bufferpool-wait-ratio") == pytest.approx(0.2)
    assert _value(metrics, "bufferpool-wait-time-ns-total") == 6e9


def test_mean_size_of_records_is_that_of_records_not_of_calls() -> None:
    sensors = sensors_of("producer-metrics")
    sensors.record_sizes.record((1.0, 100, 900, 9))
    sensors.record_sizes.record((2.0, 300, 300, 1))
    metrics = sensors.read(3.0, {})
    assert (_value(metrics, "record-size-avg"), _value(metrics, "record-size-max")) == (120, 300)


def test_metadata_age_begins_with_the_last_reply_to_metadata() -> None:
    sensors = sensors_of("producer-metrics")
    assert _value(sensors.read(5.0, {}), "metadata-age") == -1
    sensors.replies[ADDRESS, METADATA.key].record((10.0, 1.0, 1.0, 0.0))
    sensors.replies[ADDRESS, PRODUCE.key].record((50.0, 1.0, 1.0, 0.0))
    assert _value(sensors.read(60.0, {}), "metadata-age") == 50


def test_largest_lag_is_also_that_of_a_partition_without_deliveries() -> None:
    sensors = sensors_of("consumer-fetch-manager-metrics")
    sensors.lag.record((1.0, 40.0))
    tags = (("topic", "orders"), ("partition", "0"))
    sensors.add_gauge("records-lag", sensors, lambda _: [(tags, 900.0)])
    metrics = sensors.read(2.0, {})
    assert _value(metrics, "records-lag-max") == 900
    assert _value(metrics, "records-lag", topic="orders", partition="0") == 900


def test_histogram_counts_values_up_to_each_bound() -> None:
    sensors = sensors_of("consumer-fetch-manager-metrics")
    for records in (0, 1, 2, 3, 4, 1_024, 1_025):
        sensors.partition_replies.record((0.0, records))
    histogram = _value(sensors.read(1.0, {}), "consumer-batch-size")
    assert isinstance(histogram, Histogram)
    counts = dict(histogram.counts)
    assert [counts[bound] for bound in (1, 2, 4, 8, 1_024, 2_048, float("inf"))] == [2, 3, 5, 5, 6, 7, 7]
    assert (histogram.count, histogram.total) == (7, 2_059)
    assert histogram.quantile(0.5) == 4
    with pytest.raises(UsageError, match="fraction of a quantile is 99; it must be from 0 to 1"):
        histogram.quantile(99)
    assert Histogram(((float("inf"), 0),), 0.0).count == 0


def test_sensor_of_a_family_is_the_same_for_all_threads() -> None:
    family: Family[str] = Family(1)
    assert family["orders"] is family["orders"]
    family["orders"].record((0.0, 2.0))
    assert family.read(1.0)["orders"].totals == (2.0,)


def _value(metrics: list[Metric], name: str, **tags: str) -> float | Histogram:
    """The value of the only metric with this name and, besides the client id, exactly or at least these tags."""
    collected = [metric for metric in metrics if metric.name == name and tags.items() <= metric.tags.items()]
    if not tags:
        collected = [metric for metric in collected if set(metric.tags) == {"client-id"}]
    (metric,) = collected
    return metric.value
