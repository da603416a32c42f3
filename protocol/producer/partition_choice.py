"""The partition of each row that a producer takes: the one it names, or a function's of one's own, or a strategy's.

Called by `intake` with the rows of one topic. Asks metadata which partitions there are.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.cluster.client import Client
from protocol.cluster.metadata import Topic
from protocol.config import ProducerConfig
from protocol.errors import KafkaError, UsageError
from protocol.kafka_terms import NO_PARTITION, TopicPartition
from protocol.producer.partition_load import partition_load
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.partitioner import Partitioner, PartitionFunction, Partitions
from protocol.producer.topics import require_partition, topic_to_write
from protocol.records.arrow_numpy import to_arrow, to_numpy, valid

GivenPartitions = Any  # pa.Int32Array | npt.NDArray[np.int32]; pyarrow has no type stubs


class PartitionChoice:
    """`busy` are the partitions for which something waits, as the producer has it just now."""

    def __init__(
        self,
        client: Client,
        config: ProducerConfig,
        busy: Mapping[TopicPartition, PartitionProducer],
        function: PartitionFunction | None,
    ) -> None:
        self._client = client
        self._config = config
        self._busy = busy
        self._function = function
        self._rng = random.Random()  # noqa: S311 - one for all topics: its state takes 2.5 kB
        self._partitioners: dict[str, Partitioner] = {}
        self._last_seen: dict[str, Topic] = {}

    def look_up(self, topic: str, rows: int, given: GivenPartitions | None) -> tuple[Topic, pa.Int32Array | None]:
        """What `choose` needs to know. Raises `UsageError` for partitions that are not there."""
        named = None if given is None else _int32(given, rows, f"for {rows} rows of topic {topic}")
        numbers = None if named is None else to_numpy(named)[valid(named)]
        deadline = self._client.deadline().at_most_ms(self._config.max_block_ms)
        known = self._last_seen[topic] = topic_to_write(self._client, topic, numbers, deadline)
        return known, named

    def look_at(self, topic: str, partition: int | None) -> None:
        """As `look_up` for one row, but waits for nothing that is not there: for the sender's thread."""
        if topic not in self._last_seen:
            self._last_seen[topic] = self._client.topic(topic, create=True)
        require_partition(self.last_seen(topic), partition)

    def last_seen(self, topic: str) -> Topic:
        """What `choose` needs to know of a topic that was looked up before. Asks nobody, so it waits for nobody."""
        if known := self._client.remembered_topic(topic):
            self._last_seen[topic] = known
        return self._last_seen[topic]

    def choose(
        self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64], named: pa.Int32Array | None
    ) -> Partitions:
        """One partition per row, for one caller at a time. `sizes` are the records' bytes, `named` what rows say."""
        if named is not None and not named.null_count:
            return to_numpy(named)
        by = self._by_strategy if self._function is None else self._by_function
        chosen = by(topic, rows, sizes)
        return chosen if named is None else _first_of(named, chosen)

    def choose_each(
        self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64], named: pa.Int32Array | None
    ) -> tuple[Partitions, dict[int, KafkaError]]:
        """As `choose`, for rows of several callers: where it raises, each is asked about alone, and fails alone.

        The errors are by the number of the row. `SystemExit` is one, too: it would end the sender's thread.
        """
        try:
            return self.choose(topic, rows, sizes, named), {}
        except (Exception, SystemExit):
            chosen, failed = np.full(rows.num_rows, NO_PARTITION, np.int32), {}
        for row in range(rows.num_rows):
            one = None if named is None else named.slice(row, 1)
            try:
                (chosen[row],) = self.choose(topic, rows.slice(row, 1), sizes[row : row + 1], one)
            except (Exception, SystemExit) as error:
                failed[row] = error if isinstance(error, KafkaError) else UsageError(f"{topic.name}: {error!r}")
        return chosen, failed

    def _by_function(self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64]) -> Partitions:
        assert self._function is not None
        count, words = len(topic.partitions), f"by the partitioner for {rows.num_rows} rows"
        found = _int32(self._function(topic.name, rows, count), rows.num_rows, words)
        named = to_numpy(found)[valid(found)]
        if len(named) and not 0 <= int(named.min()) <= int(named.max()) < count:
            raise UsageError(
                f"the partitioner chose partitions {named.min()} to {named.max()}, but topic {topic.name} has {count}",
                topic=topic.name,
            )
        return _first_of(found, self._by_strategy(topic, rows, sizes)) if found.null_count else to_numpy(found)

    def _by_strategy(self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64]) -> Partitions:
        if topic.name not in self._partitioners:
            ignore_keys = self._config.partitioner_ignore_keys
            self._partitioners[topic.name] = Partitioner(
                self._config.partitioner, rng=self._rng, ignore_keys=ignore_keys
            )
        keys = rows.column("key") if "key" in rows.schema.names else None
        load = partition_load(topic, self._busy, self._config, self._client.clock.now_s())
        return self._partitioners[topic.name].choose(keys, sizes, len(topic.partitions), *load)


def _int32(partitions: GivenPartitions, rows: int, words: str) -> pa.Int32Array:
    if len(partitions) != rows:
        raise UsageError(f"{len(partitions)} partitions were given {words}")
    if isinstance(partitions, np.ndarray):
        return to_arrow(partitions.astype(np.int32, copy=False))
    return partitions if partitions.type == pa.int32() else partitions.cast(pa.int32())


def _first_of(named: pa.Int32Array, otherwise: Partitions) -> Partitions:
    return np.where(valid(named), to_numpy(named), otherwise)
