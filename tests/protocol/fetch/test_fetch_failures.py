"""Decisions after a failed Fetch: a retry, a query to the leader, data loss, or a final error."""

from __future__ import annotations

import re

import pytest

from protocol.broker_errors import ErrorCode, broker_error
from protocol.config import ConsumerConfig
from protocol.errors import BrokerError, ConnectionLost, Corrupt, KafkaError, LogTruncated, TopicRecreated
from protocol.fetch.fetch_failures import (
    CheckLog,
    Fail,
    InvalidPosition,
    Retry,
    decide,
    lost_by_truncation,
    validate_position,
)
from protocol.fetch.fetch_position import UNBOUNDED, FetchPosition
from protocol.fetch.log_offsets import ListedOffset, LogBounds
from protocol.position import Position
from tests.protocol.fetch.consuming import TOPIC_ID

REFUSED = broker_error(ErrorCode.OFFSET_OUT_OF_RANGE, "Fetch of t-0")


def seen(start: int, end: int, epoch: int = 5, *, lacks_epoch: bool = False) -> LogBounds:
    return LogBounds(start, ListedOffset(end, epoch, -1), lacks_epoch)


def at(position: int, until: int = UNBOUNDED, topic_id: bytes = TOPIC_ID) -> FetchPosition:
    """Return a partition read up to `position`, in leader epoch 5."""
    config = ConsumerConfig()
    return FetchPosition("t", 0, Position(position, 5, topic_id=topic_id), config, until=Position(until))


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
    outcome = validate_position(partition, log, REFUSED)
    assert isinstance(outcome, InvalidPosition)
    assert (outcome.cause, outcome.bounds) == (REFUSED, log)
    assert outcome.resume == Position(resume)
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
    outcome = validate_position(at(10, 30), log, REFUSED)
    assert isinstance(outcome, Retry)
    assert isinstance(outcome.error, BrokerError)
    assert outcome.error.code == code


@pytest.mark.parametrize("log", [seen(0, 8), seen(20, 40), seen(0, 40, lacks_epoch=True)])
def test_refusal_by_a_former_leader_is_put_to_the_present_one(log: LogBounds) -> None:
    partition = at(10, 30)
    partition.leader_epoch = 4
    assert validate_position(partition, log, REFUSED) == Retry(REFUSED, refresh_metadata=True)
    partition.leader_epoch = 5
    assert isinstance(validate_position(partition, log, REFUSED), InvalidPosition)


def test_truncated_log_resumes_at_the_divergence() -> None:
    error = LogTruncated("t-0: the log was truncated", offset=10, end_offset=5)
    assert lost_by_truncation(at(10), error) == InvalidPosition(error, 10, Position(5), "t-0: the log was truncated")


@pytest.mark.parametrize("error", [REFUSED, LogTruncated("t-0: the log was truncated", end_offset=5)])
def test_leader_without_the_position_is_queried_but_not_a_follower(error: BrokerError | LogTruncated) -> None:
    partition = at(10)
    assert decide(partition, error) == CheckLog(error)
    partition.preferred_replica = 3
    assert decide(partition, error) == Retry(error, refresh_metadata=False)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"), "refresh"),
        (ConnectionLost("broken"), "refresh"),
        (broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, "disk"), "retry"),
        (broker_error(ErrorCode.OFFSET_NOT_AVAILABLE, "lags"), "refresh"),
        (broker_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "ACL"), "fail"),
        (Corrupt("CRC"), "fail"),
    ],
)
def test_error_is_retried_or_final(error: KafkaError, action: str) -> None:
    expected = Fail(error) if action == "fail" else Retry(error, refresh_metadata=action == "refresh")
    assert decide(at(10), error) == expected


def test_recreated_topic_has_none_of_the_wanted_records() -> None:
    error = TopicRecreated("t-0: the topic was deleted and created again")
    action = decide(at(10, 30), error)
    assert isinstance(action, InvalidPosition)
    assert (action.cause, action.resume, action.kind) == (error, Position(30), TopicRecreated)
