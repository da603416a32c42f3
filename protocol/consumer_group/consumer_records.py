"""What one `poll` brings: Arrow record batches by partition, and single messages as a thin view of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from protocol.consumer.partition_consumer import ConsumerMessage, messages_of
from protocol.kafka_terms import TopicPartition


class ConsumerRecords(Mapping[TopicPartition, list[pa.RecordBatch]]):
    """Immutable. Java's `ConsumerRecords`, in columns; false when there is nothing."""

    def __init__(self, batches: Mapping[TopicPartition, list[pa.RecordBatch]]) -> None:
        self._batches = batches

    def __getitem__(self, key: TopicPartition) -> list[pa.RecordBatch]:
        return self._batches[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def num_rows(self) -> int:
        return sum(batch.num_rows for batches in self._batches.values() for batch in batches)

    def messages(self) -> Iterator[ConsumerMessage]:
        """All records, one by one. Makes Python objects: for convenience, not for many records."""
        for (topic, partition), batches in self._batches.items():
            for batch in batches:
                yield from messages_of(topic, partition, batch)
