"""Data loss: what counts as a loss, and its errors and warnings. Without brokers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.cluster.metadata import topic_id_text
from protocol.errors import DataLoss
from protocol.fetch.log_offsets import ListedOffset, Range
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.position import Position
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.assignment import QueryAssignment
from spark_kafka_source.plan.backlog import LogSnapshot
from spark_kafka_source.plan.data_loss import Loss
from spark_kafka_source.plan.offsets import Offsets
from tests.support.offsets import batch_end

OLD, NEW = b"o" * 16, b"n" * 16
A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)


def snapshot(begin: Offsets, partitions: dict[tuple[str, int], bytes]) -> LogSnapshot:
    return LogSnapshot(begin, QueryAssignment(partitions), {key: ListedOffset(9, 5, -1) for key in partitions})


def only(*topics: str) -> Callable[[TopicPartition], bool]:
    """Return the predicate of a query that subscribes to these topics."""
    return lambda key: key[0] in topics


def test_data_loss_fails_the_query_or_warns(caplog: pytest.LogCaptureFixture) -> None:
    losses = [Loss("CLASS", "a-1 is gone", A1), Loss("CLASS", "b-0 is gone", B0, "Wait", "gone is gone")]
    data_loss.raise_or_warn(losses, fail=False)
    assert [entry.getMessage() for entry in caplog.records] == [
        "a-1 is gone (failOnDataLoss=false: continuing without it)",
        "b-0 is gone (gone is gone)",
    ]
    with pytest.raises(DataLoss) as raised:
        data_loss.raise_or_warn(losses, fail=True)
    remedy = "Nothing is read. To continue without it, set failOnDataLoss=false"
    assert str(raised.value) == f"[CLASS] a-1 is gone. {remedy}"
    assert raised.value.context == {"topic": "a", "partition": 1}
    with pytest.raises(DataLoss, match=r"b-0 is gone\. Nothing is read\. Wait$"):
        data_loss.raise_or_warn(losses[1:], fail=True)
    data_loss.raise_or_warn([], fail=True)


def test_recreated_topic_error_has_both_ids_and_the_first_partition() -> None:
    begin = batch_end({A1: 7, A2: 5, B0: 3}, ids={"a": OLD, "b": OLD})
    (loss,) = data_loss.recreated(snapshot(begin, {A0: NEW, B0: OLD}))
    assert loss.key == A1
    assert f"its id was {topic_id_text(OLD)}, now it is {topic_id_text(NEW)}; offsets up to 7 of a-1" in loss.message
    assert "onTopicRecreated=earliest" in loss.remedy
    assert "onTopicRecreated=earliest" in loss.note


def test_recreated_topic_error_has_the_offset_that_was_read_in_the_deleted_topic() -> None:
    logs = snapshot(batch_end({A0: 7}, ids={"a": OLD}), {A0: NEW})
    assigned = replace(logs.assignment, starts={A0: Position(100, topic_id=NEW)})
    (loss,) = data_loss.recreated(replace(logs, assignment=assigned))
    assert "offsets up to 7 of a-0" in loss.message


@pytest.mark.parametrize(("before", "now"), [(OLD, NO_TOPIC_ID), (None, NEW)], ids=["no id now", "no id before"])
def test_unknown_topic_id_is_no_recreation(before: bytes | None, now: bytes) -> None:
    begin = batch_end({A0: 5}, ids={} if before is None else {"a": before})
    assert data_loss.recreated(snapshot(begin, {A0: now})) == []


def test_topic_recreated_with_fewer_partitions_reports_no_deleted_ones() -> None:
    assert data_loss.deleted(snapshot(batch_end({A0: 5, A1: 5}, ids={"a": OLD}), {A0: NEW}), only("a")) == []
    (loss,) = data_loss.deleted(snapshot(batch_end({A0: 5, A1: 5}, ids={"a": OLD}), {A0: OLD}), only("a"))
    assert loss.error_class == "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
    assert loss.message.startswith("a-1 no longer exists: ")
    assert loss.message.endswith("read was a-1 up to offset 5")
    (both,) = data_loss.deleted(snapshot(batch_end({A0: 5, A1: 6}), {B0: NEW}), only("a", "b"))
    assert both.message.startswith("a-0, a-1 no longer exist: ")


def test_partitions_that_are_no_longer_subscribed_are_told_from_deleted_ones() -> None:
    logs = snapshot(batch_end({A0: 5, A1: 6, B0: 7}), {A0: OLD})
    unsubscribed, loss = data_loss.deleted(logs, only("a"))
    assert unsubscribed.message == "the checkpoint has b-0 up to offset 7, and this query does not subscribe to that"
    assert unsubscribed.remedy.startswith("Subscribe to it again. ")
    assert loss.message == "a-1 no longer exists: the topic was deleted; read was a-1 up to offset 6"


def test_new_partition_without_its_first_records_is_a_loss() -> None:
    remembered, anew = (
        snapshot(batch_end({A0: 5}, ids={"a": OLD}), {A0: OLD, A1: OLD}),
        snapshot(batch_end({A0: 5}, ids={"a": OLD}), {A1: NEW}),
    )
    assert data_loss.added(remembered, {A1: 0, B0: 7}) == {}
    assert data_loss.added(anew, {A1: 7}) == {}
    ((key, loss),) = data_loss.added(remembered, {A1: 7}).items()
    assert key == loss.key == A1
    assert loss.error_class == "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"
    assert loss.message.startswith("a-1 is new in this query, and its log begins at offset 7")


def test_warning_about_many_partitions_names_three(caplog: pytest.LogCaptureFixture) -> None:
    positions = {("a", number): Position(10) for number in range(12)}
    data_loss.warn_advanced(positions, {})
    data_loss.warn_stale([])
    assert not caplog.records
    data_loss.warn_advanced(positions, dict.fromkeys(positions, 13))
    message = caplog.records[0].getMessage()
    assert "10 to 13 of a-2 and 9 more are no longer in the log" in message
    assert "a-10" not in message
    assert "36 offsets are skipped" in message


def test_skipped_offsets_of_a_replay_are_counted_by_partition() -> None:
    ranges = [Range("a", 0, 0, 5), Range("a", 0, 5, 10), Range("a", 1, 3, 9), Range("b", 0, 3, 9)]
    assert data_loss.count_skipped(ranges, {A0: 7, A1: 3, B0: 100}) == {A0: 7, B0: 6}
