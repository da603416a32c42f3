"""What a query may read of what it subscribes to. Pure: where claims come from, nobody in this room knows.

A query that is in no group claims all that is there (`driver/discovery.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan.offsets import Offsets


@dataclass(frozen=True)
class Claims:
    """As of one trigger.

    Attributes
    ----------
    owned : (topic, partition) -> the topic's id (16 bytes, zeros before Kafka 2.8), of all that a batch may read.
    added : (topic, partition) -> the offset at which it was claimed, until it is revoked or its topic recreated. What
        was never read, and is not in here, is read from where its log begins.
    revoked : what is there, and another member of the group reads. Whatever else was read before and is not owned was
        deleted: what nobody explains is a loss.
    """

    owned: Mapping[TopicPartition, bytes]
    added: Mapping[TopicPartition, int] = field(default_factory=dict)
    revoked: Collection[TopicPartition] = frozenset()

    def positions(self, read: Offsets) -> dict[TopicPartition, int]:
        """The next offset to read, of all that was `read` or has been claimed at an offset, also if not owned now.

        Of both the larger one: up to `read` this query has delivered, up to the other whoever owned it before.
        """
        return {**read.ends, **{key: max(offset, read.ends.get(key, 0)) for key, offset in self.added.items()}}

    def epochs(self, read: Offsets) -> dict[TopicPartition, int]:
        """Leader epochs of the last records before `positions`; left out where unknown, as where others have read."""
        positions = self.positions(read)
        return {key: epoch for key, epoch in read.epochs.items() if positions[key] == read.ends[key]}
