"""The result of one `KafkaConsumer.poll`: Arrow record batches by partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from protocol.fetch.partition_consumer import ConsumerMessage, messages_of
from protocol.kafka_terms import TopicPartition
from protocol.position import Position, RecordPositions


class ConsumerRecords(Mapping[TopicPartition, list[pa.RecordBatch]]):
    """Record batches by partition, in offset order; false if empty. Immutable.

    The counterpart of Java's `ConsumerRecords`, in columns.
    """

    def __init__(
        self,
        batches: Mapping[TopicPartition, list[pa.RecordBatch]],
        positions: Mapping[TopicPartition, list[RecordPositions]] = MappingProxyType({}),
    ) -> None:
        self._batches = batches
        self._positions = positions

    def __getitem__(self, key: TopicPartition) -> list[pa.RecordBatch]:
        return self._batches[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def positions(self, key: TopicPartition) -> list[RecordPositions]:
        """Return the positions in each record batch of a partition, for commits at an offset within a batch."""
        return self._positions.get(key) or [
            RecordPositions(Position(batch.column("offset")[0].as_py())) for batch in self[key]
        ]

    @property
    def num_rows(self) -> int:
        """Return the number of records."""
        return sum(batch.num_rows for batches in self._batches.values() for batch in batches)

    def messages(self) -> Iterator[ConsumerMessage]:
        """Yield all records as Python objects, by partition. Slow: use the record batches for many records."""
        for (topic, partition), batches in self._batches.items():
            for batch in batches:
                yield from messages_of(topic, partition, batch)
