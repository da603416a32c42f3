"""What is to be read of one partition: by a task of Spark, by `RangeConsumer`. Pure, and pickles."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition


@dataclass(frozen=True)
class Range:
    """Offsets [from_offset, until_offset) of one partition.

    Attributes
    ----------
    topic_id : 16 bytes, which the topic must still have; zeros if unknown. Without it a leader that was replaced
        cannot be told from that of another topic.
    from_epoch : leader epoch of the last record before `from_offset`; -1 if unknown, or if that was not read.
    until_epoch : leader epoch when `until_offset` was seen to be in the log; -1 if unknown.
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
        return self.topic, self.partition

    @property
    def size(self) -> int:
        """How many offsets: the most records it can hold, since gaps (compaction, markers) hold none."""
        return self.until_offset - self.from_offset
