"""The partitions that a query may read. Sans-IO.

A query without group membership may read all partitions of its topics (`driver/discovery.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from protocol.kafka_terms import TopicPartition
from spark_kafka_source.plan.offsets import Offsets


@dataclass(frozen=True)
class QueryAssignment:
    """The partitions of one trigger.

    Attributes
    ----------
    owned : mapping of TopicPartition to bytes
        Topic id (16 bytes, zeros before Kafka 2.8) of each partition that a batch may read.
    added : mapping of TopicPartition to int
        Offset at which a partition was assigned, until it is revoked or its topic is recreated. A partition that was
        never read and is not in here is read from its log start offset.
    revoked : collection of TopicPartition
        Existing partitions that another member of the group reads. Any other partition that was read before and is
        not owned was deleted, which is a loss.
    """

    owned: Mapping[TopicPartition, bytes]
    added: Mapping[TopicPartition, int] = field(default_factory=dict)
    revoked: Collection[TopicPartition] = frozenset()

    def positions(self, read: Offsets) -> dict[TopicPartition, int]:
        """Return the next offset of each partition that was read or assigned at an offset, owned or not.

        The larger of both: this query has delivered up to `read`, and the previous owner up to the assigned offset.
        """
        return {**read.ends, **{key: max(offset, read.ends.get(key, 0)) for key, offset in self.added.items()}}

    def epochs(self, read: Offsets) -> dict[TopicPartition, int]:
        """Return the leader epochs of the last records before `positions`.

        Unknown ones are left out, such as those of partitions that another member has read.
        """
        positions = self.positions(read)
        return {key: epoch for key, epoch in read.epochs.items() if positions[key] == read.ends[key]}
