"""How many bytes an offset takes, by partition, as the log holds it: compressed, and with what a batch header adds.

Nobody tells a driver what its executors have fetched, and Kafka does not say how many bytes lie between two offsets.
DescribeLogDirs tells the size of a whole log: an average over everything retained (old formats, compacted segments,
without what is in tiered storage), and it needs the right to describe the cluster. The headers of the record batches
where the next read begins are about what is to be read, and need no more rights than reading. A batch says its size and
its offsets in its header, so a few of them are enough, and no record is decoded.
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
# Partitions beyond that, or with very large batches, have their turn the next time.
_MOST_BYTES = 16 * 1024 * 1024
_GUESSED_BYTES = 1024.0


class RecordSizes:
    """Bytes per offset of partitions, looked at from time to time and remembered in between. For one thread."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        # Whoever was looked at longest ago stands first.
        self._known: dict[TopicPartition, float] = {}

    def look(self, client: Client, positions: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Looks at the logs from `positions` on, where there should be records; raises nothing of what brokers say.

        What was known counts half: the batches of one place may be unlike those of the next.
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
        """Of each of `partitions`; one that nobody could look at has its topic's mean."""
        by_topic: dict[str, list[float]] = {}
        for (topic, _), size in self._known.items():
            by_topic.setdefault(topic, []).append(size)
        means = {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}
        found: dict[TopicPartition, float] = {}
        for key in partitions:
            if key not in self._known and key[0] not in means:
                log.warning(
                    "%s-%d: its log could not be looked at; %d bytes per offset are assumed", *key, _GUESSED_BYTES
                )
                means[key[0]] = _GUESSED_BYTES
            found[key] = self._known.get(key, means.get(key[0], _GUESSED_BYTES))
        return found
