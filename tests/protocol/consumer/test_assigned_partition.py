"""States of one assigned partition, without brokers and threads."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from protocol.base.clock import Backoff
from protocol.consumer.assigned_partition import AssignedPartition, PartitionState
from protocol.errors import Corrupt, DataLoss, TopicRecreated, UsageError
from protocol.position import Position

LOST = DataLoss("the log has lost the position")
RECREATED = TopicRecreated("the topic was deleted and created again")
POSITION = Position(5, 2, topic_id=b"0123456789abcdef")


@pytest.fixture
def partition() -> AssignedPartition:
    return AssignedPartition(("orders", 0), lambda: Backoff(100, 1_000))


@pytest.fixture
def reading(partition: AssignedPartition) -> AssignedPartition:
    consumer = Mock(committable=POSITION, recreated=False)
    consumer.buffer.raised_error = None
    partition.start(consumer)
    return partition


def test_lookup_that_fails_leaves_an_unstarted_or_a_lost_partition(partition: AssignedPartition) -> None:
    first, second = Mock(), Mock()
    partition.begin_lookup(first)
    partition.end_lookup()
    assert (partition.state, partition.lookup) == (PartitionState.UNSTARTED, None)
    partition.start(Mock())
    partition.lose(LOST)
    partition.begin_lookup(second)
    assert partition.lookup is second
    partition.end_lookup()
    assert (partition.state, partition.loss) == (PartitionState.LOST, LOST)


def test_seek_before_the_start_replaces_the_lookup(partition: AssignedPartition) -> None:
    partition.begin_lookup(Mock())
    partition.without_commit = True
    partition.seek(POSITION)
    assert (partition.state, partition.lookup, partition.position) == (PartitionState.UNSTARTED, None, POSITION)
    assert not partition.without_commit


def test_failing_lookups_are_overdue_once_in_each_timeout(partition: AssignedPartition) -> None:
    for started_at_s in (1.0, 4.0):
        partition.begin_lookup(Mock())
        partition.end_lookup()
        partition.postpone_lookup(started_at_s + 2, started_at_s)
    assert [partition.take_overdue(now_s, 10.0) for now_s in (10.9, 11.0, 20.9, 21.0)] == [False, True, False, True]


@pytest.mark.parametrize("call", ["start", "pause"])
def test_resume_of_another_thread_during_a_pause_is_not_lost(partition: AssignedPartition, call: str) -> None:
    """The other thread resumes after this one has read `paused`, and before it pauses the consumer."""
    calls: list[str] = []
    consumer = Mock()
    consumer.resume.side_effect = lambda: calls.append("resume")

    def pause() -> None:
        if not calls:
            partition.resume()
        calls.append("pause")

    consumer.pause.side_effect = pause
    if call == "start":
        partition.pause()
        partition.start(consumer)
    else:
        partition.start(consumer)
        partition.pause()
    assert calls == ["resume", "pause", "resume"]
    assert not partition.paused


@pytest.mark.parametrize("loss", [LOST, RECREATED])
def test_position_is_not_committed_while_its_topic_is_lost(reading: AssignedPartition, loss: DataLoss) -> None:
    reading.group_offset = 5
    reading.lose(loss)
    assert reading.position == (POSITION if loss is LOST else None)
    reading.resume_at(Position(0), loss)
    assert (reading.state, reading.group_offset, reading.position) == (PartitionState.READING, None, POSITION)
    assert (reading.recreations, reading.is_new_topic) == ((1, True) if loss is RECREATED else (0, False))


def test_only_an_error_that_lasts_fails_the_partition(reading: AssignedPartition) -> None:
    reading.fail()
    assert reading.state is PartitionState.READING
    assert reading.consumer is not None
    reading.consumer.buffer.raised_error = Corrupt("CRC")
    reading.fail()
    assert reading.state is PartitionState.FAILED
    reading.seek(POSITION)
    assert reading.state is PartitionState.READING


def test_dropped_partition_stays_dropped(reading: AssignedPartition) -> None:
    """The thread of a claim may still handle lost data."""
    reading.drop()
    reading.resume_at(Position(0), LOST)
    reading.lose(LOST)
    assert reading.state is PartitionState.DROPPED
    assert isinstance(reading.consumer, Mock)
    reading.consumer.seek.assert_not_called()


def test_transition_that_is_not_allowed_raises(partition: AssignedPartition) -> None:
    with pytest.raises(UsageError, match="orders-0: LOST may not follow UNSTARTED"):
        partition.lose(LOST)
