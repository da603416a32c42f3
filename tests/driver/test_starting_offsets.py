"""A new query logs its starting offsets and their reason once; at WARN if it leaves out existing records."""

from __future__ import annotations

import logging

import pytest

from protocol.group.committed_offsets import CommittedOffset, commit_offsets
from tests.driver.changing_logs import Cluster
from tests.protocol.consumer.consuming import client_of

LATEST = "a-0 at 20, a-1 at 20. The 40 offsets before that are not read. To read them, set startingOffsets=earliest"
HALF = "a-0 at 7, a-1 at 20. The 20 offsets before that are not read. To read them, set startingOffsets=earliest"


def logged(cluster: Cluster, caplog: pytest.LogCaptureFixture, **options: object) -> tuple[int, str]:
    """Return level and text of the one log line of a query's start."""
    caplog.set_level(logging.INFO, "spark_kafka_source.driver.start_offsets")
    reader = cluster.reader(**{"commitOffsets": "false" if "kafka.group.id" in options else None, **options})
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    reader.latestOffset(start, reader.getDefaultReadLimit())
    (line,) = [entry for entry in caplog.records if "it starts at" in entry.getMessage()]
    return line.levelno, line.getMessage().removeprefix("no batch of this query is complete yet: it starts at ")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "startingOffsets=latest (the default without kafka.group.id): "),
        ({"startingOffsets": "latest"}, "startingOffsets=latest: "),
        (
            {"kafka.group.id": "new"},
            "kafka.auto.offset.reset=latest, the default, since group new has no committed offsets: ",
        ),
        (
            {"kafka.group.id": "new", "kafka.auto.offset.reset": "latest"},
            "kafka.auto.offset.reset=latest, since group new has no committed offsets: ",
        ),
    ],
)
def test_start_at_log_end_offsets_warns_of_skipped_records(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, str], why: str
) -> None:
    level, line = logged(cluster, caplog, **options)
    assert (level, line.startswith(why + LATEST)) == (logging.WARNING, True), line


def test_start_at_log_end_offsets_of_empty_logs_logs_info(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.recreate("a", (0, 0), (20, 20))
    level, line = logged(cluster, caplog, **{"kafka.group.id": "new"})
    assert (level, line.endswith(": a-0 at 0, a-1 at 20")) == (logging.INFO, True), line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"startingOffsets": "earliest"}, "startingOffsets=earliest: a-0 at 0, a-1 at 0"),
        ({"startingOffsets": '{"a": {"0": 3, "1": -1}}'}, "startingOffsets: a-0 at 3, a-1 at 20"),
        (
            {"startingTimestamp": "2100-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"},
            "startingTimestamp: a-0 at 20, a-1 at 20",
        ),
        (
            {"kafka.group.id": "new", "kafka.auto.offset.reset": "earliest"},
            "kafka.auto.offset.reset=earliest, since group new has no committed offsets: a-0 at 0, a-1 at 0",
        ),
        ({"subscribe": None, "subscribePattern": "none.*"}, "startingOffsets=latest (the default without "),
    ],
)
def test_start_without_unexpected_skips_logs_info(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, str], line: str
) -> None:
    level, logged_line = logged(cluster, caplog, **options)
    assert (level, logged_line.startswith(line)) == (logging.INFO, True), logged_line


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


def test_start_log_line_counts_partitions_beyond_ten(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.recreate("a", *[(0, 1)] * 12)
    assert logged(cluster, caplog, startingOffsets="earliest")[1].endswith(", a-9 at 0 and 2 more")


def test_resumed_query_logs_no_start(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spark_kafka_source")
    reader = cluster.reader(startingOffsets="latest")
    reader.latestOffset({"a": {"0": 5, "1": 6}}, reader.getDefaultReadLimit())
    assert "it starts at" not in caplog.text
    assert "resuming from the checkpoint" in caplog.text
