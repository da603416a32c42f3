"""What a `KafkaConsumer` tells its user of rebalances: Java's `ConsumerRebalanceListener`."""

from __future__ import annotations

from collections.abc import Collection

from protocol.kafka_terms import TopicPartition


class ConsumerRebalanceListener:
    """Called within `poll`, in its thread; override the methods of interest.

    A rebalance goes on when a method raises an exception: the partitions are revoked or assigned, and then `poll` (or
    `unsubscribe`, `enforce_rebalance`, `close`) raises the first exception of that rebalance, once.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """They are still this member's, and what is committed now is seen by the next one that has them."""

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """They are new. `seek` says where to begin, if not at the group's offset."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """They are another member's by now, and nothing can be committed."""
        self.on_partitions_revoked(partitions)
