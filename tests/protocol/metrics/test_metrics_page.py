"""docs/metrics.md: made of the definitions; its examples run."""

from __future__ import annotations

from typing import Any

from protocol.metrics.definitions import DEFINITIONS
from protocol.metrics_page import markdown
from tests.support.documents import ROOT, block
from tests.support.small_cluster import SmallCluster


def test_docs_page_of_metrics_is_current() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == markdown() + "\n", "run: python -m protocol.metrics_page > docs/metrics.md"


def test_docs_page_has_every_metric_once() -> None:
    rows = [line.split("|")[1:4] for line in markdown().splitlines() if line.startswith("| `")]
    named = [tuple(cell.strip().strip("`") for cell in row) for row in rows]
    assert sorted(named) == sorted((each.name, each.group, ", ".join(each.tags)) for each in DEFINITIONS)
    assert len(named) == len(set(named))


def test_first_example_of_the_page_prints_every_metric(capsys: Any) -> None:
    with SmallCluster() as fake:
        exec(block("metrics.md", "consumer.subscribe(").with_names({"broker-1:9092": fake.bootstrap_servers}), {})
    printed = capsys.readouterr().out
    assert "records-consumed-total" in printed
    assert "'topic': 'orders'" in printed
