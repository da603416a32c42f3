"""The result of one `KafkaConsumer.poll`: Arrow record batches by partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from protocol.fetch.partition_consumer import ConsumerMessage, messages_of
from protocol.group.commits.committed_offsets import CommittedOffset, to_commit
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
        next_positions: Mapping[TopicPartition, Position] = MappingProxyType({}),
    ) -> None:
        self._batches = batches
        self._positions = positions
        self._next_positions = next_positions

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
    def next_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets to commit when these records are processed, with leader epochs and topic ids.

        For `send_offsets_to_transaction` and `commit_sync`. An offset alone, such as `KafkaConsumer.position`, does not
        tell the next owner that the log was truncated since. Java's `nextOffsets` (KIP-1094).
        """
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for key, batches in self._batches.items():
            if (position := self._next_positions.get(key)) is None:
                position = self.positions(key)[-1].at(batches[-1].column("offset")[-1].as_py() + 1)
            offsets[key] = to_commit(position)
        return offsets

    @property
    def num_rows(self) -> int:
        """Return the number of records."""
        return sum(batch.num_rows for batches in self._batches.values() for batch in batches)

    def messages(self) -> Iterator[ConsumerMessage]:
        """Yield all records as Python objects, by partition. Slow: use the record batches for many records."""
        for (topic, partition), batches in self._batches.items():
            for batch in batches:
                yield from messages_of(topic, partition, batch)
