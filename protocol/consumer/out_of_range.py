"""Compare committed offsets with the logs: which of them are still positions in their logs (KIP-320).

For readers that start at a group's offsets without a `KafkaConsumer`, which detects the same from its Fetch replies.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import DeadlineExceeded
from protocol.fetch import log_offsets
from protocol.fetch.list_offsets import ends_of_epochs, list_offsets
from protocol.kafka_terms import EARLIEST, LATEST, NO_LEADER_EPOCH, TopicPartition
from protocol.position import Position

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutOfRange:
    """A position that is not in its log: outside of `log_start` to `log_end`, or behind a truncation.

    `log_end` is the high watermark. `epoch_end` is the end of the position's leader epoch if that is before the offset:
    from there on the log has other records.
    """

    position: Position
    log_start: int
    log_end: int
    epoch_end: int | None = None

    @property
    def offset(self) -> int:
        """The offset that is out of range."""
        return self.position.offset

    @property
    def is_deleted(self) -> bool:
        """True if the offset is before the log start offset."""
        return self.offset < self.log_start

    @property
    def end(self) -> int:
        """End of the records that existed when the offset was committed, as far as known."""
        return self.log_end if self.epoch_end is None else max(self.log_start, min(self.log_end, self.epoch_end))

    @property
    def nearest(self) -> int:
        """The position to continue at without skipping existing records."""
        return self.log_start if self.is_deleted else self.end

    @property
    def first_unread(self) -> int:
        """Lowest offset that the group may not have read, for counting skipped offsets.

        If the offset is after the log end, the log start, since it may be of a deleted topic with the same name.
        """
        return min(self.offset, self.log_start) if self.epoch_end is None else self.epoch_end

    def describe(self, key: TopicPartition, subject: str) -> str:
        """Return the text of an error about partition `key`; `subject` is its beginning, for example "group g: its"."""
        cause = (
            "retention or DeleteRecords has removed the next records"
            if self.is_deleted
            else "the log was truncated (unclean leader election), or the topic was deleted and created again"
        )
        epoch = f" of the records that existed when it was committed, in leader epoch {self.position.leader_epoch}"
        return (
            f"{subject} offset {self.offset} of {key[0]}-{key[1]} is out of range: the log holds "
            f"[{self.log_start}, {self.end}){'' if self.epoch_end is None else epoch}. Likely cause: {cause}"
        )


def check_committed(
    client: Client,
    committed: Mapping[TopicPartition, Position],
    deadline: Deadline,
    *,
    unknown_topic_s: float | None = None,
) -> tuple[dict[TopicPartition, Position], dict[TopicPartition, OutOfRange]]:
    """Find committed positions that are not in the log, or whose leader epoch ended before them.

    Returns the valid positions, with their leader epochs unless the leader does not know them; and the other ones.

    Raises `BrokerError` for an error code that is not retriable, `DeadlineExceeded` if a leader does not respond, and
    `TopicUnknown` if brokers do not know a topic or partition for `unknown_topic_s`.
    """
    if not committed:
        return {}, {}
    earliest = dict.fromkeys(committed, EARLIEST)
    starts = list_offsets(client, earliest, deadline=deadline, unknown_topic_s=unknown_topic_s)
    ends = _newest_high_watermarks(client, committed, deadline, unknown_topic_s)
    epoch_ends = ends_of_epochs(client, committed, deadline)
    valid: dict[TopicPartition, Position] = {}
    invalid: dict[TopicPartition, OutOfRange] = {}
    for key, position in committed.items():
        start, end, epoch_end = starts[key].offset, ends[key], epoch_ends.get(key)
        truncated = epoch_end is not None and epoch_end < position.offset
        if truncated or not start <= position.offset <= end:
            invalid[key] = OutOfRange(position, start, end, epoch_end if truncated else None)
        else:
            # An epoch that the leader does not know is of an earlier topic of this name.
            valid[key] = position if epoch_end is not None else replace(position, leader_epoch=NO_LEADER_EPOCH)
    return valid, invalid


def _newest_high_watermarks(
    client: Client,
    positions: Mapping[TopicPartition, Position],
    deadline: Deadline,
    unknown_topic_s: float | None,
) -> dict[TopicPartition, int]:
    """Return high watermarks: a group's offset may be after the last stable offset and still be valid.

    Replies of stale leaders, which may end before the group's offset, are retried for 30 s. After that they are
    accepted: the group's offsets may be those of a deleted topic with the same name.
    """
    latest = dict.fromkeys(positions, LATEST)
    try:
        retry_deadline = deadline.at_most_ms(log_offsets.STALE_LEADER_MS)
        listed = list_offsets(
            client,
            latest,
            deadline=retry_deadline,
            positions_read=positions,
            unknown_topic_s=unknown_topic_s,
        )
    except DeadlineExceeded as error:
        log.info("%s; the leaders' replies are accepted as they are", error)
        listed = list_offsets(client, latest, deadline=deadline, unknown_topic_s=unknown_topic_s)
    return {key: offset.offset for key, offset in listed.items()}
