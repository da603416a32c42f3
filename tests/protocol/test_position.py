"""Positions: what belongs together, and what Kafka cannot store."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from protocol.errors import UsageError
from protocol.fetch.fetch_position import CompletedFetch
from protocol.kafka_terms import NO_TOPIC_ID
from protocol.position import Position, RecordPositions
from protocol.records.memory_records import read_batch_headers
from tests.protocol.fetch.consuming import records

TOPIC, OTHER = b"first topic id..", b"second topic id."


@pytest.mark.parametrize(
    ("arguments", "topic_id", "problem"),
    [
        ((-1,), NO_TOPIC_ID, "offset is -1; it must be from 0"),
        ((2**63,), NO_TOPIC_ID, "offset is 9223372036854775808"),
        ((1.0,), NO_TOPIC_ID, "offset is 1.0; it must be an integer"),
        ((0, 2**31), NO_TOPIC_ID, "leader epoch is 2147483648"),
        ((0,), b"short", "topic id is b'short'; it must be 16 bytes"),
        ((0,), "orders", "topic id is 'orders'"),
    ],
)
def test_position_that_kafka_cannot_store_is_refused(arguments: tuple[Any, ...], topic_id: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        Position(*arguments, topic_id=topic_id)


@pytest.mark.parametrize(
    ("position", "topic_id", "in_topic", "assumed"),
    [
        (Position(5, 3, topic_id=TOPIC), TOPIC, Position(5, 3, topic_id=TOPIC), Position(5, 3, topic_id=TOPIC)),
        (Position(5, 3, topic_id=TOPIC), OTHER, Position(5, topic_id=OTHER), Position(5, 3, topic_id=TOPIC)),
        (Position(5, 3), TOPIC, Position(5, 3, topic_id=TOPIC), Position(5, 3, topic_id=TOPIC)),
        (Position(5, 3, topic_id=TOPIC), NO_TOPIC_ID, Position(5, 3), Position(5, 3, topic_id=TOPIC)),
    ],
    ids=["same topic", "another topic", "unknown topic of the position", "unknown topic"],
)
def test_epoch_is_kept_unless_it_is_of_another_topic(
    position: Position, topic_id: bytes, in_topic: Position, assumed: Position
) -> None:
    assert position.is_in(topic_id) == (position.topic_id != TOPIC or topic_id != OTHER)
    assert position.in_topic(topic_id) == in_topic
    assert position.assumed_in(topic_id) == assumed
    assert pickle.loads(pickle.dumps(position)) == position


def reply(*batches: tuple[int, int, int], epoch: int) -> CompletedFetch:
    """Return a reply with record batches of (offset, count, leader epoch)."""
    data = b"".join(records(first, count, epoch=batch_epoch) for first, count, batch_epoch in batches)
    start = Position(batches[0][0], epoch, topic_id=TOPIC)
    return CompletedFetch(read_batch_headers(data), start, sum(batches[-1][:2]), None)


def test_position_at_each_offset_of_a_reply_has_the_epoch_before_it() -> None:
    positions = reply((5, 2, 0), (7, 2, 0), (9, 3, 2), epoch=-1).positions()
    assert positions == RecordPositions(Position(5, topic_id=TOPIC), ((5, 0), (9, 2)))
    assert [positions.at(offset).leader_epoch for offset in (5, 6, 9, 10, 12)] == [-1, 0, 0, 2, 2]
    assert positions.at(12) == Position(12, 2, topic_id=TOPIC)


@pytest.mark.parametrize(
    ("later", "changes"),
    [
        (((12, 2),), ((5, 0), (9, 2))),
        (((12, 3), (14, 4)), ((5, 0), (9, 2), (12, 3), (14, 4))),
        (((7, 3),), ((5, 0), (7, 3))),
        ((), ((5, 0), (9, 2))),
    ],
    ids=["same epoch", "newer epochs", "after a truncation", "no records"],
)
def test_positions_of_records_read_next_are_added(
    later: tuple[tuple[int, int], ...], changes: tuple[tuple[int, int], ...]
) -> None:
    positions = RecordPositions(Position(5), ((5, 0), (9, 2)))
    assert positions.followed_by(RecordPositions(Position(12, 2), later)) == RecordPositions(Position(5), changes)
