"""Whether a log still holds the position that it is to be read from, and where reading may go on if it does not.

Pure: compares a `PartitionConsumer` with what the leader says of its log (`leader_epochs.look_up_log_bounds` asks it).
Used by `range_consumer`, which may skip what is gone, and by `consumer`, which leaves that to its user.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, broker_error
from protocol.consumer.list_offsets import stale_leader
from protocol.consumer.listed_offset import ListedOffset
from protocol.consumer.partition_consumer import UNBOUNDED, PartitionConsumer
from protocol.errors import BrokerError, DataLoss, DeadlineExceeded, LogTruncated, TopicRecreated


@dataclass(frozen=True)
class LogBounds:
    """The offsets of a log, as its leader says: from `start` up to, not including, that of `latest`.

    `lacks_epoch`: it keeps leader epochs, but does not know the one that was read last.
    """

    start: int
    latest: ListedOffset
    lacks_epoch: bool = False


@dataclass(frozen=True)
class InvalidPosition:
    """The log does not hold the position any more. What lies between it and `resume` can only be skipped.

    `kind`: the error to raise for it.
    """

    resume: int
    reason: str
    kind: type[DataLoss] = DataLoss


def validate_position(partition: PartitionConsumer, log: LogBounds) -> InvalidPosition | BrokerError:
    """Why the leader has refused the position (OFFSET_OUT_OF_RANGE).

    A retriable error where the log does hold it, and the leader was only behind.
    """
    position, until = partition.position, partition.until_offset
    if log.latest.is_stale(partition.known_epoch):
        return stale_leader(partition.name, log.latest, partition.known_epoch)
    if log.start <= position <= log.latest.offset and not log.lacks_epoch:
        what = f"Fetch of {partition.name} at offset {position}, which is there: its leader was behind for a moment"
        return broker_error(ErrorCode.OFFSET_NOT_AVAILABLE, what)
    if log.lacks_epoch:
        return InvalidPosition(
            position,
            f"{partition.name}: the log was truncated below offset {position}, or the topic was created again: its "
            f"leader knows no leader epoch {partition.last_epoch}, of which the records before that offset were; the "
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


def poll_timed_out(partition: PartitionConsumer) -> DeadlineExceeded:
    """The leader has sent nothing for `poll_timeout_ms`, though the offsets were there when the range was planned."""
    remedy = "raise poll_timeout_ms if the broker only needs longer"
    if 0 <= partition.last_stable_offset <= partition.position < partition.high_watermark:
        remedy = (
            f"a transaction that is open since offset {partition.last_stable_offset} holds them back from "
            "read_committed: it must end first"
        )
    return DeadlineExceeded(
        f"{partition.name}: {partition.broker} sends no records at offset {partition.position}, although offsets up to "
        f"{partition.until_offset} were there when the batch was planned; {remedy}",
        topic=partition.topic,
        partition=partition.partition,
        settings=("poll_timeout_ms",),
    )


def topic_deleted(partition: PartitionConsumer) -> InvalidPosition:
    """Brokers have answered for long that there is no such topic or partition."""
    position, until = partition.position, partition.until_offset
    return InvalidPosition(
        until,
        f"{partition.name}: offsets {position} to {until} cannot be read: the brokers answer again and again that "
        "they do not know it. Likely cause: the topic was deleted",
    )


def topic_recreated(partition: PartitionConsumer, error: TopicRecreated) -> InvalidPosition:
    """The new topic has none of the records that were to be read, whatever its offsets are."""
    position, until = partition.position, partition.until_offset
    return InvalidPosition(until, f"{error}: offsets {position} to {until} belonged to the old one", TopicRecreated)


def log_truncated(error: LogTruncated, first_offset: int) -> InvalidPosition:
    """The log is read again from where it was cut, since it has other records there; not before `first_offset`."""
    return InvalidPosition(max(error.context["end_offset"], first_offset), str(error))
