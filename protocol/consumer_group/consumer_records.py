"""The result of one `KafkaConsumer.poll`: Arrow record batches by partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from protocol.consumer.log_offsets import LeaderEpochs
from protocol.consumer.partition_consumer import ConsumerMessage, messages_of
from protocol.kafka_terms import TopicPartition


class ConsumerRecords(Mapping[TopicPartition, list[pa.RecordBatch]]):
    """Record batches by partition, in offset order; false if empty. Immutable.

    The counterpart of Java's `ConsumerRecords`, in columns.
    """

    def __init__(
        self,
        batches: Mapping[TopicPartition, list[pa.RecordBatch]],
        epochs: Mapping[TopicPartition, list[LeaderEpochs]] = MappingProxyType({}),
    ) -> None:
        self._batches = batches
        self._epochs = epochs

    def __getitem__(self, key: TopicPartition) -> list[pa.RecordBatch]:
        return self._batches[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def leader_epochs(self, key: TopicPartition) -> list[LeaderEpochs]:
        """Return the leader epochs of each record batch of a partition, for commits at an offset within a batch."""
        return self._epochs.get(key) or [LeaderEpochs()] * len(self[key])

    @property
    def num_rows(self) -> int:
        """Return the number of records."""
        return sum(batch.num_rows for batches in self._batches.values() for batch in batches)

    def messages(self) -> Iterator[ConsumerMessage]:
        """Yield all records as Python objects, by partition. Slow: use the record batches for many records."""
        for (topic, partition), batches in self._batches.items():
            for batch in batches:
                yield from messages_of(topic, partition, batch)
