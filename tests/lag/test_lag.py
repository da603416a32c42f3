"""Lag of queries and groups: sums, and their presentation."""

from __future__ import annotations

import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from protocol.base import once
from protocol.broker_errors import ErrorCode
from protocol.config import ConsumerConfig
from protocol.errors import ConfigurationError, UsageError
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m01_fetch import FETCH
from protocol.wire.messages.m03_metadata import METADATA
from spark_kafka_source.lag import SCHEMA, Lag, LagAtTime, LagListener, PartitionLag, lag_of_group, lag_of_query
from spark_kafka_source.lag.of_group import lag_of_partitions
from spark_kafka_source.lag.of_query import offsets_of_batch
from tests.protocol.fetch.consuming import client_of, records
from tests.support.wait_until import wait_until

# Spark's integration guide has an example with one partition; here two sources have three, as JSON and as a repr.
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
        {"endOffset": '{"a": {"0": 5}}', "latestOffset": "{'a': {'0': 12}}"},
        {"endOffset": 7, "latestOffset": None},
        {"endOffset": "{0: 1}", "latestOffset": "[1, 2"},
    ],
}
IDS, OLD_IDS = {"t": "cOUv0DQqRhWG42lmCnpL3g"}, {"t": "A" * 21 + "Q"}


def trigger(query: str, batch: int, *, behind: int = 0, partitions: int = 1) -> dict[str, Any]:
    """Return the progress of one trigger of a query that reads topic `t`."""
    ends = {str(number): batch for number in range(partitions)}
    latest = {str(number): batch + behind for number in range(partitions)}
    source = {"endOffset": {"t": ends, "@epochs": {"t": ends}}, "latestOffset": {"t": latest}}
    return {**PROGRESS, "id": f"id of {query}", "name": query, "batchId": batch, "sources": [source]}


def source_of_t(end: int, latest: int) -> dict[str, Any]:
    """Return the progress of a source that reads partition 0 of topic `t`, with its topic id."""
    return {"endOffset": {"t": {"0": end}, "@ids": {}}, "latestOffset": {"t": {"0": latest}}}


SELF_JOIN = {**PROGRESS, "sources": [source_of_t(10, 500), source_of_t(490, 500)]}


@contextmanager
def kafka_with(*counts: int) -> Iterator[FakeKafka]:
    """Yield a cluster whose topic `t` has these numbers of records by partition."""
    with FakeKafka() as kafka:
        kafka.create_topic("t", len(counts))
        for partition, count in enumerate(counts):
            if count:
                kafka.write("t", partition, records(0, count))
        yield kafka


def progress_event(progress: dict[str, Any]) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))


def test_query_progress_sums_its_partitions() -> None:
    lag = lag_of_query(PROGRESS)
    # The source without topic ids is Spark's own connector, which does not count skipped offsets.
    assert [(row.topic, row.partition, row.committed, row.end, row.offsets_behind, row.skipped) for row in lag] == [
        ("a", 0, 5, 12, 7, None),
        ("orders", 0, 10, 14, 4, 5),
        ("orders", 1, 20, 20, 0, 0),
    ]
    assert (lag.offsets_behind, lag.seconds_behind, lag.skipped) == (11, None, 5)
    metrics = {"minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 7, "avgOffsetsBehindLatest": 11 / 3}
    assert lag.metrics() == metrics
    assert lag_of_query(json.dumps(PROGRESS)) == lag


def test_two_sources_with_the_same_topic_both_count() -> None:
    """In a self-join each source has its own offsets."""
    lag = lag_of_query(SELF_JOIN)
    assert [(row.partition, row.source, row.offsets_behind) for row in lag] == [(0, 0, 490), (0, 1, 10)]
    assert lag.metrics() == {"minOffsetsBehindLatest": 10, "maxOffsetsBehindLatest": 490, "avgOffsetsBehindLatest": 250}
    assert [line.split()[-1] for line in str(lag).splitlines()] == ["SOURCE", "0", "1"]


@pytest.mark.parametrize(
    ("start", "end", "count"),
    [
        (None, {"t": {"0": 60}, "@joined": {"t": {"0": 50}}}, 10),
        ({"t": {"0": 10, "1": 5}}, {"t": {"0": 15, "1": 5}}, 5),
        ({"t": {"0": 10}}, {"t": {"0": 150}, "@joined": {"t": {"0": 100}}}, 50),
        ({"t": {"0": 100}}, {"t": {"0": 60}, "@joined": {"t": {"0": 50}}}, 10),
        ({"t": {"0": 1000}, "@ids": OLD_IDS}, {"t": {"0": 60}, "@ids": IDS, "@joined": {"t": {"0": 0}}}, 60),
        ({"t": {"0": 10}}, {"t": {"0": 15, "1": 5}}, None),
        (7, 9, 0),
    ],
    ids=["first batch", "later", "deleted by retention", "truncated", "recreated", "Spark's connector", "no Kafka"],
)
def test_offsets_of_a_batch_are_those_that_its_tasks_read(start: object, end: object, count: int | None) -> None:
    assert offsets_of_batch({"sources": [{"startOffset": start, "endOffset": end}]}) == count


# -- PySpark before 4.2, which reports the end of the batch as the log end offsets ------------------

# Progress of the first batch and of a later one.
BATCH_ENDS = [
    {"t": {"0": 6, "1": 7}, "@ids": IDS, "@epochs": {"t": {"0": 0, "1": 0}}, "@joined": {"t": {"0": 0, "1": 0}}},
    {"t": {"0": 6, "1": 7}, "@ids": IDS, "@epochs": {"t": {"0": 0, "1": 0}}},
]


def spark_4_0(end: dict[str, Any]) -> str:
    """Return the value of `StreamingQueryProgress.json`."""
    return json.dumps({**PROGRESS, "sources": [{"startOffset": None, "endOffset": end, "latestOffset": end}]})


def spark_4_1(end: dict[str, Any]) -> dict[str, Any]:
    """Return the progress as a dict; its offsets are the repr of a dict."""
    return {**PROGRESS, "sources": [{"startOffset": "None", "endOffset": str(end), "latestOffset": str(end)}]}


@pytest.mark.parametrize("end", BATCH_ENDS, ids=["first batch", "later batch"])
@pytest.mark.parametrize("progress_of", [spark_4_0, spark_4_1])
def test_progress_without_log_ends_is_completed_by_brokers_or_refused(
    progress_of: Callable[[dict[str, Any]], Any], end: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"does not say where the logs end.*pass options"):
        lag_of_query(progress_of(end))
    with kafka_with(20, 7) as kafka:
        lag = lag_of_query(progress_of(end), options=kafka.bootstrap_servers)
    assert [(row.committed, row.end) for row in lag] == [(6, 20), (7, 7)]
    assert lag.metrics()["maxOffsetsBehindLatest"] == 14


def test_options_ask_for_the_log_ends_of_now(caplog: pytest.LogCaptureFixture) -> None:
    end, latest = {"t": {"0": 5}, "gone": {"0": 1}, "@ids": {}}, {"t": {"0": 5}, "gone": {"0": 3}}
    source = {"endOffset": end, "latestOffset": latest}
    progress = {**PROGRESS, "sources": [source]}
    with kafka_with(20) as kafka:
        lag = lag_of_query(progress, options=kafka.bootstrap_servers, timeout_ms=2_000)
    assert [(row.topic, row.offsets_behind) for row in lag] == [("gone", 2), ("t", 15)]
    assert "some lags are those at the time of the batch's plan" in caplog.text
    assert lag_of_query(progress).offsets_behind == 2


def test_listener_without_options_warns_once_of_missing_log_ends(caplog: pytest.LogCaptureFixture) -> None:
    once.reset()
    times: list[LagAtTime] = []
    listener = LagListener(times.append)
    for _ in range(3):
        listener.onQueryProgress(progress_event(json.loads(spark_4_0(BATCH_ENDS[1]))))
    assert times == []
    (warning,) = caplog.messages
    assert "LagListener" in warning


def test_skipped_offsets_of_a_deleted_partition_still_count() -> None:
    reached = {"a": {"0": 5}, "@skipped": {"a": {"0": 1}}, "@skippedDeleted": {"b": {"2": 40}}}
    lag = lag_of_query({**PROGRESS, "sources": [{"endOffset": reached, "latestOffset": {"a": {"0": 9}}}]})
    assert tuple(lag) == (
        PartitionLag("a", 0, 5, 9, skipped=1, source=0),
        PartitionLag("b", 2, None, None, skipped=40, source=0),
    )
    assert (lag.skipped, lag.offsets_behind, lag.metrics()["minOffsetsBehindLatest"]) == (41, 4, 4)
    # Only skipped offsets of deleted partitions are left.
    deleted = {"endOffset": {"@skippedDeleted": {"b": {"2": 40}}}, "latestOffset": {}}
    assert lag_of_query({**PROGRESS, "sources": [deleted]}).skipped == 40


def test_unknown_offsets_are_not_counted() -> None:
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


def test_table_is_text_and_pandas() -> None:
    assert TABLE.to_arrow().schema == SCHEMA
    columns = ["topic", "partition", "committed", "end", "offsets_behind", "seconds_behind", "skipped", "source"]
    assert SCHEMA.names == columns
    assert list(TABLE.to_arrow().to_pylist()[0].values()) == ["orders", 0, 10, 14, 4, 61.5, 3, None]
    assert Lag.from_arrow(TABLE.to_arrow()) == TABLE
    assert TABLE.to_pandas()["offsets_behind"].tolist()[0] == 4
    assert [line.split()[2:] for line in str(TABLE).splitlines()] == [
        ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-SECONDS", "SKIPPED"],
        ["10", "14", "4", "61.500", "3"],
        ["-", "20", "-", "-", "-"],
        ["9", "5", "-4", "-", "-"],
    ]
    assert TABLE._repr_html_().count("<tr>") == 4
    assert (TABLE.offsets_behind, TABLE.seconds_behind) == (0, 61.5)


def test_lag_is_plotted() -> None:
    import matplotlib

    matplotlib.use("Agg")
    bars = TABLE.plot()
    assert [bar.get_width() for bar in bars.patches] == [4, 0, -4]  # type: ignore[attr-defined]
    bars = lag_of_query(SELF_JOIN).plot()
    assert [bar.get_width() for bar in bars.patches] == [490]  # type: ignore[attr-defined]
    listener = LagListener()
    for number in range(3):
        listener.onQueryProgress(progress_event(trigger("etl", number, behind=number)))
    (line,) = listener.plot().lines
    assert (line.get_label(), list(line.get_ydata())) == ("etl", [0, 1, 2])


@pytest.mark.parametrize(
    ("package", "call"),
    [("matplotlib", TABLE.plot), ("pandas", TABLE.to_pandas), ("pandas", LagListener().to_pandas)],
    ids=["plot", "table", "listener"],
)
def test_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, call: Callable[[], object]
) -> None:
    TABLE.to_pandas()  # pyarrow itself imports pandas once, and fails on None
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"\(\) needs {package}: pip install 'spark-kafka-source\[notebook\]'"):
        call()


def test_silent_broker_loses_seconds_behind_within_the_deadline() -> None:
    with kafka_with(*[3] * 50) as kafka, client_of(kafka.bootstrap_servers) as client:
        commit_offsets(client, "g", {("t", number): CommittedOffset(1) for number in range(50)}, client.deadline())
        kafka.handlers[FETCH] = lambda body, version: None
        started_s = time.monotonic()
        lag = lag_of_group(kafka.bootstrap_servers, "g", "t", sample_ms=1_000)
        assert time.monotonic() - started_s < 12
        assert (lag.offsets_behind, lag.seconds_behind) == (100, None)
        wait_until(lambda: kafka.request_bodies(FETCH))
        (requested,) = kafka.request_bodies(FETCH)
        assert [len(topic["partitions"]) for topic in requested["topics"]] == [1]


def test_partition_without_a_leader_hides_no_other_lag(caplog: pytest.LogCaptureFixture) -> None:
    with FakeKafka(2) as kafka, client_of(kafka.bootstrap_servers) as client:
        kafka.create_topic("t", 2)
        kafka.write("t", 0, records(0, 3))
        kafka.move_coordinator("g", 1)
        commit_offsets(client, "g", {("t", number): CommittedOffset(1) for number in range(2)}, client.deadline())
        kafka.fence(2)
        lag = lag_of_group(kafka.bootstrap_servers, "g", timeout_ms=10_000)
    assert [(row.committed, row.end, row.offsets_behind) for row in lag] == [(1, 3, 2), (1, None, None)]
    assert caplog.messages == ["group g: the lag is unknown in partitions without a leader: t-1"]


def test_partition_in_an_election_has_a_lag_beside_a_refused_one() -> None:
    def electing(body: Any) -> Any:
        no_leader = {"error_code": ErrorCode.LEADER_NOT_AVAILABLE, "leader_id": -1}
        topics = [{**topic, "partitions": [row | no_leader for row in topic["partitions"]]} for topic in body["topics"]]
        return {**body, "topics": topics}

    settings = {"authorizer.class.name": "StandardAuthorizer", "allow.everyone.if.no.acl.found": "true"}
    with FakeKafka(settings=settings) as kafka, client_of(kafka.bootstrap_servers, retry_backoff_ms=5) as client:
        for topic in ("denied", "orders"):
            kafka.create_topic(topic)
        kafka.write("orders", 0, records(0, 3))
        kafka.deny("Describe", "Topic", "denied")
        kafka.edit_replies(METADATA, electing, 1)
        keys = [("denied", 0), ("orders", 0)]
        lag = lag_of_partitions(client, ConsumerConfig(), keys, dict.fromkeys(keys, 1), client.deadline())
    assert [(row.topic, row.end) for row in lag] == [("denied", None), ("orders", 3)]


def test_listener_reports_and_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    event = progress_event(PROGRESS)
    times: list[LagAtTime] = []
    LagListener(times.append, kept=1).onQueryProgress(event)
    (sample,) = times
    assert (sample.query, sample.batch, sample.lag.offsets_behind, sample.time.year) == ("etl", 4, 11, 2026)

    def report(_: LagAtTime) -> None:
        raise UsageError("report() needs a package")

    LagListener(report).onQueryProgress(event)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "needs a package" in caplog.text
    with pytest.raises(ConfigurationError):
        LagListener(options={"kafka.acks": "7"})
    with pytest.raises(ConfigurationError, match="the options are a list; give a text"):
        LagListener(options=["broker-1:9092"])  # type: ignore[arg-type]


def test_listener_prints_one_line_per_trigger(capsys: pytest.CaptureFixture[str]) -> None:
    LagListener(print).onQueryProgress(progress_event(trigger("etl", 7, behind=5, partitions=300)))
    line = "2026-01-02 03:04:05 etl: batch 7 ended 1500 offsets behind in 300 partition(s)\n"
    assert capsys.readouterr().out == line


def test_latest_keeps_a_running_query_pushed_out_of_the_history() -> None:
    listener = LagListener(kept=3)
    listener.onQueryProgress(progress_event(trigger("stuck", 1, behind=99)))
    listener.onQueryProgress(progress_event(trigger("ended", 1, behind=1)))
    listener.onQueryTerminated(SimpleNamespace(id="id of ended"))
    assert {query: lag.offsets_behind for query, lag in listener.latest.items()} == {"stuck": 99, "ended": 1}
    for batch in range(3):
        listener.onQueryProgress(progress_event(trigger("busy", batch)))
    assert [sample.query for sample in listener.history] == ["busy"] * 3
    assert {query: lag.offsets_behind for query, lag in listener.latest.items()} == {"stuck": 99, "busy": 0}
    listener.onQueryTerminated(SimpleNamespace(id="id of stuck"))
    assert list(listener.latest) == ["busy"]


def test_history_of_many_partitions_needs_little_memory() -> None:
    listener = LagListener()
    events = [progress_event(trigger("wide", batch, behind=batch, partitions=3_000)) for batch in range(20)]
    listener.onQueryProgress(events[0])
    arrow_bytes = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for event in events[1:]:
            listener.onQueryProgress(event)
        python_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (python_bytes + pa.total_allocated_bytes() - arrow_bytes) / 19 < 300_000
    assert listener.history[-1].lag.offsets_behind == 19 * 3_000
    assert listener.to_arrow().num_rows == 20 * 3_000


def test_seconds_behind_are_read_off_the_listener_thread_for_the_newest_trigger() -> None:
    semaphore, answer = threading.Semaphore(0), threading.Event()
    with kafka_with(9) as kafka:

        def wait(body: dict[str, Any]) -> None:
            semaphore.release()
            assert answer.wait(60)

        kafka.before[FETCH] = wait
        times: list[LagAtTime] = []
        listener = LagListener(times.append, options=kafka.bootstrap_servers, sample_ms=60_000)
        listener.onQueryProgress(progress_event(trigger("etl", 1, behind=8)))
        assert semaphore.acquire(timeout=60)
        for batch in (2, 3):
            listener.onQueryProgress(progress_event(trigger("etl", batch, behind=2)))
        assert times == []
        answer.set()
        wait_until(lambda: len(times) == 3)
    samples = [(sample.batch, sample.lag.seconds_behind is None) for sample in times]
    assert samples == [(1, False), (2, True), (3, False)]
    assert [sample.batch for sample in listener.history] == [1, 2, 3]


def test_seconds_behind_of_a_partition_without_lag_need_no_fetch() -> None:
    with kafka_with(3, 3) as kafka, client_of(kafka.bootstrap_servers) as client:
        commit_offsets(client, "g", {("t", 0): CommittedOffset(1), ("t", 1): CommittedOffset(3)}, client.deadline())
        lag = lag_of_group(kafka.bootstrap_servers, "g", "t", sample_ms=1_000)
        topics = [topic for body in kafka.request_bodies(FETCH) for topic in body["topics"]]
        assert {row["partition"] for topic in topics for row in topic["partitions"]} == {0}
    assert [row.seconds_behind == 0 for row in lag] == [False, True]


def test_seconds_behind_of_two_sources_with_the_same_partition() -> None:
    with kafka_with(5) as kafka:
        kafka.write("t", 0, records(5, 4))
        progress = {**PROGRESS, "sources": [source_of_t(2, 9), source_of_t(7, 9)]}
        lag = lag_of_query(progress, options=kafka.bootstrap_servers)
    assert [row.seconds_behind is not None for row in lag] == [True, True]
