"""Decide what the failure of a Fetch means: retry, check the log, lost records, or a final error. Sans-IO.

`decide` returns an action, which `bounded_reader`, `partition_fetcher` and `log_samples` carry out.
`leaders.decide_with_leader` carries out `CheckLog`: it compares the position with its leader's log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, Refresh, broker_error
from protocol.cluster.dispatch import is_retriable, what_to_refresh
from protocol.errors import BrokerError, DataLoss, DeadlineExceeded, KafkaError, LogTruncated, TopicRecreated
from protocol.fetch.fetch_position import UNBOUNDED, FetchPosition
from protocol.fetch.log_offsets import LogBounds, stale_leader_error
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_REPLICA
from protocol.position import Position

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Retry:
    """Fetch again from the leader, after a back-off.

    `refresh_metadata`: cached metadata may be the cause. `at_once`: without a back-off, since cached metadata have a
    newer leader.
    """

    error: KafkaError
    refresh_metadata: bool
    at_once: bool = False


@dataclass(frozen=True)
class CheckLog:
    """The leader's log seems to lack the position: query it."""

    error: LogTruncated | BrokerError


@dataclass(frozen=True)
class InvalidPosition:
    """The log has lost the position.

    `first_lost`: the first record that cannot be read; those from the position up to it can be read.
    `resume`: only for ranges: where reading may continue. Below the position if records that were read have been
    truncated.
    `reason`: text for an error of class `kind`. Open partitions raise a `cause` that is a `DataLoss` instead.
    `bounds`: those of the log, if it was queried.
    """

    cause: KafkaError
    first_lost: int
    resume: Position
    reason: str
    kind: type[DataLoss] = DataLoss
    bounds: LogBounds | None = None


@dataclass(frozen=True)
class Fail:
    """No retry makes this Fetch succeed."""

    error: KafkaError


Action = Retry | CheckLog | InvalidPosition | Fail
"""Readers carry out `Retry` and `InvalidPosition`, and raise the `error` of `Fail`.

`decide_with_leader` carries out `CheckLog`; if that asks for another check, it returns `Fail`.
"""


def decide(partition: FetchPosition, error: KafkaError) -> Action:
    """Return what to do after `partition` could not be fetched, or has no leader."""
    if isinstance(error, TopicRecreated):
        return _topic_recreated(partition, error)
    if isinstance(error, LogTruncated) or (
        isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    ):
        if partition.preferred_replica != NO_REPLICA:
            # A follower may be behind: the leader decides.
            return Retry(error, refresh_metadata=False)
        return CheckLog(error)
    if is_retriable(error) or _is_unknown_server_error(error):
        return Retry(error, refresh_metadata=what_to_refresh(error) is Refresh.METADATA)
    return Fail(error)


def _is_unknown_server_error(error: KafkaError) -> bool:
    """Return True for UNKNOWN_SERVER_ERROR, which is retried as in Java's consumer.

    A temporary failure of a disk or of remote storage causes it.
    """
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_SERVER_ERROR


def log_retry(partition: FetchPosition, error: KafkaError) -> None:
    """Log a failed Fetch that is retried; as a warning, once, if only the broker's own log has the cause."""
    warns = _is_unknown_server_error(error) and partition.failure is None
    log.log(logging.WARNING if warns else logging.DEBUG, "%s is retried: %s", partition.name, error)


def validate_position(partition: FetchPosition, bounds: LogBounds, refused: KafkaError) -> Action:
    """Return why the leader has refused the position (OFFSET_OUT_OF_RANGE); `Retry` if only the leader lagged."""
    offset, until = partition.offset, partition.until_offset
    present = f"[{bounds.start}, {bounds.latest.offset})"
    if bounds.latest.is_stale(partition.known_epoch):
        return decide(partition, stale_leader_error(partition.name, bounds.latest, partition.known_epoch))
    if 0 <= partition.leader_epoch < bounds.latest.leader_epoch:
        return Retry(refused, refresh_metadata=True)  # a former leader refused; this one may know where logs diverge
    if bounds.lacks_epoch:
        return InvalidPosition(
            refused,
            offset,
            Position(offset),
            f"{partition.name}: the log was truncated below offset {offset}, or the topic was created again: its "
            f"leader does not know leader epoch {partition.position.leader_epoch} of the records before that offset; "
            f"the broker has {present}",
            bounds=bounds,
        )
    if bounds.start <= offset <= bounds.latest.offset:
        problem = f"Fetch of {partition.name} at offset {offset}, which exists: its leader lagged behind for a moment"
        return decide(partition, broker_error(ErrorCode.OFFSET_NOT_AVAILABLE, problem))
    if offset < bounds.start:
        resume = min(bounds.start, until)
        cause = "retention or DeleteRecords has removed them"
    else:
        resume = until
        cause = "the log was truncated (unclean leader election) or the topic was created again"
    missing = f"offset {offset} is" if until == UNBOUNDED else f"offsets {offset} to {resume} are"
    range_text = "" if until == UNBOUNDED else f"wanted [{offset}, {until}), "
    reason = (
        f"{partition.name}: {missing} not in the log any more; {range_text}the broker has {present}. "
        f"Likely cause: {cause}"
    )
    return InvalidPosition(refused, offset, Position(resume), reason, bounds=bounds)


def lost_by_truncation(partition: FetchPosition, error: LogTruncated) -> InvalidPosition:
    """Make the result for a log that was truncated below the position: its records from there on were not read yet."""
    return InvalidPosition(error, partition.offset, end_of_common_log(error), str(error))


def end_of_common_log(loss: LogTruncated) -> Position:
    """Return the position at which to continue after a truncation of records that were read.

    With its leader epoch, a second truncation is detected before any record is read from it.
    """
    return Position(loss.context["end_offset"], loss.context.get("end_epoch", NO_LEADER_EPOCH))


def lost_from_range(partition: FetchPosition, error: LogTruncated, epoch_end: int) -> InvalidPosition:
    """Make the result for a log that was truncated at `epoch_end`, below the end of a planned range.

    Records before it still exist, such as those that an open transaction holds back from `read_committed`.
    """
    first_lost, until = max(partition.offset, epoch_end), partition.until_offset
    reason = f"{error}. Offsets {first_lost} to {until} now have other records or none"
    return InvalidPosition(error, first_lost, Position(until), reason)


def lost_with_topic(partition: FetchPosition, error: KafkaError) -> InvalidPosition:
    """Make the result for a topic or partition that brokers have not known for long."""
    offset, until = partition.offset, partition.until_offset
    return InvalidPosition(
        error,
        offset,
        Position(until),
        f"{partition.name}: offsets {offset} to {until} cannot be read: the brokers repeatedly reply that "
        "they do not know it. Likely cause: the topic was deleted",
    )


def _topic_recreated(partition: FetchPosition, error: TopicRecreated) -> InvalidPosition:
    """Make the result for a recreated topic, which has none of the wanted records at any offset."""
    offset, until = partition.offset, partition.until_offset
    reason = f"{error}: offsets {offset} to {until} belonged to the old one"
    return InvalidPosition(error, offset, Position(until), reason, TopicRecreated)


def poll_timeout_error(partition: FetchPosition) -> DeadlineExceeded:
    """Make the error for a leader that sent no records for `poll_timeout_ms`, although they existed before."""
    remedy = "raise poll_timeout_ms if the broker only needs longer"
    if 0 <= partition.last_stable_offset <= partition.offset < partition.high_watermark:
        remedy = (
            f"a transaction that is open since offset {partition.last_stable_offset} holds them back from "
            "read_committed: it must end first"
        )
    return DeadlineExceeded(
        f"{partition.name}: {partition.broker} sends no records at offset {partition.offset}, although offsets up to "
        f"{partition.until_offset} existed when the batch was planned; {remedy}",
        topic=partition.topic,
        partition=partition.partition,
        settings=("poll_timeout_ms",),
    )
