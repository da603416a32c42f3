"""The reference of the client's properties: it is current, complete, and its example runs."""

from __future__ import annotations

from typing import Any

from protocol.consumer.group_consumer_config import GroupConsumerConfig
from protocol.properties import PROPERTIES
from protocol.property_page import markdown
from tests.support.documents import ROOT, block, listed_names
from tests.support.small_cluster import SmallCluster


def test_docs_page_of_properties_is_current() -> None:
    page = (ROOT / "docs" / "properties.md").read_text(encoding="utf-8")
    assert page == markdown() + "\n", "run: python -m protocol.property_page > docs/properties.md"


def test_docs_page_has_every_property_once() -> None:
    names = listed_names(markdown())
    assert [row.name for row in PROPERTIES if names.count(row.name) != 1] == []


def test_commits_on_the_page_are_those_of_kafka_consumer() -> None:
    assert GroupConsumerConfig.enable_auto_commit
    (row,) = [line for line in markdown().splitlines() if line.startswith("| `enable.auto.commit` |")]
    assert row.endswith("| true, false | true |")


def test_example_of_the_page_runs() -> None:
    names: dict[str, Any] = {}
    with SmallCluster() as fake:
        exec(
            block("properties.md", "consumer = KafkaConsumer(").with_names({"broker-1:9092": fake.bootstrap_servers}),
            names,
        )
        with names["consumer"] as consumer:
            consumer.subscribe(["orders"])
            assert consumer.poll(20_000).num_rows
