"""Lag of queries and groups: what the figures add up to, and how they are shown."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from protocol.errors import ConfigurationError, UsageError
from protocol.group.offsets import CommittedOffset, commit_offsets
from protocol.wire.messages.m01_fetch import FETCH
from spark_kafka_source.lag import (
    SCHEMA,
    Lag,
    LagAtTime,
    LagListener,
    PartitionLag,
    lag_of_group,
    lag_of_query,
)
from tests.fake_kafka.server import FakeKafka
from tests.protocol.consumer.consuming import client_of, records
from tests.wait_until import wait_until

# The example in Spark's integration guide has one partition; here two sources have three, and a third is no Kafka.
PROGRESS = {
    "id": "7c0d",
    "name": "etl",
    "timestamp": "2026-01-02T03:04:05.678Z",
    "batchId": 4,
    "sources": [
        {
            "endOffset": {
                "orders": {"0": 10, "1": 20},
                "@ids": {"orders": "AAAAAAAAAAAAAAAAAAAAAQ"},
                "@skipped": {"orders": {"0": 5}},
            },
            "latestOffset": {"orders": {"0": 14, "1": 20}},
        },
        {"endOffset": '{"a": {"0": 5}}', "latestOffset": '{"a": {"0": 12}}'},
        {"endOffset": 7, "latestOffset": None},
    ],
}


def test_the_progress_of_a_query_adds_up() -> None:
    for given in (PROGRESS, json.dumps(PROGRESS)):
        lag = lag_of_query(given)
        assert [(row.topic, row.partition, row.committed, row.end, row.offsets_behind) for row in lag] == [
            ("a", 0, 5, 12, 7),
            ("orders", 0, 10, 14, 4),
            ("orders", 1, 20, 20, 0),
        ]
        assert lag.offsets_behind == 11
        assert lag.seconds_behind is None
        # The one without topic ids is of Spark's own connector, which does not count.
        assert [row.skipped for row in lag] == [None, 5, 0]
        assert lag.skipped == 5
        assert lag.metrics() == {
            "minOffsetsBehindLatest": 0,
            "maxOffsetsBehindLatest": 7,
            "avgOffsetsBehindLatest": 11 / 3,
        }


def test_what_was_skipped_of_a_partition_still_counts_when_it_is_deleted() -> None:
    reached = {"a": {"0": 5}, "@skipped": {"a": {"0": 1}}, "@skippedDeleted": {"b": {"2": 40}}}
    lag = lag_of_query({**PROGRESS, "sources": [{"endOffset": reached, "latestOffset": {"a": {"0": 9}}}]})
    assert tuple(lag) == (PartitionLag("a", 0, 5, 9, skipped=1), PartitionLag("b", 2, None, None, skipped=40))
    assert (lag.skipped, lag.offsets_behind, lag.metrics()["minOffsetsBehindLatest"]) == (41, 4, 4)
    # Of all that was read nothing is left.
    gone = {"endOffset": {"@skippedDeleted": {"b": {"2": 40}}}, "latestOffset": {}}
    assert lag_of_query({**PROGRESS, "sources": [gone]}).skipped == 40


def test_what_is_not_known_is_not_counted() -> None:
    source = {"endOffset": {"t": {"0": 3, "1": 5}}, "latestOffset": {"t": {"1": 6}}}
    lag = lag_of_query({**PROGRESS, "sources": [source, {"endOffset": None, "latestOffset": "none"}]})
    assert [row.offsets_behind for row in lag] == [None, 1]
    assert lag.metrics()["avgOffsetsBehindLatest"] == 1
    assert lag_of_query({**PROGRESS, "sources": []}).metrics() == {}
    with pytest.raises(UsageError, match="no progress yet"):
        lag_of_query(None)


TABLE = Lag(
    (
        PartitionLag("orders", 0, 10, 14, 61.5, skipped=3),
        PartitionLag("orders", 1, None, 20),
        PartitionLag("orders", 2, 9, 5),
    )
)


def test_a_table_for_people_and_for_programs() -> None:
    assert TABLE.to_arrow().schema == SCHEMA
    assert TABLE.to_arrow().to_pylist()[0] == {
        "topic": "orders",
        "partition": 0,
        "committed": 10,
        "end": 14,
        "offsets_behind": 4,
        "seconds_behind": 61.5,
        "skipped": 3,
    }
    assert TABLE.to_pandas()["offsets_behind"].tolist()[0] == 4
    assert [line.split()[2:] for line in str(TABLE).splitlines()] == [
        ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS", "SKIPPED"],
        ["10", "14", "4", "61.500", "3"],
        ["-", "20", "-", "-", "-"],
        ["9", "5", "-4", "-", "-"],
    ]
    assert TABLE._repr_html_().count("<tr>") == 4
    assert (TABLE.offsets_behind, TABLE.seconds_behind) == (0, 61.5)


def test_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    bars = TABLE.plot()
    assert [bar.get_width() for bar in bars.patches] == [4, 0, -4]
    listener = LagListener()
    listener._history += [LagAtTime(pa.scalar(i, pa.timestamp("s")).as_py(), "etl", i, TABLE) for i in range(3)]
    (line,) = listener.plot().lines
    assert (line.get_label(), list(line.get_ydata())) == ("etl", [0, 0, 0])
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"spark-kafka-source\[notebook\]"):
        TABLE.plot()


def test_a_broker_that_does_not_answer_costs_the_seconds_and_no_more_time() -> None:
    with FakeKafka() as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("t", 50)
        for number in range(50):
            kafka.write("t", number, records(0, 3))
        commit_offsets(client, "g", {("t", number): CommittedOffset(1) for number in range(50)}, client.deadline())
        kafka.handlers[FETCH] = lambda body, version: None
        started_s = time.monotonic()
        lag = lag_of_group(kafka.bootstrap_servers, "g", sample_ms=1_000)
        assert time.monotonic() - started_s < 12
        assert (lag.offsets_behind, lag.seconds_behind) == (100, None)
        wait_until(lambda: kafka.asked(FETCH))
        (asked,) = kafka.asked(FETCH)
        assert [len(topic["partitions"]) for topic in asked["topics"]] == [1]


def test_a_listener_reports_and_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(PROGRESS)))
    seen: list[LagAtTime] = []
    LagListener(seen.append, kept=1).onQueryProgress(event)
    assert [(each.query, each.batch, each.lag.offsets_behind, each.time.year) for each in seen] == [
        ("etl", 4, 11, 2026)
    ]
    LagListener(lambda _: 1 / 0).onQueryProgress(event)  # type: ignore[arg-type, return-value]
    assert "ZeroDivisionError" in caplog.text
    with pytest.raises(ConfigurationError):
        LagListener(options={"kafka.acks": "7"})
