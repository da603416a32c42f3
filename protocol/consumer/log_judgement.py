"""What is lost when a log has not what was asked of it: one judgement for all who read.

Pure: gets what was wanted, and what the leader says of its log (`leader_epochs.see_log` asks for that). Used by
`range_consumer`, which may go on without what is lost, and `consumer`, which leaves that to its user.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, broker_error
from protocol.consumer.list_offsets import stale_leader
from protocol.consumer.listed_offset import ListedOffset
from protocol.consumer.partition_consumer import UNBOUNDED, PartitionConsumer
from protocol.errors import BrokerError, DataLoss, DeadlineExceeded, LogTruncated, TopicRecreated


@dataclass(frozen=True)
class SeenLog:
    """A log as its leader tells it: offsets from `start` up to, not including, that of `latest`.

    `lacks_epoch`: it keeps leader epochs, but knows nothing of the one that was read last.
    """

    start: int
    latest: ListedOffset
    lacks_epoch: bool = False


@dataclass(frozen=True)
class Lost:
    """Who goes on all the same does so at `resume`: what lies between the position and that is skipped."""

    resume: int
    why: str
    kind: type[DataLoss] = DataLoss


def judge_out_of_range(partition: PartitionConsumer, log: SeenLog) -> Lost | BrokerError:
    """What it means that the leader has refused the position; an error that passes when nothing is lost."""
    position, until = partition.position, partition.until_offset
    if log.latest.is_stale(partition.known_epoch):
        return stale_leader(partition.name, log.latest, partition.known_epoch)
    if log.start <= position <= log.latest.offset and not log.lacks_epoch:
        what = f"Fetch of {partition.name} at offset {position}, which is there: its leader was behind for a moment"
        return broker_error(ErrorCode.OFFSET_NOT_AVAILABLE, what)
    if log.lacks_epoch:
        return Lost(
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
    return Lost(
        resume,
        f"{partition.name}: {missing} not in the log any more; {wanted}the broker has [{log.start}, "
        f"{log.latest.offset}). Likely cause: {cause}",
    )


def judge_silence(partition: PartitionConsumer) -> DeadlineExceeded:
    """What it means that a leader sends nothing for long, of offsets that were there when they were planned."""
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


def judge_unknown(partition: PartitionConsumer) -> Lost:
    """What it means when brokers answer for long that there is no such topic or partition."""
    position, until = partition.position, partition.until_offset
    return Lost(
        until,
        f"{partition.name}: offsets {position} to {until} cannot be read: the brokers answer again and again that "
        "they do not know it. Likely cause: the topic was deleted",
    )


def judge_recreated(partition: PartitionConsumer, error: TopicRecreated) -> Lost:
    """The new topic has nothing of what was to be read, whatever its offsets are."""
    position, until = partition.position, partition.until_offset
    return Lost(until, f"{error}: offsets {position} to {until} belonged to the old one", TopicRecreated)


def judge_truncation(error: LogTruncated, first_offset: int) -> Lost:
    """What is there now has not been read by anybody; what lies before `first_offset` is not ours to read."""
    return Lost(max(error.context["end_offset"], first_offset), str(error))
