"""A new query logs its starting offsets and their reason once; at WARN if it leaves out existing records."""

from __future__ import annotations

import logging

import pytest

from protocol.errors import DataLoss
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.testing.fake_kafka.offsets import Committed
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.plan.offsets import JsonDict
from tests.driver.changing_logs import BOTH, Cluster, next_end, offsets_read, ranges, read_to
from tests.protocol.fetch.consuming import client_of, records
from tests.support.offsets import epochs_of
from tests.support.stale_coordinator import keep_deleted_topic
from tests.support.wait_until import wait_until

LATEST = "a-0 at 20, a-1 at 20. The 40 offsets before that are not read. To read them, set startingOffsets=earliest"
SINCE = "since group new has no committed offsets"
HALF = "a-0 at 7, a-1 at 20. The 20 offsets before that are not read. To read them, set startingOffsets=earliest"


def logged(cluster: Cluster, caplog: pytest.LogCaptureFixture, **options: object) -> tuple[int, str]:
    """Return level and text of the one log line of a query's start."""
    caplog.set_level(logging.INFO, "spark_kafka_source.driver.start_offsets")
    reader = cluster.reader(**{"commitOffsets": "false" if "kafka.group.id" in options else None, **options})
    start = next_end(reader, reader.initialOffset())
    next_end(reader, start)
    (line,) = [entry for entry in caplog.records if "it starts at" in entry.getMessage()]
    return line.levelno, line.getMessage().removeprefix("no batch of this query is complete yet: it starts at ")


NEW = {"kafka.group.id": "new"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, f"startingOffsets=latest (the default without kafka.group.id): {LATEST}"),
        ({"startingOffsets": "latest"}, f"startingOffsets=latest: {LATEST}"),
        (NEW, f"kafka.auto.offset.reset=latest, the default, {SINCE}: {LATEST}"),
        ({**NEW, "kafka.auto.offset.reset": "latest"}, f"kafka.auto.offset.reset=latest, {SINCE}: {LATEST}"),
        ({"startingOffsets": "earliest"}, "startingOffsets=earliest: a-0 at 0, a-1 at 0"),
        ({"startingOffsets": '{"a": {"0": 3, "1": -1}}'}, "startingOffsets: a-0 at 3, a-1 at 20"),
        (
            {"startingTimestamp": "2100-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"},
            "startingTimestamp: a-0 at 20, a-1 at 20",
        ),
        (
            {**NEW, "kafka.auto.offset.reset": "earliest"},
            f"kafka.auto.offset.reset=earliest, {SINCE}: a-0 at 0, a-1 at 0",
        ),
        ({"subscribe": None, "subscribePattern": "none.*"}, "startingOffsets=latest (the default without "),
    ],
    ids=["default", "latest", "group", "group, latest", "earliest", "JSON", "timestamp", "group, earliest", "no topic"],
)
def test_start_is_logged_with_its_reason_and_warns_of_unread_records(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, str], expected: str
) -> None:
    level, line = logged(cluster, caplog, **options)
    assert line.startswith(expected), line
    assert level == (logging.WARNING if LATEST in expected else logging.INFO)


def test_group_offset_of_a_deleted_topic_is_no_start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_deleted_topic(monkeypatch, cluster, "g", {("a", 0): 7, ("a", 1): 7})
    reader = cluster.reader(**{"kafka.group.id": "g", "kafka.auto.offset.reset": "earliest", "commitOffsets": "false"})
    assert reader.query.starting_offsets(reader.query.deadline()).ends == {("a", 0): 0, ("a", 1): 0}


def test_start_at_log_end_offsets_of_empty_logs_logs_info(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.recreate("a", (0, 0), (20, 20))
    level, line = logged(cluster, caplog, **{"kafka.group.id": "new"})
    assert (level, line.endswith(": a-0 at 0, a-1 at 20")) == (logging.INFO, True), line


def test_start_at_group_offsets_names_partitions_without_offset(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(cluster.bootstrap_servers) as client:
        commit_offsets(client, "half", {("a", 0): CommittedOffset(7)}, client.deadline())
        level, line = logged(cluster, caplog, **{"kafka.group.id": "half"})
        assert level == logging.WARNING
        assert line.startswith(
            "the offsets of group half; for a-1, without a committed offset, kafka.auto.offset.reset=latest, the "
            f"default: {HALF}"
        ), line
        caplog.clear()
        commit_offsets(client, "whole", {("a", 0): CommittedOffset(7), ("a", 1): CommittedOffset(0)}, client.deadline())
        assert logged(cluster, caplog, **{"kafka.group.id": "whole"}) == (
            logging.INFO,
            "the offsets of group whole: a-0 at 7, a-1 at 0",
        )


def test_start_log_line_counts_partitions_beyond_three(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.recreate("a", *[(0, 1)] * 12)
    assert logged(cluster, caplog, startingOffsets="earliest")[1].endswith(", a-2 at 0 and 9 more")


def test_resumed_query_logs_no_start(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_kafka_source")
    reader = cluster.reader(startingOffsets="latest")
    next_end(reader, {"a": {"0": 5, "1": 6}})
    assert "it starts at" not in caplog.text
    assert "resuming from the checkpoint" in caplog.text


@pytest.mark.parametrize("checkpoint", [5, 18])
def test_resumed_query_that_commits_nothing_does_not_compare_with_its_group(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, checkpoint: int
) -> None:
    caplog.set_level(logging.INFO, "spark_kafka_source")
    cluster.offsets.committed["g"] = {("a", 0): Committed(15, -1, "")}
    reader = cluster.reader(**{"kafka.group.id": "g", "commitOffsets": "false"})
    next_end(reader, read_to(checkpoint))
    assert caplog.messages == ["resuming from the checkpoint (commitOffsets=false)"]


@pytest.mark.parametrize(
    ("option", "remedy", "effect"),
    [
        ("startingOffsets", "to start at", "3 offsets are skipped"),
        ("endingOffsets", "to end at", "the end is offset 8"),
    ],
)
def test_offset_before_the_log_start_names_the_remedy_of_its_option(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, option: str, remedy: str, effect: str
) -> None:
    cluster.log("a", 0).delete_before(8)
    settings = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "subscribe": "a",
        option: '{"a": {"0": 5, "1": 9}}',
    }
    strict, lax = (
        parse_source_options({**settings, "failOnDataLoss": fails}, streaming=False) for fails in ("true", "false")
    )
    with pytest.raises(DataLoss, match=f"{option}: offset 5 of a-0 .* {remedy} the log start offset"):
        KafkaBatchReader(strict).partitions()
    KafkaBatchReader(lax).partitions()
    assert effect in caplog.text


@pytest.mark.parametrize(
    "end",
    [
        {"endingOffsets": "latest"},
        {"endingOffsets": '{"a": {"0": -1, "1": -1}}'},
        {"endingTimestamp": "2100-01-01T00:00:00Z"},
        {"endingOffsetsByTimestamp": '{"a": {"0": 4102444800000, "1": 4102444800000}}'},
    ],
)
def test_batch_that_starts_after_the_last_stable_offset_ends_there(cluster: Cluster, end: dict[str, str]) -> None:
    cluster.set_log("a", 0, 0, 20, stable=10)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "a", **end}
    options |= {"startingOffsets": '{"a": {"0": 15, "1": 0}}', "kafka.isolation.level": "read_committed"}
    (task,) = KafkaBatchReader(parse_source_options(options, streaming=False)).partitions()
    assert [(part.topic_partition, part.until_offset) for part in task.ranges] == [(("a", 1), 20)]


# -- a log that was truncated below the group's offset, and has grown again ---------------------------------------


@pytest.fixture
def regrown(cluster: Cluster) -> Cluster:
    """Return a cluster whose group has committed 20 in epoch 5; a-0 has other records from 14 on, up to 30."""
    cluster.rewrite("a", 0, b"".join(records(offset, 1, epoch=5) for offset in range(20)))
    with client_of(cluster.bootstrap_servers) as client:
        commit_offsets(client, "g", {key: CommittedOffset(20, 5) for key in BOTH}, client.deadline())
    cluster.log("a", 0).truncate(14)
    cluster.set_leader_epoch("a", 0, 6)
    cluster.write("a", 0, b"".join(records(offset, 1, epoch=6) for offset in range(14, 30)))
    return cluster


PROTOCOLS = pytest.mark.parametrize("protocol", ["none", "classic", "consumer"])


def test_replaced_group_offset_is_in_the_log(regrown: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Retention has removed the first of the records that have replaced the old ones."""
    regrown.log("a", 0).delete_before(16)
    reader = regrown.reader(**{"kafka.group.id": "g", "failOnDataLoss": "false"})
    assert offsets_read(reader, *first_batch(reader)) == list(range(16, 30))
    assert "Starts at 16: 2 offsets are skipped" in caplog.text
    reader.stop()


@PROTOCOLS
def test_group_offset_of_a_truncated_log_is_a_loss(regrown: Cluster, protocol: str) -> None:
    reader = regrown.reader(**{"kafka.group.id": "g", "kafka.group.protocol": protocol})
    with pytest.raises(DataLoss, match=r"offset 20 of a-0 is out of range: the log holds \[0, 14\) .* leader epoch 5"):
        first_batch(reader)
    reader.stop()
    assert regrown.offsets.committed["g"]["a", 0].offset == 20


@PROTOCOLS
@pytest.mark.parametrize("end", [17, 30])
def test_group_offset_of_a_truncated_log_is_replaced(
    regrown: Cluster, caplog: pytest.LogCaptureFixture, protocol: str, end: int
) -> None:
    regrown.log("a", 0).truncate(end)
    options = {"kafka.group.id": "g", "kafka.group.protocol": protocol, "failOnDataLoss": "false"}
    reader = regrown.reader(**options)
    assert offsets_read(reader, *first_batch(reader)) == list(range(14, end))
    assert "Starts at 14: 0 offsets are skipped" in caplog.text
    reader.stop()


def test_epoch_of_the_group_does_not_outlive_its_topic(regrown: Cluster) -> None:
    """The topic is recreated after the start was resolved; its leader epochs begin again."""
    with client_of(regrown.bootstrap_servers) as client:
        commit_offsets(client, "g", {("a", 0): CommittedOffset(20, 6)}, client.deadline())
    reader = regrown.reader(**{"kafka.group.id": "g", "failOnDataLoss": "false"})
    assert epochs_of(reader.query.starting_offsets(reader.query.deadline())) == {("a", 0): 6, ("a", 1): 5}
    regrown.recreate("a", (0, 25), (0, 25))
    _, end = first_batch(reader)
    assert end["a"] == {"0": 25, "1": 25}
    reader.stop()


def first_batch(reader: KafkaStreamReader) -> tuple[JsonDict, JsonDict]:
    """Return start and end of a query's first batch."""
    begin = reader.initialOffset()
    end = begin
    while end == begin or "a" not in end:  # a member waits for its assignment
        end = next_end(reader, begin)
    return begin, end


@PROTOCOLS
def test_query_that_reads_nothing_keeps_the_epoch_of_its_group(regrown: Cluster, protocol: str) -> None:
    """Otherwise the next reader of the group could not detect a truncation."""
    with client_of(regrown.bootstrap_servers) as client:
        commit_offsets(client, "g", {("a", 0): CommittedOffset(30, 6)}, client.deadline())
    reader = regrown.reader(**{"kafka.group.id": "g", "kafka.group.protocol": protocol})
    committed_before = len(regrown.request_bodies("OffsetCommit"))
    begin, end = first_batch(reader)
    assert ranges(reader, begin, end) == []
    next_end(reader, end)

    def commits() -> set[tuple[int, int]]:
        bodies = regrown.request_bodies("OffsetCommit")[committed_before:]
        rows = [row for body in bodies for topic in body["topics"] for row in topic["partitions"]]
        return {(row["committed_offset"], row["committed_leader_epoch"]) for row in rows}

    wait_until(lambda: len(commits()) == 2)
    reader.stop()
    assert commits() == {(30, 6), (20, 5)}
