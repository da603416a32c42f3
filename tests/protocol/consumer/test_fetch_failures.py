"""Positions refused by a leader: data loss, or another error."""

from __future__ import annotations

import re

import pytest

from protocol.broker_errors import ErrorCode
from protocol.config import ConsumerConfig
from protocol.consumer.fetch_failures import InvalidPosition, log_truncated, validate_position
from protocol.consumer.fetch_position import UNBOUNDED, FetchPosition
from protocol.consumer.log_offsets import ListedOffset, LogBounds
from protocol.errors import BrokerError, LogTruncated
from tests.protocol.consumer.consuming import TOPIC_ID


def seen(start: int, end: int, epoch: int = 5, *, lacks_epoch: bool = False) -> LogBounds:
    return LogBounds(start, ListedOffset(end, epoch, -1), lacks_epoch)


def at(position: int, until: int = UNBOUNDED, topic_id: bytes = TOPIC_ID) -> FetchPosition:
    """Return a partition read up to `position`, in leader epoch 5."""
    config = ConsumerConfig()
    return FetchPosition("t", 0, position, config, until_offset=until, topic_id=topic_id, last_epoch=5)


@pytest.mark.parametrize(
    ("partition", "log", "resume", "reason"),
    [
        (
            at(10, 30),
            seen(20, 40),
            20,
            r"^t-0: offsets 10 to 20 are .* wanted \[10, 30\), the broker has \[20, 40\)",
        ),
        (at(10, 30), seen(35, 40), 30, "offsets 10 to 30 are"),
        (at(10), seen(20, 40), 20, r"^t-0: offset 10 is not in the log any more; the broker has \[20, 40\).*retention"),
        (at(10, 30), seen(0, 8), 30, "offsets 10 to 30 are .* truncated"),
        (at(10), seen(0, 40, lacks_epoch=True), 10, "^t-0: the log was truncated below offset 10, .* epoch 5"),
        (at(10, 30, bytes(16)), seen(0, 8, 4), 30, "offsets 10 to 30 are"),
        (at(10, 30), seen(0, 8, -1), 30, "offsets 10 to 30 are"),
    ],
)
def test_invalid_position_has_resume_offset_and_reason(
    partition: FetchPosition, log: LogBounds, resume: int, reason: str
) -> None:
    outcome = validate_position(partition, log)
    assert isinstance(outcome, InvalidPosition)
    assert outcome.resume == resume
    assert re.search(reason, outcome.reason)


@pytest.mark.parametrize(
    ("log", "code"),
    [
        (seen(0, 8, epoch=4), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (seen(20, 40, epoch=4), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (seen(0, 40, epoch=4, lacks_epoch=True), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (seen(0, 40), ErrorCode.OFFSET_NOT_AVAILABLE),
        (seen(0, 10), ErrorCode.OFFSET_NOT_AVAILABLE),
    ],
)
def test_position_refused_by_a_lagging_leader_is_a_retriable_error(log: LogBounds, code: ErrorCode) -> None:
    outcome = validate_position(at(10, 30), log)
    assert isinstance(outcome, BrokerError)
    assert outcome.code == code


def test_truncated_log_resumes_at_the_divergence_within_the_range() -> None:
    error = LogTruncated("t-0: the log was truncated", offset=10, end_offset=5)
    assert log_truncated(error, 0) == InvalidPosition(5, "t-0: the log was truncated")
    assert log_truncated(error, 7) == InvalidPosition(7, "t-0: the log was truncated")
