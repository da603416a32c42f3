"""Estimate the bytes per offset of partitions from record batch headers: compressed, with the batch header.

Kafka does not report the bytes between two offsets. DescribeLogDirs reports the size of a whole log: an average over
all retained records, without tiered storage, and it needs the ACL Describe on the cluster. Batch headers at the next
read position describe the records to be read, need no further ACL, and contain size and offsets without decoding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.consumer.log_samples import log_samples
from protocol.kafka_terms import TopicPartition

log = logging.getLogger(__name__)

# Two record batches of a producer with the default `batch.size`.
_SAMPLE_BYTES = 32 * 1024
_SAMPLES_PER_REQUEST = 64
# Partitions beyond this limit, or with very large batches, are sampled next time.
_MOST_BYTES = 16 * 1024 * 1024
_GUESSED_BYTES = 1024.0


class RecordSizes:
    """Bytes per offset by partition, sampled from time to time. Not thread-safe."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        # Ordered by the time of the last sample, oldest first.
        self._known: dict[TopicPartition, float] = {}

    def look(self, client: Client, positions: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Sample the logs at `positions`, where records should be; does not raise broker errors.

        The previous value has half of the weight, since neighbouring batches may differ.
        """
        order = [key for key in positions if key not in self._known] + [key for key in self._known if key in positions]
        samples = log_samples(
            client,
            self._config,
            {key: positions[key] for key in order},
            deadline,
            partition_max_bytes=_SAMPLE_BYTES,
            partitions_per_request=_SAMPLES_PER_REQUEST,
            most_bytes=_MOST_BYTES,
        )
        for key, fetched in samples:
            seen = fetched.records.bytes_per_offset(fetched.position)
            self._known[key] = (self._known.pop(key, seen) + seen) / 2

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """Return the value of each partition; the topic's mean if a partition was never sampled."""
        by_topic: dict[str, list[float]] = {}
        for (topic, _), size in self._known.items():
            by_topic.setdefault(topic, []).append(size)
        means = {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}
        found: dict[TopicPartition, float] = {}
        for key in partitions:
            if key not in self._known and key[0] not in means:
                log.warning(
                    "%s-%d: its log could not be sampled; %d bytes per offset are assumed", *key, _GUESSED_BYTES
                )
                means[key[0]] = _GUESSED_BYTES
            found[key] = self._known.get(key, means.get(key[0], _GUESSED_BYTES))
        return found
