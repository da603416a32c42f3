"""Run the tutorial: every block of its pages, in order, in one namespace."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from protocol.testing import FakeKafka
from tests.support.documents import TUTORIAL, blocks

# One broker serves both clusters of the pages.
ONE_CLUSTER = {
    "LocalKafka(registry=True)": 'LocalKafka(registry=True, security="sasl_ssl", users={"totals-etl": "wonder"})',
    'secured = LocalKafka(security="sasl_ssl", users={"totals-etl": "wonder"})': "secured = kafka",
    'secured.create_topic("orders", partitions=3)\n': "",
    "secured.close()\n": "",
}


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_pages_run_in_order_as_printed(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow: runs the six pages, two Kafkas among them, as a reader would."""
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ["PYSPARK_PYTHON"])  # page 1 sets it
    names: dict[str, Any] = {"__name__": "tutorial"}
    printed = {}
    try:
        for page in TUTORIAL:
            for block in blocks(page.name):
                if block.language == "python":
                    text = block.text
                    for old, new in ONE_CLUSTER.items():
                        text = text.replace(old, new)
                    exec(compile(text, page.name, "exec"), names)
            printed[page.stem] = capfd.readouterr().out
        with FakeKafka() as kafka:
            names["test_totals_are_by_country"](spark, kafka, tmp_path)
    finally:
        if "kafka" in names:
            names["kafka"].close()
    assert "1000 records\n" in printed["1-first-query"]
    assert "300 records in the last batch\n" in printed["2-stream"]
    assert printed["2-stream"].count("| DE|") == 2, "totals of both runs"
    assert "334 orders from Germany\n" in printed["3-values"]
    assert "|    Order| 1000|\n|   Refund|   20|\n" in printed["3-values"]
    assert "|  0|\n| 50|\n|100|\n" in printed["3-values"]
    assert "20 refunds\n" in printed["3-values"]
    assert "1000 decoded\n1 dead letter\n" in printed["3-values"]
    assert "1600 records over TLS\n" in printed["5-secured"]
    assert "failed" not in printed["5-secured"], "pykafka doctor"
    assert "metrics at port" in printed["6-production"]
    assert "2400 records read again\n" in printed["6-production"]
    assert Path(names["folder"], "totals.png").stat().st_size > 0


def test_first_page_links_all_pages() -> None:
    first = TUTORIAL[0].read_text()
    assert [page.name for page in TUTORIAL[1:] if f"({page.name})" not in first] == []
    for page, following in pairwise(TUTORIAL):
        assert f"({following.name})" in page.read_text()
