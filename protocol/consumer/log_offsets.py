"""Offsets of a log: a range to read, an offset that a leader listed, the bounds of the log. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.broker_errors import ErrorCode, broker_error
from protocol.errors import BrokerError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition


@dataclass(frozen=True)
class Range:
    """Offsets [from_offset, until_offset) of one partition.

    Attributes
    ----------
    topic_id : bytes
        16 bytes that the topic must still have; zeros if unknown. Without it, a stale leader cannot be distinguished
        from the leader of a recreated topic.
    from_epoch : int
        Leader epoch of the last record before `from_offset`; -1 if unknown, or if that record was not read.
    until_epoch : int
        Leader epoch at the time when `until_offset` was found in the log; -1 if unknown.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    topic_id: bytes = NO_TOPIC_ID
    from_epoch: int = NO_LEADER_EPOCH
    until_epoch: int = NO_LEADER_EPOCH

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic name and partition number."""
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """Number of offsets; the number of records may be lower because of gaps (compaction, markers)."""
        return self.until_offset - self.from_offset


@dataclass(frozen=True)
class LeaderEpochs:
    """Leader epochs of consecutive records, for commits at any offset among them.

    Attributes
    ----------
    before : int
        Leader epoch of the last record before them; -1 if unknown.
    changes : tuple of (int, int)
        Offset from which on record batches have another leader epoch, and this epoch; ascending.
    """

    before: int = NO_LEADER_EPOCH
    changes: tuple[tuple[int, int], ...] = ()

    def before_offset(self, offset: int) -> int:
        """Return the leader epoch of the last record before `offset`, which is one of these records or the next one."""
        found = self.before
        for first, epoch in self.changes:
            if first >= offset:
                break
            found = epoch
        return found

    def followed_by(self, later: LeaderEpochs) -> LeaderEpochs:
        """Return the leader epochs of these records and of `later` ones, which were read next."""
        if not later.changes:
            return self
        begin, epoch = later.changes[0]
        kept = tuple(change for change in self.changes if change[0] < begin)
        same = epoch == (kept[-1][1] if kept else self.before)
        return LeaderEpochs(self.before, kept + later.changes[same:])


@dataclass(frozen=True)
class ListedOffset:
    """An offset with its leader epoch and timestamp.

    Attributes
    ----------
    offset : int
        -1 if there is no record at or after the timestamp.
    leader_epoch : int
        Epoch of the record; for `LATEST`, the epoch of the replying leader. -1 if unknown.
    timestamp_ms : int
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


def stale_leader(where: str, latest: ListedOffset, known_epoch: int) -> BrokerError:
    """Make the error for an outdated leader (see `is_stale`): refresh the metadata and retry."""
    what = f"{where}: the leader has epoch {latest.leader_epoch}, older than epoch {known_epoch} seen before"
    return broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER, what)
