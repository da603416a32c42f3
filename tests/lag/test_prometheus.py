"""Lag for Prometheus: names, labels and values; the dashboard shows only metrics that exist."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from spark_kafka_source.lag import LagListener
from spark_kafka_source.lag.prometheus import NAMES, NamedLag, serve
from spark_kafka_source.lag.table import Lag, PartitionLag
from tests.lag.test_lag import PROGRESS, SELF_JOIN, kafka_with, progress_event, source_of_t
from tests.protocol.fetch.consuming import records
from tests.support.documents import ROOT
from tests.support.wait_until import wait_until

Scraped = dict[tuple[str, ...], float]

LAG = Lag((PartitionLag("orders", 0, 5, 9, 1.5), PartitionLag("orders", 1, None, 7)))


@contextmanager
def served(listener: LagListener) -> Iterator[Callable[[], Scraped]]:
    """Yield a function that scrapes a listener."""
    server, thread = listener.serve(0, "127.0.0.1")
    yield lambda: scrape(server.server_port)
    server.shutdown()
    thread.join()


def scrape(port: int) -> Scraped:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text = response.read().decode()
    families = list(text_string_to_metric_families(text))
    assert {family.name for family in families} <= NAMES.keys()
    labels = ("consumergroup", "query", "topic", "partition")
    series = [(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples]
    assert len(series) == len(set(series)), "Prometheus drops the second sample of a series"
    return {
        (sample.name, *(sample.labels[label] for label in labels if sample.labels.get(label))): sample.value
        for family in families
        for sample in family.samples
    }


def test_lag_of_groups_is_served_and_shutdown_frees_the_port() -> None:
    """Unknown values are left out. A notebook's cell with a fixed port may be run again."""
    port = 0
    for _ in range(2):
        server, thread = serve(port, lambda: [NamedLag("etl", LAG, members=2), NamedLag("copy", LAG)], "127.0.0.1")
        port = server.server_port
        scraped = scrape(port)
        server.shutdown()
        thread.join()
    assert scraped == {
        **{("kafka_consumergroup_lag", name, "orders", "0"): 4 for name in ("etl", "copy")},
        **{("kafka_consumergroup_current_offset", name, "orders", "0"): 5 for name in ("etl", "copy")},
        **{("kafka_consumergroup_group_lag_seconds", name, "orders", "0"): 1.5 for name in ("etl", "copy")},
        ("kafka_consumergroup_members", "etl"): 2,
        ("kafka_topic_partition_current_offset", "orders", "0"): 9,
        ("kafka_topic_partition_current_offset", "orders", "1"): 7,
    }


def test_listener_serves_the_newest_lag_and_the_rates_of_a_query() -> None:
    rates = {"inputRowsPerSecond": 10.0, "processedRowsPerSecond": 20.0, "batchDuration": 1500}
    with served(listener := LagListener()) as scrape_listener:
        assert scrape_listener() == {}
        listener.onQueryProgress(progress_event({**PROGRESS, **rates}))
        scraped = scrape_listener()
    assert sum(value for (name, *_), value in scraped.items() if name == "kafka_consumergroup_lag") == 11
    assert [scraped[f"spark_streaming_{name}", "etl"] for name in (
        "input_rows_per_second", "processed_rows_per_second", "batch_duration_seconds")] == [10, 20, 1.5]  # fmt: skip


def test_query_has_the_label_of_its_group_and_one_of_its_name() -> None:
    """Joins with the lag of `pykafka groups lag --serve` need the group."""
    grouped = {"endOffset": {"t": {"0": 5}}, "latestOffset": {"t": {"0": 9}, "@group": {"id": "orders-etl"}}}
    without_group = {"endOffset": {"u": {"0": 5}}, "latestOffset": {"u": {"0": 6}}}
    with served(listener := LagListener()) as scrape_listener:
        listener.onQueryProgress(progress_event({**PROGRESS, "sources": [grouped, without_group]}))
        lags = {key[1:]: lag for key, lag in scrape_listener().items() if key[0] == "kafka_consumergroup_lag"}
    assert lags == {("orders-etl", "etl", "t", "0"): 4, ("etl", "etl", "u", "0"): 1}


def test_partition_that_two_sources_read_has_the_larger_lag() -> None:
    with served(listener := LagListener()) as scrape_listener:
        listener.onQueryProgress(progress_event(SELF_JOIN))
        scraped = scrape_listener()
    values = {name: value for (name, *labels), value in scraped.items() if labels[:2] == ["etl", "etl"]}
    assert values == {"kafka_consumergroup_lag": 490, "kafka_consumergroup_current_offset": 10}


def test_query_is_active_from_its_start_and_inactive_after_a_failed_first_batch() -> None:
    with served(listener := LagListener()) as scrape_listener:
        listener.onQueryStarted(SimpleNamespace(id="id of etl", name="etl"))
        assert scrape_listener() == {("spark_streaming_query_active", "etl"): 1}
        listener.onQueryTerminated(SimpleNamespace(id="id of etl"))
        assert scrape_listener() == {("spark_streaming_query_active", "etl"): 0}


def test_scrape_has_the_lag_now_and_an_ended_query_has_none() -> None:
    """Records arrive while a batch takes long; then the query fails, and its rates would look healthy forever."""
    progress = {**PROGRESS, "id": "id of etl", "sources": [source_of_t(5, 5)], "inputRowsPerSecond": 10.0}
    lag = ("kafka_consumergroup_lag", "etl", "etl", "t", "0")
    with (
        kafka_with(5) as kafka,
        served(listener := LagListener(options=kafka.bootstrap_servers)) as scrape_listener,
    ):
        listener.onQueryStarted(SimpleNamespace(id="id of etl", name="etl"))
        listener.onQueryProgress(progress_event(progress))
        wait_until(lambda: scrape_listener().get(lag) == 0)
        kafka.write("t", 0, records(5, 40))
        scraped = scrape_listener()
        assert scraped[lag] == 40
        assert ("kafka_consumergroup_group_lag_seconds", *lag[1:]) in scraped
        assert scraped["spark_streaming_query_active", "etl"] == 1
        kafka.silence(1)
        assert scrape_listener()[lag] == 0, "the last known one"
        listener.onQueryTerminated(SimpleNamespace(id="id of etl"))
        assert scrape_listener() == {("spark_streaming_query_active", "etl"): 0}


def test_sample_that_is_ready_after_the_end_leaves_no_running_query() -> None:
    answer = threading.Event()
    with kafka_with(0) as kafka:
        kafka.before[LIST_OFFSETS] = lambda body: answer.wait(30)
        listener = LagListener(options=kafka.bootstrap_servers, sample_ms=20_000)
        with served(listener) as scrape_listener:
            listener.onQueryProgress(progress_event({**PROGRESS, "id": "id of etl", "sources": [source_of_t(0, 0)]}))
            listener.onQueryTerminated(SimpleNamespace(id="id of etl"))
            answer.set()
            wait_until(lambda: listener.latest)
            assert scrape_listener() == {("spark_streaming_query_active", "etl"): 0}


def test_dashboard_and_page_name_the_metrics_that_exist() -> None:
    dashboard = (ROOT / "conf" / "grafana-lag.json").read_text()
    named = r"\b(?:kafka_(?:consumergroup|topic)|spark_streaming)_[a-z_]+"
    assert set(re.findall(named, dashboard)) == NAMES.keys()
    page = Path(ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `((?:kafka|spark)_\w+)` \| [\w, ]+ \| (.+) \|$", page, re.MULTILINE))
    assert rows == {name: text for name, (text, _) in NAMES.items()}
    assert json.loads(dashboard)["panels"]
