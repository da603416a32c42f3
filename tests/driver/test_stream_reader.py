"""Triggers against unusual replies of brokers, on the fake cluster, without Spark."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, cast

import pytest

from protocol import EARLIEST, Client, CommittedOffset
from protocol.base.clock import Deadline
from protocol.cluster import unknown_topic
from protocol.cluster.metadata import topic_id_text
from protocol.config import ConsumerConfig
from protocol.errors import ConfigurationError, DataLoss, DeadlineExceeded
from protocol.fetch import log_offsets
from protocol.fetch.log_offsets import Range
from protocol.group.member import NO_MEMBER
from protocol.kafka_terms import TopicIds
from protocol.testing import ManualClock
from protocol.testing.fake_kafka.faults import ALWAYS
from protocol.testing.fake_kafka.handlers import VERSIONS
from protocol.wire.messages.m02_list_offsets import LIST_OFFSETS
from protocol.wire.messages.m23_offset_for_leader_epoch import OFFSET_FOR_LEADER_EPOCH
from spark_kafka_source.driver import start_offsets
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.offsets import JsonDict, Offsets
from spark_kafka_source.task import range_reader
from tests.driver.changing_logs import BOTH, ID_OF_B, OLD_ID, Cluster, next_end, ranges, read_to
from tests.support.wait_until import wait_until

# -- a topic deleted during a trigger -----------------------------------------------------------------


@pytest.fixture
def cluster_deleting_b_after_metadata(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Metadata still has topic b, ListOffsets does not: brokers learn of a deletion one after the other."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 200)
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    cluster.before[LIST_OFFSETS] = lambda body: cluster.delete_if_there("b")
    return cluster


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fail", [True, False])
def test_deleted_topic_in_batch_of_sparks_connector_is_data_loss(
    cluster_deleting_b_after_metadata: Cluster, fail: bool
) -> None:
    """Such offsets have no starting offsets for new partitions, so that the reader asks the brokers."""
    reader = cluster_deleting_b_after_metadata.reader(failOnDataLoss=str(fail))
    start, end = {"a": {"0": 5, "1": 20}}, {"a": {"0": 8, "1": 20}, "b": {"0": 3}}
    if fail:
        with pytest.raises(DataLoss, match=r"PARTITIONS_DELETED\].* b-0 no longer exists"):
            reader.partitions(start, end)
    else:
        assert ranges(reader, start, end) == [(0, 5, 8)]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize(
    ("how", "topics", "says"),
    [("subscribe", "b,c", "b, c"), ("subscribePattern", "^b$", "subscribePattern=^b$"), ("assign", '{"b": [0]}', "b")],
)
def test_checkpoint_of_another_query_is_refused_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str, topics: str, says: str, replayed: bool
) -> None:
    """Also for a batch that is replayed: it would read the topics of the other query."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 60_000)
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    reader = cluster.reader(**{"subscribe": None, how: topics})
    read = partial(reader.partitions, read_to(5)) if replayed else reader.latestOffset
    with pytest.raises(ConfigurationError) as raised:
        read(read_to(10))
    assert str(raised.value) == (
        f"The checkpoint belongs to another query: it has offsets of a, and this query subscribes to {says}. Nothing "
        "is read or committed. Use the checkpointLocation that belongs to this query, or a new one"
    )


def test_checkpoint_of_other_topics_is_a_warning_without_fail_on_data_loss(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    reader = cluster.reader(subscribe="b", failOnDataLoss="false")
    assert next_end(reader, read_to(10))["b"] == {"0": 3}
    assert "the checkpoint has a-0 up to offset 10, a-1 up to offset 20, and this query does not" in caplog.text


READ_B = {"b": {"0": 3}, "@ids": {"a": topic_id_text(OLD_ID), "b": topic_id_text(ID_OF_B)}}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("fail", [True, False])
def test_topic_deleted_during_trigger_is_data_loss_without_wait(
    cluster_deleting_b_after_metadata: Cluster, fail: bool
) -> None:
    reader = cluster_deleting_b_after_metadata.reader(failOnDataLoss=str(fail))
    begin = {**read_to(10), **READ_B}
    if fail:
        with pytest.raises(DataLoss, match=r"PARTITIONS_DELETED\].* b-0 no longer exists"):
            next_end(reader, begin)
    else:
        assert next_end(reader, begin)["a"] == {"0": 20, "1": 20}


class SuspendedMembership:
    """The driver is suspended for longer than a call may take, after a trigger's first look at the logs."""

    member = NO_MEMBER

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._suspends = True

    @property
    def assignment_lost(self) -> bool:
        suspends, self._suspends = self._suspends, False
        self._clock.advance(1_000 * suspends)
        return suspends

    def keep_starting_offsets(self, starting: Offsets) -> None: ...

    def poll_assignment(self, existing: TopicIds, completed: Offsets, **_: object) -> TopicIds:
        return existing

    def fetch_start_positions(self, assignment: QueryAssignment, *_: object) -> QueryAssignment:
        return assignment


@pytest.mark.timeout(20)
def test_topic_deleted_during_trigger_after_suspension_is_skipped_without_fail_on_data_loss(cluster: Cluster) -> None:
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    reader = cluster.reader(failOnDataLoss="false")
    clock = ManualClock()
    reader.query.client.clock = clock
    reader.query.membership = cast("Any", SuspendedMembership(clock))
    looks = iter([lambda: None, lambda: cluster.delete_if_there("b")])
    cluster.before[LIST_OFFSETS] = lambda body: next(looks, lambda: None)()
    begin = {**read_to(10), **READ_B}
    assert reader.latestOffset(begin, reader.getDefaultReadLimit())["a"] == {"0": 20, "1": 20}


@pytest.mark.timeout(20)
def test_repeated_planning_warns_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Topic b is deleted after the trigger has found that topic a was recreated."""
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 200)
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    cluster.recreate("a", (0, 20), (0, 20))

    def delete(body: dict[str, Any]) -> None:
        if body["topics"][0]["partitions"][0]["timestamp"] == EARLIEST:
            cluster.delete_if_there("b")

    cluster.before[LIST_OFFSETS] = delete
    reader = cluster.reader(failOnDataLoss="false")
    end = next_end(reader, read_to(10))
    assert end["a"] == {"0": 20, "1": 20}
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert len([warning for warning in warnings if "topic a was deleted and created again" in warning]) == 1, warnings


def test_query_without_topics_before_pyspark_4_2_reads_new_ones_from_beginning(cluster: Cluster) -> None:
    """An empty end offset counts as an end: the query does not apply startingOffsets again."""
    reader = cluster.reader(subscribe=None, subscribePattern="a", startingOffsets="latest")
    assert reader.partitions({}, {}) == []
    assert reader.latestOffset()["@joined"] == {"a": {"0": 0, "1": 0}}


@pytest.mark.timeout(20)
def test_planning_with_leader_that_never_knows_topic_times_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_topic, "TRANSIENT_UNKNOWN_MS", 100)
    cluster.refuse(LIST_OFFSETS, "UNKNOWN_TOPIC_OR_PARTITION", ALWAYS)
    brief = {"kafka.default.api.timeout.ms": 1_000, "fetchOffset.numRetries": 0}
    reader = cluster.reader(assign='{"a": [0]}', subscribe=None, **brief)
    begin = {**read_to(20), "a": {"0": 20}, "@epochs": {}}
    with pytest.raises(DeadlineExceeded):
        next_end(reader, begin)


# -- a replaced leader that still answers -------------------------------------------------------------


@pytest.mark.parametrize("stale_end", [7, 15], ids=["behind what was read", "beyond it"])
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_stale_leader_moves_no_position(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, stale_end: int, fail_on_data_loss: str
) -> None:
    cluster.set_log("a", 0, 0, stale_end, epoch=4)
    reader = cluster.reader(failOnDataLoss=fail_on_data_loss)
    begin = read_to(10)
    for _ in range(2):
        assert next_end(reader, begin) == begin
    assert [entry.getMessage().split(":")[0] for entry in caplog.records if entry.levelno == logging.WARNING] == ["a-0"]
    # The lag does not use the stale log end offset.
    assert reader.reportLatestOffset() == {"a": {"1": 20}, "@ids": {"a": topic_id_text(OLD_ID)}}

    cluster.set_log("a", 1, 0, 21)
    second = next_end(reader, begin)
    assert second == read_to(10, 21)
    cluster.set_log("a", 0, 0, 12, epoch=6)
    end = next_end(reader, second)
    assert (end["a"], end["@epochs"]) == ({"0": 12, "1": 21}, {"a": {"0": 6, "1": 5}})


def test_stale_leader_does_not_reset_group_offsets(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's commit is from epoch 5, at an offset that the leader of epoch 4 does not have."""
    committed = {("a", 0): CommittedOffset(10, 5), ("a", 1): CommittedOffset(20, 5)}
    monkeypatch.setattr(start_offsets, "fetch_start_offsets", lambda *_, **__: committed)
    cluster.set_log("a", 0, 0, 7, epoch=4)

    def replace_on_fourth_request(body: dict[str, Any]) -> None:
        if len(cluster.request_bodies(LIST_OFFSETS)) == 4:
            cluster.set_log("a", 0, 0, 12, epoch=6)

    cluster.before[LIST_OFFSETS] = replace_on_fourth_request
    options = {"startingOffsets": "group", "kafka.group.id": "g", "kafka.retry.backoff.ms": "20"}
    reader = cluster.reader(**options)
    source_options = cluster.options(**options)
    begins = start_offsets.starting_offsets(reader.query.client, source_options, BOTH, Deadline.after_ms(9_000))
    assert begins == {("a", 0): CommittedOffset(10, 5), ("a", 1): CommittedOffset(20, 5)}
    assert len(cluster.request_bodies(LIST_OFFSETS)) == 4


def test_group_offsets_of_earlier_topic_do_not_delay_start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader epochs look stale, and no leader will report a newer one."""
    monkeypatch.setattr(log_offsets, "STALE_LEADER_MS", 300)
    committed = {("a", 0): CommittedOffset(10, 9), ("a", 1): CommittedOffset(20, 9)}
    monkeypatch.setattr(start_offsets, "fetch_start_offsets", lambda *_, **__: committed)
    options = {"startingOffsets": "group", "kafka.group.id": "g"}
    deadline = Deadline.after_ms(30_000)
    client = cluster.reader(**options).query.client
    begins = start_offsets.starting_offsets(client, cluster.options(**options), BOTH, deadline)
    assert begins == {("a", 0): CommittedOffset(10), ("a", 1): CommittedOffset(20)}
    assert deadline.remaining_s() > 20


def test_task_range_has_leader_epochs_of_its_plan(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.set_log("a", 0, 0, 12, epoch=6)
    reader = cluster.reader()
    begin = read_to(10)
    (task,) = reader.partitions(begin, next_end(reader, begin))
    requested: list[Range] = []

    def read(client: Client, config: ConsumerConfig, ranges: list[Range], **_: object) -> list[Any]:
        requested.extend(ranges)
        return []

    monkeypatch.setattr(range_reader, "BoundedReader", read)
    assert list(reader.read(task)) == []
    assert requested == [Range("a", 0, 10, 12, OLD_ID, from_epoch=5, until_epoch=6)]


def test_older_leader_epoch_without_topic_id_is_data_loss(cluster: Cluster) -> None:
    cluster.delete_topic("a")
    cluster.add("a", (0, 7), (0, 20), topic_id=bytes(16))
    cluster.set_log("a", 0, 0, 7, epoch=4)
    begin = {key: rows for key, rows in read_to(10).items() if key != "@ids"}
    reader = cluster.reader()
    with pytest.raises(Exception, match=r"OFFSET_CHANGED\] a-0 ends at offset 7, but the query has read up to 10"):
        next_end(reader, begin)


# -- an open transaction that began before the position -----------------------------------------------


@pytest.mark.parametrize("available_now", [False, True])
def test_position_beyond_last_stable_offset_waits(cluster: Cluster, available_now: bool) -> None:
    cluster.set_log("a", 0, 0, 20, stable=5)
    reader = cluster.reader(**{"kafka.isolation.level": "read_committed"})
    if available_now:
        reader.prepareForTriggerAvailableNow()
    assert next_end(reader, read_to(15)) == read_to(15)
    # The position is reported, not the last stable offset below it: the lag is not negative.
    assert reader.reportLatestOffset() == {"a": {"0": 15, "1": 20}, "@ids": {"a": topic_id_text(OLD_ID)}}
    cluster.set_log("a", 1, 0, 30)
    end = next_end(reader, read_to(15))
    assert end == read_to(15, 20 if available_now else 30)
    cluster.set_log("a", 0, 0, 20)
    reader = cluster.reader()
    assert next_end(reader, read_to(15))["a"]["0"] == 20


def test_position_at_the_end_of_a_log_needs_no_offset_for_leader_epoch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some brokers lack the request, such as those of Kafka-compatible services."""
    monkeypatch.delitem(VERSIONS, OFFSET_FOR_LEADER_EPOCH)
    cluster.set_leader_epoch("a", 0, 6)
    reader = cluster.reader()
    assert next_end(reader, read_to(20)) == read_to(20)


# -- another cluster ----------------------------------------------------------------------------------

OLDER = {key: rows for key, rows in read_to(20).items() if key != "@cluster"}


def test_query_that_starts_on_another_cluster_names_both_and_commits_nothing(cluster: Cluster) -> None:
    begin = {**read_to(10, topic_id=ID_OF_B), "@cluster": {"id": "former"}}
    clusters = ("offsets of cluster former", "kafka.bootstrap.servers=127.0.0.1:", "cluster fake")
    for call in (lambda reader: reader.latestOffset(begin), lambda reader: reader.partitions(begin, begin)):
        reader = cluster.reader(**{"kafka.group.id": "etl"})
        with pytest.raises(ConfigurationError) as raised:
            call(reader)
        assert all(text in str(raised.value) for text in (*clusters, "new checkpointLocation")), raised.value
    assert not cluster.committed_offsets("etl")


def test_cluster_id_is_added_with_the_next_records_only(cluster: Cluster) -> None:
    reader = cluster.reader()
    assert next_end(reader, OLDER) is OLDER
    cluster.set_log("a", 0, 0, 30)
    assert next_end(reader, OLDER) == read_to(30)
    assert next_end(reader, read_to(30)) == read_to(30)


def test_brokers_without_a_cluster_id_keep_that_of_the_checkpoint(cluster: Cluster) -> None:
    cluster.edit_replies("Metadata", lambda body: {**body, "cluster_id": None})
    reader = cluster.reader()
    assert next_end(reader, read_to(10)) == read_to(20)


# -- replay of the first batch ------------------------------------------------------------------------


def first_batch(cluster: Cluster) -> JsonDict:
    reader = cluster.reader(startingOffsets='{"a": {"0": 5, "1": -1}}')
    return next_end(reader, reader.initialOffset())


def test_replay_of_first_batch_sends_no_request_for_deleted_topic(cluster: Cluster) -> None:
    end = first_batch(cluster)
    assert end == {**read_to(20), "@joined": {"a": {"0": 5, "1": 20}}}
    cluster.delete_topic("a")
    requested = len(cluster.requests)
    reader = cluster.reader(subscribe="a", startingOffsets='{"a": {"0": 5, "1": -1}}')
    assert ranges(reader, reader.initialOffset(), end) == [(0, 5, 20)]
    assert len(cluster.requests) == requested


def test_only_a_replayed_first_batch_warns_that_starting_offsets_are_not_used(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    reader = cluster.reader(startingOffsets="earliest")
    start = reader.initialOffset()
    end = next_end(reader, start)
    assert ranges(reader, start, end) == [(0, 0, 20), (1, 0, 20)]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    resumed = cluster.reader(startingOffsets="latest")
    assert ranges(resumed, resumed.initialOffset(), end) == [(0, 0, 20), (1, 0, 20)]
    assert "it is read again from its recorded start, not from startingOffsets" in caplog.text


def test_replay_of_first_batch_of_recreated_topic_plans_old_ranges(cluster: Cluster) -> None:
    end = first_batch(cluster)
    cluster.recreate("a", (0, 30), (0, 3))
    reader = cluster.reader(startingOffsets="latest", onTopicRecreated="earliest")
    # The tasks find a topic id other than that of the range, and skip the range.
    assert ranges(reader, reader.initialOffset(), end) == [(0, 5, 20)]
    after = next_end(reader, end)
    assert ranges(reader, end, after) == [(0, 0, 30), (1, 0, 3)]


def test_pattern_without_match_has_empty_first_batch(cluster: Cluster) -> None:
    """Topics that match later are new: they are read from their beginning, whatever startingOffsets is."""
    cluster.delete_topic("a")
    cluster.add("b", (0, 3), topic_id=ID_OF_B)
    reader = cluster.reader(subscribe=None, subscribePattern="a", startingOffsets="latest")
    start = reader.initialOffset()
    end = next_end(reader, start)
    assert (end, ranges(reader, start, end)) == ({}, [])
    cluster.add("a", (0, 20), (0, 20))
    after = next_end(reader, end)
    assert ranges(reader, end, after) == [(0, 0, 20), (1, 0, 20)]


def test_batch_longer_than_max_poll_interval_warning_names_option(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"kafka.group.protocol": "classic", "kafka.max.poll.interval.ms": "1000", "startingOffsets": "earliest"}
    reader = cluster.reader(**options, **{"kafka.group.id": "g", "kafka.heartbeat.interval.ms": "200"})
    begin = reader.initialOffset()
    read = next_end(reader, begin)
    assert reader.query.membership is not None
    membership = reader.query.membership.membership
    assert membership is not None
    wait_until(lambda: membership.rebalance_pending)
    next_end(reader, read)
    message, *_ = (message for message in caplog.messages if "all partitions are lost" in message)
    assert message.startswith("group g: all partitions are lost: kafka.max.poll.interval.ms: ")
    reader.stop()
