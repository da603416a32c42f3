"""Offsets deleted from the log before they are read, as a trigger counts them, without Spark."""

from __future__ import annotations

import logging

import pytest

from protocol.errors import DataLoss
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.options.parsing import parse_source_options
from tests.driver.changing_logs import Cluster, next_end, ranges, read_to


def test_lost_offsets_are_counted_in_the_end_of_the_batch(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    reader = cluster.reader(failOnDataLoss="false")
    cluster.set_log("a", 0, 15, 25)
    cluster.set_log("a", 1, 18, 20)
    begin = read_to(10)
    end = next_end(reader, begin)
    assert (end["a"], end["@skipped"]) == ({"0": 25, "1": 20}, {"a": {"0": 5}})
    # a-1 has nothing to read.
    assert cluster.list_offsets_for_log_starts == [[("a", 0)]]
    # After further deletions a replay plans the same range, also by another reader without failOnDataLoss=false.
    cluster.set_log("a", 0, 21, 25)
    for again in (reader, cluster.reader()):
        assert ranges(again, begin, end) == [(0, 15, 25)]
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "offsets 10 to 15 of a-0 are no longer in the log" in warnings[0]
    assert "5 offsets are skipped" in warnings[0]

    # All unread offsets of one partition are deleted; the other partition is complete.
    cluster.set_log("a", 0, 40, 40)
    cluster.set_log("a", 1, 0, 23)
    last = next_end(reader, end)
    assert (last["a"], last["@skipped"]) == ({"0": 40, "1": 23}, {"a": {"0": 20}})
    assert ranges(reader, end, last) == [(1, 20, 23)]
    assert next_end(reader, last) == last
    cluster.set_log("a", 0, 40, 42)
    after = next_end(reader, last)
    assert (after["a"], after["@skipped"]) == ({"0": 42, "1": 23}, {"a": {"0": 20}})
    assert "@joined" not in after
    assert ranges(reader, last, after) == [(0, 40, 42)]


def test_offsets_missing_from_replayed_batch_are_counted_by_next_batch(cluster: Cluster) -> None:
    """A query that failed with data loss resumes with failOnDataLoss=false: an empty next batch counts the loss."""
    begin = read_to(10)
    end = cluster.reader().latestOffset(begin)
    cluster.set_log("a", 0, 15, 20)
    reader = cluster.reader(failOnDataLoss="false", minPartitions=5)
    assert ranges(reader, begin, end) == [(0, at, at + 2) for at in range(10, 20, 2)]
    counted = next_end(reader, end)
    assert counted == {**end, "@skipped": {"a": {"0": 5}}}
    assert ranges(reader, end, counted) == []
    assert next_end(reader, counted) == counted


def test_limit_is_distributed_over_existing_offsets(cluster: Cluster) -> None:
    cluster.set_log("a", 0, 1_000, 1_010)
    reader = cluster.reader(failOnDataLoss="false", maxOffsetsPerTrigger=10)
    begin = read_to(0, 10)
    end = next_end(reader, begin)
    assert ranges(reader, begin, end) == [(0, 1_000, 1_005), (1, 10, 15)]
    assert end["@skipped"] == {"a": {"0": 1_000}}


def test_delayed_batch_counts_no_skipped_offsets(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    reader = cluster.reader(failOnDataLoss="false", minOffsetsPerTrigger=10)
    begin = read_to(20)
    next_end(reader, begin)
    cluster.set_log("a", 0, 95, 100)
    for _ in range(2):
        assert next_end(reader, begin) == begin
    assert not caplog.records
    cluster.set_log("a", 0, 95, 105)
    assert next_end(reader, begin)["@skipped"] == {"a": {"0": 75}}


def test_truncated_offsets_that_were_read_are_not_counted_as_skipped(cluster: Cluster) -> None:
    cluster.set_log("a", 0, 0, 7)
    reader = cluster.reader(failOnDataLoss="false")
    begin = {**read_to(10), "@skipped": {"a": {"1": 3}}}
    end = next_end(reader, begin)
    assert (end["a"], end["@skipped"]) == ({"0": 7, "1": 20}, {"a": {"1": 3}})


def test_deleted_first_offsets_of_new_partition_are_counted(cluster: Cluster) -> None:
    cluster.set_log("a", 2, 4, 9)
    reader = cluster.reader(failOnDataLoss="false")
    end = next_end(reader, read_to(20))
    assert (end["a"]["2"], end["@skipped"]) == (9, {"a": {"2": 4}})


def test_query_with_fail_on_data_loss_requests_no_log_start_offsets(cluster: Cluster) -> None:
    cluster.set_log("a", 0, 15, 20)
    reader = cluster.reader()
    begin = read_to(10)
    end = next_end(reader, begin)
    assert ranges(reader, begin, end) == [(0, 10, 20)]
    assert cluster.list_offsets_for_log_starts == []
    assert "@skipped" not in end


def test_batch_read_of_deleted_offsets_error_says_to_load_again(cluster: Cluster) -> None:
    """Spark plans a DataFrame once, at its first action."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "a"}
    reader = KafkaBatchReader(parse_source_options(options, streaming=False))
    task, _ = reader.partitions()
    cluster.set_log("a", 0, 15, 25)
    with pytest.raises(DataLoss, match=r"failOnDataLoss=false.* Call load\(\) again"):
        list(reader.read(task))
