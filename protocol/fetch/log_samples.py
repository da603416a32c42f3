"""Sample the logs at some offsets: small Fetch requests to leaders, without retries.

For estimates such as lag in seconds or bytes per offset (`RecordSizes`). Runs in the caller's thread, with one request
at a time to each leader.

Kafka does not report the bytes between two offsets. DescribeLogDirs reports the size of a whole log: an average over
all retained records, without tiered storage, and it needs the ACL Describe on the cluster. Batch headers at the next
read position describe the records to be read, need no further ACL, and contain size and offsets without decoding.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.errors import KafkaError
from protocol.fetch.fetch_failures import Retry, decide
from protocol.fetch.fetch_position import UNBOUNDED, CompletedFetch, FetchPosition
from protocol.fetch.fetch_request import FetchRequest, FetchRequestBuilder, FetchResult
from protocol.fetch.leaders import receive_fetch, resolve_leaders, send_fetch
from protocol.kafka_terms import TopicPartition
from protocol.net.connection import Reply
from protocol.position import Position

log = logging.getLogger(__name__)


def log_samples(
    client: Client,
    config: ConsumerConfig,
    offsets: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    partition_max_bytes: int,
    partitions_per_request: int,
    max_bytes: int = UNBOUNDED,
) -> Iterator[tuple[TopicPartition, CompletedFetch]]:
    """Yield the record batches at `offsets`, in order of arrival.

    `offsets`: in the order in which to fetch from each leader.
    `partition_max_bytes`: approximate bytes per partition.
    `max_bytes`: send no more requests after this many bytes of records.
    Partitions that failed or had no reply by the deadline are omitted; broker errors are not raised.
    """
    # With a rack, a leader may name another replica instead of sending records.
    config = replace(config, max_partition_fetch_bytes=partition_max_bytes, client_rack="")
    waiting = _by_leader(client, config, offsets, deadline)
    builders = {broker: FetchRequestBuilder(broker, config, sessions=False) for broker in waiting}
    received_bytes = 0
    while waiting and received_bytes < max_bytes and not deadline.passed:
        in_flight: dict[Broker, tuple[FetchRequest[FetchPosition], Reply]] = {}
        for broker, queue in waiting.items():
            positions = [queue.popleft() for _ in range(min(partitions_per_request, len(queue)))]
            request = builders[broker].build(positions, max_bytes=partition_max_bytes * len(positions), max_wait_ms=0)
            try:
                in_flight[broker] = request, send_fetch(client, request, deadline)
            except KafkaError as error:
                log.debug("%s: the Fetch to sample %d log(s) was not sent: %s", broker, len(positions), error)
        for broker, (request, reply) in in_flight.items():
            positions = list(request.partitions)
            try:
                result = receive_fetch(
                    client, request, reply.result(deadline.at_most_ms(client.config.request_timeout_ms))
                )
            except KafkaError as error:
                log.debug("%s: no reply to the Fetch that samples %d log(s): %s", broker, len(positions), error)
                continue
            _handle_failures(client, result)
            for partition, fetched in result.completed:
                received_bytes += len(fetched.records.buffer)
                yield partition.topic_partition, fetched
            waiting[broker].extend(_still_unsampled(positions, result))
        waiting = {broker: queue for broker, queue in waiting.items() if queue}


def _by_leader(
    client: Client, config: ConsumerConfig, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[Broker, deque[FetchPosition]]:
    partitions = [FetchPosition(*key, Position(offset), config) for key, offset in offsets.items()]
    failures = resolve_leaders(client, partitions, deadline)
    waiting: dict[Broker, deque[FetchPosition]] = {}
    for partition in partitions:
        if partition in failures:
            log.debug("%s: its log is not sampled, as it has no leader: %s", partition.name, failures[partition])
        elif partition.broker is not None:
            waiting.setdefault(partition.broker, deque()).append(partition)
    return waiting


def _handle_failures(client: Client, result: FetchResult[FetchPosition]) -> None:
    for partition, error in result.failed:
        log.debug("%s: its log is not sampled: %s", partition.name, error)
        action = decide(partition, error)
        if isinstance(action, Retry) and action.refresh_metadata:
            client.expire_metadata([partition.topic])


def _still_unsampled(positions: list[FetchPosition], result: FetchResult[FetchPosition]) -> list[FetchPosition]:
    """Return partitions whose first record batch was larger than `partition_max_bytes`.

    A broker returns one complete batch of any size, but only for the first partition with data in a request (KIP-74).
    Each of these partitions is therefore fetched again, until it is the first one.
    """
    if result.throttle_ms:
        # The broker sends no records while it throttles.
        return []
    done = {partition.name for partition, _ in (*result.completed, *result.failed)}
    return [partition for partition in positions[1:] if partition.name not in done]


# Two record batches of a producer with the default `batch.size`.
_SAMPLE_BYTES = 32 * 1024
_SAMPLES_PER_REQUEST = 64
# Partitions beyond this limit, or with very large batches, are sampled next time.
_MAX_BYTES = 16 * 1024 * 1024
_ASSUMED_BYTES = 1024.0


class RecordSizes:
    """Bytes per offset by partition, sampled from time to time. Not thread-safe."""

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        # Ordered by the time of the last sample, oldest first.
        self._bytes_per_offset: dict[TopicPartition, float] = {}

    def sample(self, client: Client, positions: Mapping[TopicPartition, int], deadline: Deadline) -> None:
        """Sample the logs at `positions`, where records should be; does not raise broker errors.

        The previous value has half of the weight, since neighbouring batches may differ.
        """
        order = [key for key in positions if key not in self._bytes_per_offset] + [
            key for key in self._bytes_per_offset if key in positions
        ]
        samples = log_samples(
            client,
            self._config,
            {key: positions[key] for key in order},
            deadline,
            partition_max_bytes=_SAMPLE_BYTES,
            partitions_per_request=_SAMPLES_PER_REQUEST,
            max_bytes=_MAX_BYTES,
        )
        for key, fetched in samples:
            bytes_per_offset = fetched.records.bytes_per_offset(fetched.start.offset)
            self._bytes_per_offset[key] = (self._bytes_per_offset.pop(key, bytes_per_offset) + bytes_per_offset) / 2

    def bytes_per_offset(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        """Return the value of each partition; the topic's mean if a partition was never sampled."""
        by_topic: dict[str, list[float]] = {}
        for (topic, _), size in self._bytes_per_offset.items():
            by_topic.setdefault(topic, []).append(size)
        means = {topic: sum(sizes) / len(sizes) for topic, sizes in by_topic.items()}
        sizes_bytes: dict[TopicPartition, float] = {}
        for key in partitions:
            if key not in self._bytes_per_offset and key[0] not in means:
                log.warning(
                    "%s-%d: its log could not be sampled; %d bytes per offset are assumed", *key, _ASSUMED_BYTES
                )
                means[key[0]] = _ASSUMED_BYTES
            sizes_bytes[key] = self._bytes_per_offset.get(key, means.get(key[0], _ASSUMED_BYTES))
        return sizes_bytes
