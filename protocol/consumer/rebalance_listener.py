"""The callbacks of `KafkaConsumer` for rebalances: Java's `ConsumerRebalanceListener`."""

from __future__ import annotations

from collections.abc import Collection

from protocol.kafka_terms import TopicPartition


class ConsumerRebalanceListener:
    """Callbacks for rebalances; override those of interest.

    Called within `poll`, `unsubscribe`, `enforce_rebalance` and `close`, in the caller's thread. An exception does not
    stop the rebalance: the call raises the first exception once, after the partitions are revoked or assigned. A
    listener may call the consumer, except `poll`.
    """

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Handle revoked partitions before they are released.

        Offsets committed here are the start offsets of the next owner.
        """

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Handle new partitions before they are read; `seek` changes the start offset."""

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        """Handle partitions that other members may own already; commits are refused. Calls `on_partitions_revoked`."""
        self.on_partitions_revoked(partitions)
