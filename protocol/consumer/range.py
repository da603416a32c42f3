"""A range of offsets to read from one partition. Can be pickled."""

from __future__ import annotations

from dataclasses import dataclass

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
