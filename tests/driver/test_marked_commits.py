"""Offsets that a trigger stages for commit to the group, without Spark."""

from __future__ import annotations

import logging

import pytest

from protocol.cluster import unknown_topic
from protocol.cluster.metadata import topic_id_text
from protocol.errors import DataLoss
from protocol.group.commits.committed_offsets import CommittedOffset, commit_offsets
from protocol.position import Position
from spark_kafka_source.driver import group_commits, trigger
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.offsets import Offsets
from spark_kafka_source.spark_api import ReadAllAvailable
from tests.driver.changing_logs import BOTH, ID_OF_B, OLD_ID, Cluster, Marks, next_end, ranges, read_to
from tests.support.wait_until import wait_until


@pytest.mark.parametrize("label", ["recreated", "recreated, and read", "deleted"])
def test_recreated_or_deleted_topic_gets_no_commit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    reader = cluster.reader(onTopicRecreated="earliest" if label.endswith("read") else "fail")
    marks = reader.query.commits.manager = Marks()  # type: ignore[assignment]
    reader.query.running = True
    begin = {**read_to(20), "b": {"0": 3}, "@ids": {"a": topic_id_text(OLD_ID), "b": topic_id_text(ID_OF_B)}}
    assert next_end(reader, begin) == begin
    assert marks.marked == [{("a", 0): 20, ("a", 1): 20, ("b", 0): 3}]
    if label == "deleted":
        cluster.delete_topic("a")
    else:
        cluster.recreate("a", (0, 20), (0, 20))
    marks.marked.clear()
    if label.endswith("read"):
        end = next_end(reader, begin)
        reader.commit(begin)
        assert marks.marked == [{("b", 0): 3}] * 2
        assert next_end(reader, end) == end
        assert marks.marked[-1] == {("a", 0): 20, ("a", 1): 20, ("b", 0): 3}
    else:
        with pytest.raises(DataLoss):
            next_end(reader, begin)
        assert marks.marked == [{("b", 0): 3}]
    # A failing trigger also waits for the commit.
    assert marks.flushes == (3 if label.endswith("read") else 2)


def test_revoked_partition_gets_no_commit_and_no_warning(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Assignments of group members have revoked partitions, at whose committed offsets another member resumes."""
    assignment = QueryAssignment({("a", 0): OLD_ID}, kept={("a", 1)})
    monkeypatch.setattr(trigger, "query_assignment", lambda *_: assignment)
    reader = cluster.reader()
    marks = reader.query.commits.manager = Marks()  # type: ignore[assignment]
    reader.query.running = True
    cluster.set_log("a", 1, 0, 40)
    end = next_end(reader, read_to(15))
    assert end == read_to(20)
    assert ranges(reader, read_to(15), end) == [(0, 15, 20)]
    assert next_end(reader, end) == end
    assignment = QueryAssignment(dict.fromkeys(BOTH, OLD_ID), starts={("a", 1): Position(30)})
    after = next_end(reader, end)
    reader.commit(end)
    assert ranges(reader, end, after) == [(1, 30, 40)]
    assert marks.marked == [{("a", 0): 15}, {("a", 0): 20}, *[{("a", 0): 20, ("a", 1): 30}] * 2]
    assert not [entry for entry in caplog.records if entry.levelno >= logging.WARNING]


def test_each_batch_is_logged_once(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """An idle query would otherwise write a line per trigger."""
    caplog.set_level(logging.INFO, "spark_kafka_source.driver.group_commits")
    reader = cluster.reader()
    reader.query.commits.manager = Marks()  # type: ignore[assignment]
    end = next_end(reader, read_to(15))
    for _ in range(3):
        assert next_end(reader, end) == end
    committing = "group g: committing what is complete"
    assert caplog.messages[1:] == [f"{committing}: a-0 15, a-1 20", f"{committing}: a-0 20"]


def test_idle_query_commits_its_offsets_again_after_a_reset(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_commits, "_COMPARE_MS", 10)
    reader = cluster.reader(startingOffsets="earliest", **{"kafka.group.id": "reset-g"})
    client, key = reader.query.client, ("a", 0)
    end = next_end(reader, reader.initialOffset())
    next_end(reader, end)
    assert Offsets.from_progress(reader.reportLatestOffset()).group == "reset-g"
    # The trigger waits a second for this commit; a late one would undo the reset.
    wait_until(lambda: cluster.committed_offsets("reset-g").get(key) == 20)
    commit_offsets(client, "reset-g", {key: CommittedOffset(3)}, client.deadline())
    wait_until(lambda: cluster.committed_offsets("reset-g")[key] == 20)
    reader.stop()
    assert len([message for message in caplog.messages if "a-0 had 3, gets 20" in message]) == 1


@pytest.mark.parametrize(
    ("options", "once", "warned"),
    [
        ({"kafka.group.id": "once-g"}, True, True),
        ({"kafka.group.id": "once-g2"}, False, False),
        ({"kafka.group.id": "once-g3", "commitOffsets": "false"}, True, False),
        ({}, True, False),
    ],
    ids=["once", "another trigger", "without commits", "without a group"],
)
def test_trigger_once_with_group_warns_of_uncommitted_batch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, options: dict[str, str], once: bool, warned: bool
) -> None:
    reader = cluster.reader(startingOffsets="earliest", **options)
    limit = ReadAllAvailable() if once else reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    assert end["a"] == {"0": 20, "1": 20}
    assert any("trigger(availableNow=True)" in entry.getMessage() for entry in caplog.records) == warned
    reader.stop()
