"""Committed offsets of groups, also those of open transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.testing.fake_kafka.requests import Body


@dataclass(frozen=True)
class Committed:
    """A committed offset. `topic_id` is that of the request, zeros if it had none."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes = NO_TOPIC_ID

    @classmethod
    def of(cls, part: Body, topic_id: bytes = NO_TOPIC_ID) -> Committed:
        """Return the offset of a partition's row of OffsetCommit or TxnOffsetCommit."""
        return cls(part["committed_offset"], part["committed_leader_epoch"], part["committed_metadata"] or "", topic_id)

    def belongs_to(self, topic_id: bytes) -> bool:
        """Return False if the ids are known and differ."""
        return NO_TOPIC_ID in (topic_id, self.topic_id) or topic_id == self.topic_id

    def row(self) -> Body:
        """Return the fields of OffsetFetch."""
        return {"committed_offset": self.offset, "committed_leader_epoch": self.leader_epoch, "metadata": self.metadata}


class Offsets:
    """`committed` offsets by group; `pending` ones by producer id and group, until the transaction ends."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.committed: dict[str, dict[TopicPartition, Committed]] = {}
        self.pending: dict[int, dict[str, dict[TopicPartition, Committed]]] = {}
        self.max_metadata = int(settings["offset.metadata.max.bytes"])

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commit or drop the offsets of a producer's transaction."""
        for group_id, offsets in self.pending.pop(producer_id, {}).items():
            if commit:
                self.committed.setdefault(group_id, {}).update(offsets)

    def delete_topic(self, name: str) -> None:
        """Drop the offsets of a deleted topic."""
        for offsets in (
            *self.committed.values(),
            *(by for offsets_by_partition in self.pending.values() for by in offsets_by_partition.values()),
        ):
            for key in [key for key in offsets if key[0] == name]:
                del offsets[key]

    def is_pending(self, group_id: str, key: TopicPartition) -> bool:
        """Return True if an open transaction has an offset for a partition."""
        return any(key in by_group.get(group_id, {}) for by_group in self.pending.values())
