"""Choose the partition of each row: as given in the row, by the user's function, or by a strategy.

Called by `batch_assembler` with the rows of one topic. Reads the partitions from the metadata.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.base.clock import Deadline
from protocol.base.interrupts import interruptible
from protocol.cluster.client import Client
from protocol.cluster.metadata import Topic
from protocol.config import ProducerConfig
from protocol.errors import KafkaError, UsageError
from protocol.kafka_terms import NO_PARTITION, TopicPartition
from protocol.metrics.sensor import timed
from protocol.producer.partition_producer import PartitionProducer
from protocol.producer.partitioner import Partitioner, PartitionFunction, Partitions
from protocol.producer.topics import MissingTopics, require_partition, topic_to_write
from protocol.records.arrow_numpy import to_numpy, valid

GivenPartitions = Any  # pa.Int32Array | npt.NDArray[np.int32]; pyarrow has no type stubs


class PartitionChoice:
    """Partition choice of one producer.

    `busy` has the partitions with waiting batches. It changes meanwhile: only look keys up in it. `checked` has the
    topics and partitions that `check_partition` has seen.
    """

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
        self._rng = random.Random()  # noqa: S311 - shared by all topics, since its state takes 2.5 kB
        self._partitioners: dict[str, Partitioner] = {}
        self._cached_topics: dict[str, Topic] = {}
        self._missing = MissingTopics(client)
        self.checked: set[tuple[str, int | None]] = set()

    def resolve_topic(
        self, topic: str, rows: int, requested_partitions: GivenPartitions | None, until: Deadline | None = None
    ) -> tuple[Topic, pa.Int32Array | None]:
        """Return the arguments of `choose`; wait for a missing topic, at most until a deadline of the caller.

        Raises `UsageError` for missing partitions.
        """
        partitions = (
            None
            if requested_partitions is None
            else int32_partitions(requested_partitions, rows, f"for {rows} rows of topic {topic}")
        )
        numbers = None if partitions is None else to_numpy(partitions)[valid(partitions)]
        highest = int(numbers.max()) if numbers is not None and len(numbers) else 0
        limit = self._client.deadline().at_most_ms(self._config.max_block_ms)
        deadline = limit if until is None or limit.at_s <= until.at_s else until
        self._missing.raise_if_missing(topic, highest, deadline)
        waits = self._client.remembered_topic(topic) is None
        measured = timed(self._client.sensors.metadata_waits, self._client.clock) if waits else nullcontext()
        try:
            with measured:
                metadata = self._cached_topics[topic] = topic_to_write(self._client, topic, numbers, deadline)
        except KafkaError as error:
            if deadline is limit:  # a shorter wait does not prove that the topic is missing
                self._missing.add(topic, highest, error)
            raise
        return metadata, partitions

    def check_partition(self, topic: str, partition: int | None, *, wait: bool, until: Deadline | None = None) -> None:
        """Check that topic and partition exist, as `resolve_topic`; each pair is checked once.

        Without `wait` it does not wait for missing topics: for the producer's thread, whose deadline is `until`.
        """
        if (topic, partition) in self.checked:
            return
        if wait:
            numbers = None if partition is None else np.array([partition], np.int32)
            self.resolve_topic(topic, 1, numbers, until)
        else:
            if topic not in self._cached_topics:
                self._cached_topics[topic] = self._client.topic(topic, until, create=True)
            require_partition(self.cached_topic(topic), partition)
        self.checked.add((topic, partition))

    def cached_topic(self, topic: str) -> Topic:
        """Return the cached topic of an earlier `resolve_topic`, without a request."""
        if current := self._client.remembered_topic(topic):
            self._cached_topics[topic] = current
        return self._cached_topics[topic]

    def choose(
        self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64], partitions: pa.Int32Array | None
    ) -> Partitions:
        """Choose one partition per row. One caller at a time.

        `sizes` are the bytes of each record. `partitions` are given in the rows; only null rows are chosen.
        """
        if partitions is not None and not partitions.null_count:
            return to_numpy(partitions)
        by = self._by_strategy if self._function is None else self._by_function
        chosen = by(topic, rows, sizes)
        return chosen if partitions is None else _fill_nulls(partitions, chosen)

    def choose_each(
        self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64], partitions: pa.Int32Array | None
    ) -> tuple[Partitions, dict[int, KafkaError]]:
        """Choose for rows of several callers: if `choose` raises, choose for each row alone, so that each fails alone.

        Also returns the errors by row number. They include `SystemExit`, which would end the sender's thread.
        """
        try:
            return self.choose(topic, rows, sizes, partitions), {}
        except (Exception, SystemExit):
            chosen, failed = np.full(rows.num_rows, NO_PARTITION, np.int32), {}
        for row in range(rows.num_rows):
            partition = None if partitions is None else partitions.slice(row, 1)
            try:
                (chosen[row],) = self.choose(topic, rows.slice(row, 1), sizes[row : row + 1], partition)
            except (Exception, SystemExit) as error:
                failed[row] = error if isinstance(error, KafkaError) else UsageError(f"{topic.name}: {error!r}")
        return chosen, failed

    def _by_function(self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64]) -> Partitions:
        assert self._function is not None
        count, source = len(topic.partitions), f"by the partitioner for {rows.num_rows} rows"
        requested = interruptible(self._function, topic.name, rows, count)
        numbers = int32_partitions(requested, rows.num_rows, source)
        chosen = to_numpy(numbers)[valid(numbers)]
        if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < count:
            raise UsageError(
                f"the partitioner chose partitions {chosen.min()} to {chosen.max()}, "
                f"but topic {topic.name} has {count}",
                topic=topic.name,
            )
        return _fill_nulls(numbers, self._by_strategy(topic, rows, sizes)) if numbers.null_count else to_numpy(numbers)

    def _by_strategy(self, topic: Topic, rows: pa.RecordBatch, sizes: npt.NDArray[np.int64]) -> Partitions:
        if topic.name not in self._partitioners:
            ignore_keys = self._config.partitioner_ignore_keys
            self._partitioners[topic.name] = Partitioner(
                self._config.partitioner, rng=self._rng, ignore_keys=ignore_keys
            )
        keys = rows.column("key") if "key" in rows.schema.names else None
        load = partition_load(topic, self._busy, self._config, self._client.clock.now_s())
        return self._partitioners[topic.name].choose(keys, sizes, len(topic.partitions), *load)


def int32_partitions(partitions: GivenPartitions, rows: int, source: str) -> pa.Int32Array:
    """Return one partition per row, null where none is given; `source` ends the messages of errors.

    Raises `UsageError` for another number of partitions than rows, or a partition that is no int32.
    """
    try:
        joined = partitions.combine_chunks() if isinstance(partitions, pa.ChunkedArray) else partitions
        numbers = joined if isinstance(joined, pa.Array) else pa.array(joined)
        numbers = numbers if numbers.type == pa.int32() else numbers.cast(pa.int32())
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(f"partitions that are no 32-bit integers were given {source}: {error}") from error
    if len(numbers) != rows:
        raise UsageError(f"{len(numbers)} partitions were given {source}")
    return numbers


def _fill_nulls(partitions: pa.Int32Array, chosen: Partitions) -> Partitions:
    return np.where(valid(partitions), to_numpy(partitions), chosen)


def partition_load(
    topic: Topic, busy: Mapping[TopicPartition, PartitionProducer], config: ProducerConfig, now_s: float
) -> tuple[list[int], list[int] | None]:
    """Return the available partitions of a topic, and the number of waiting batches of each.

    Available partitions have a leader that accepts batches. The numbers are None if they do not matter.
    """
    leaders = {number: partition.leader for number, partition in topic.partitions.items() if partition.leader >= 0}
    waiting = {number: load for number in leaders if (load := busy.get((topic.name, number)))} if busy else {}
    if not waiting or not config.partitioner_adaptive_partitioning_enable:
        return list(leaders), None
    timeout_s = (config.partitioner_availability_timeout_ms or math.inf) / 1000
    stuck = {
        leaders[number]
        for number, producer in waiting.items()
        if producer.unsent and now_s - producer.waits_since_s > timeout_s
    }
    available = [number for number in leaders if leaders[number] not in stuck] or list(leaders)
    return available, [waiting[number].unsent if number in waiting else 0 for number in available]
