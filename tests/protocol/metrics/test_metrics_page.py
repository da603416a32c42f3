"""docs/metrics.md: made of the definitions; its examples run."""

from __future__ import annotations

import urllib.request
from typing import Any

from protocol.metrics.definitions import DEFINITIONS
from tests.protocol.metrics.metrics_page import markdown
from tests.support.documents import ROOT, block
from tests.support.small_cluster import SmallCluster


def test_docs_page_of_metrics_is_current() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == markdown() + "\n", "run: python -m tests.protocol.metrics.metrics_page > docs/metrics.md"


def test_docs_page_has_every_metric_once() -> None:
    rows = [line.split("|")[1:4] for line in markdown().splitlines() if line.startswith("| `") and "` | `" in line]
    named = [tuple(cell.strip().strip("`") for cell in row) for row in rows]
    assert sorted(named) == sorted(
        (definition.name, definition.group, ", ".join(definition.tags)) for definition in DEFINITIONS
    )
    assert len(named) == len(set(named))


def test_examples_of_the_page_read_metrics_of_consumer(capsys: Any) -> None:
    names: dict[str, Any] = {}
    with SmallCluster() as fake:
        exec(block("metrics.md", "consumer.subscribe(").with_names({"broker-1:9092": fake.bootstrap_servers}), names)
        with names["consumer"]:
            assert "consumer-fetch-manager-metrics records-consumed-total" in capsys.readouterr().out
            exec(block("metrics.md", "MetricsReporter(").text, names)
            assert " metrics\n" in capsys.readouterr().out
            exec(block("metrics.md", "start_http_server(").with_names({"9400": "0"}), names)
            address = f"http://127.0.0.1:{names['server'].server_port}/metrics"
            text = urllib.request.urlopen(address, timeout=20).read().decode()
            names["server"].shutdown()
            names["server"].server_close()
            assert "kafka_consumer_fetch_manager_records_lag_max" in text
            exec(block("metrics.md", "observe(consumer)").text, names)
