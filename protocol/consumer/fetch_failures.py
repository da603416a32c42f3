"""Decide what the failure of a Fetch means: retry, or lost records and the offset to resume from. Sans-IO.

Compares a `FetchPosition` with its leader's log (`leaders.look_up_log_bounds`). Used by `bounded_reader`, which may
skip lost records, and by `consumer`, whose user decides.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, broker_error
from protocol.cluster.dispatch import is_retriable
from protocol.consumer.fetch_position import UNBOUNDED, FetchPosition
from protocol.consumer.log_offsets import LogBounds, stale_leader
from protocol.errors import BrokerError, DataLoss, DeadlineExceeded, KafkaError, LogTruncated, TopicRecreated

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class InvalidPosition:
    """The log has lost the position. Records between it and `resume` can only be skipped; `kind` is the error class."""

    resume: int
    reason: str
    kind: type[DataLoss] = DataLoss


def validate_position(partition: FetchPosition, log: LogBounds) -> InvalidPosition | BrokerError:
    """Return why the leader refused the position (OFFSET_OUT_OF_RANGE); a retriable error if only the leader lagged."""
    position, until = partition.position, partition.until_offset
    if log.latest.is_stale(partition.known_epoch):
        return stale_leader(partition.name, log.latest, partition.known_epoch)
    if log.start <= position <= log.latest.offset and not log.lacks_epoch:
        what = f"Fetch of {partition.name} at offset {position}, which exists: its leader lagged behind for a moment"
        return broker_error(ErrorCode.OFFSET_NOT_AVAILABLE, what)
    if log.lacks_epoch:
        return InvalidPosition(
            position,
            f"{partition.name}: the log was truncated below offset {position}, or the topic was created again: its "
            f"leader does not know leader epoch {partition.last_epoch} of the records before that offset; the "
            f"broker has [{log.start}, {log.latest.offset})",
        )
    if position < log.start:
        resume = min(log.start, until)
        cause = "retention or DeleteRecords has removed them"
    else:
        resume = until
        cause = "the log was truncated (unclean leader election) or the topic was created again"
    missing = f"offset {position} is" if until == UNBOUNDED else f"offsets {position} to {resume} are"
    wanted = "" if until == UNBOUNDED else f"wanted [{position}, {until}), "
    return InvalidPosition(
        resume,
        f"{partition.name}: {missing} not in the log any more; {wanted}the broker has [{log.start}, "
        f"{log.latest.offset}). Likely cause: {cause}",
    )


def poll_timed_out(partition: FetchPosition) -> DeadlineExceeded:
    """Make the error for a leader that sent no records for `poll_timeout_ms`, although they existed before."""
    remedy = "raise poll_timeout_ms if the broker only needs longer"
    if 0 <= partition.last_stable_offset <= partition.position < partition.high_watermark:
        remedy = (
            f"a transaction that is open since offset {partition.last_stable_offset} holds them back from "
            "read_committed: it must end first"
        )
    return DeadlineExceeded(
        f"{partition.name}: {partition.broker} sends no records at offset {partition.position}, although offsets up to "
        f"{partition.until_offset} existed when the batch was planned; {remedy}",
        topic=partition.topic,
        partition=partition.partition,
        settings=("poll_timeout_ms",),
    )


def topic_deleted(partition: FetchPosition) -> InvalidPosition:
    """Make the result for a topic or partition that brokers have not known for long."""
    position, until = partition.position, partition.until_offset
    return InvalidPosition(
        until,
        f"{partition.name}: offsets {position} to {until} cannot be read: the brokers repeatedly reply that "
        "they do not know it. Likely cause: the topic was deleted",
    )


def topic_recreated(partition: FetchPosition, error: TopicRecreated) -> InvalidPosition:
    """Make the result for a recreated topic, which has none of the wanted records at any offset."""
    position, until = partition.position, partition.until_offset
    return InvalidPosition(until, f"{error}: offsets {position} to {until} belonged to the old one", TopicRecreated)


def log_truncated(error: LogTruncated, first_offset: int) -> InvalidPosition:
    """Make the result for a truncated log: read again from the truncation, but not before `first_offset`."""
    return InvalidPosition(max(error.context["end_offset"], first_offset), str(error))


def is_about_the_log(error: KafkaError) -> bool:
    """Return True if the broker's log lacks the position. Final from the leader, not from a follower."""
    return isinstance(error, LogTruncated) or (
        isinstance(error, BrokerError) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    )


def is_retriable_fetch(error: KafkaError) -> bool:
    """Return True if the same Fetch may succeed later.

    UNKNOWN_SERVER_ERROR counts as retriable, as in Java's consumer: a temporary failure of a disk or of remote storage
    causes it.
    """
    return is_retriable(error) or _is_unknown_server_error(error)


def log_retry(partition: FetchPosition, error: KafkaError) -> None:
    """Log a failed Fetch that is retried; as a warning, once, if only the broker's own log has the cause."""
    warns = _is_unknown_server_error(error) and partition.failure is None
    log.log(logging.WARNING if warns else logging.DEBUG, "%s is retried: %s", partition.name, error)


def _is_unknown_server_error(error: KafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code == ErrorCode.UNKNOWN_SERVER_ERROR
