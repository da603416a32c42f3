"""Offsets of a log: a range to read, an offset that a leader listed, the bounds of the log. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import BrokerError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition
from protocol.position import Position


@dataclass(frozen=True)
class Range:
    """Offsets [from_offset, until_offset) of one partition.

    `topic_id`: 16 bytes that the topic must still have; zeros if unknown. Without it, a stale leader cannot be
    distinguished from the leader of a recreated topic.
    `from_epoch`: leader epoch of the position at `from_offset`; -1 if unknown, or if no record before it was read.
    `until_epoch`: leader epoch of the position at `until_offset`; -1 if unknown.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: bytes = NO_TOPIC_ID
    from_epoch: int = NO_LEADER_EPOCH
    until_epoch: int = NO_LEADER_EPOCH

    @classmethod
    def between(cls, key: TopicPartition, start: Position, end: Position) -> Range:
        """Return the range between two positions, in the topic of `end`."""
        return cls(*key, start.offset, end.offset, end.topic_id, start.leader_epoch, end.leader_epoch)

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic name and partition number."""
        return self.topic, self.partition

    @property
    def start(self) -> Position:
        """The position of the first record."""
        return Position(self.from_offset, self.from_epoch, topic_id=self.topic_id)

    @property
    def end(self) -> Position:
        """The position after the last record."""
        return Position(self.until_offset, self.until_epoch, topic_id=self.topic_id)

    @property
    def size(self) -> int:
        """Number of offsets; the number of records may be lower because of gaps (compaction, markers)."""
        return self.until_offset - self.from_offset


@dataclass(frozen=True)
class ListedOffset:
    """An offset with its leader epoch and timestamp.

    `offset`: -1 if no record is at or after the timestamp, or, for `LATEST_TIERED`, if tiered storage is empty.
    `leader_epoch`: epoch of the record; for `LATEST`, the epoch of the replying leader. -1 if unknown.
    """

    offset: int
    leader_epoch: int
    timestamp_ms: int

    def is_stale(self, known_epoch: int) -> bool:
        """Return True if the leader that listed `LATEST` is older than a leader of `known_epoch`.

        A former leader may list a log end before records that were already read from its successor. Both epochs must
        be of the same topic id.
        """
        return 0 <= self.leader_epoch < known_epoch


@dataclass(frozen=True)
class LogBounds:
    """The offsets of a log, from `start` to `latest` (exclusive), according to its leader.

    `lacks_epoch`: the log keeps leader epochs, but not the epoch of the last record read.
    """

    start: int
    latest: ListedOffset
    lacks_epoch: bool = False


# After this time, a replaced leader has noticed or is down.
STALE_LEADER_MS = 30_000


def stale_leader_error(where: str, latest: ListedOffset, known_epoch: int) -> BrokerError:
    """Make the error for an outdated leader (see `is_stale`): refresh the metadata and retry."""
    problem = f"{where}: the leader has epoch {latest.leader_epoch}, older than epoch {known_epoch} seen before"
    return broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, problem)
