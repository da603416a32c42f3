"""What lies in the logs at some offsets: a look, not a reading. Small Fetches, and nothing is tried again.

For those who estimate: lag in seconds, bytes per offset. Runs wherever its caller does (for Spark: the driver), in the
caller's thread, with one request at a time to each leader.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from protocol.broker_errors import Refresh
from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.dispatch import what_to_refresh
from protocol.cluster.metadata import Broker
from protocol.config import ConsumerConfig
from protocol.consumer.broker_consumer import BrokerConsumer, FetchResult, look_up, send_fetch
from protocol.consumer.partition_consumer import UNBOUNDED, Fetched, PartitionConsumer
from protocol.errors import KafkaError
from protocol.kafka_terms import TopicPartition
from protocol.net.connection import Reply

log = logging.getLogger(__name__)


def log_samples(
    client: Client,
    config: ConsumerConfig,
    offsets: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    partition_max_bytes: int,
    partitions_per_request: int,
    most_bytes: int = UNBOUNDED,
) -> Iterator[tuple[TopicPartition, Fetched]]:
    """The record batches at `offsets`, about `partition_max_bytes` of each partition, in the order they come.

    Only leaders are asked, those of `offsets` that stand first before the others. No more requests are sent once
    `most_bytes` of records have come. Raises nothing of what a broker may answer: whatever could not be learnt before
    the deadline is left out.
    """
    # With a rack, a leader may name a replica to ask instead, and send no records.
    config = replace(config, max_partition_fetch_bytes=partition_max_bytes, client_rack="")
    waiting = _by_leader(client, config, offsets, deadline)
    consumers = {broker: BrokerConsumer(broker, config, sessions=False) for broker in waiting}
    came_bytes = 0
    while waiting and came_bytes < most_bytes and not deadline.passed:
        replies: dict[Broker, tuple[Reply, list[PartitionConsumer]]] = {}
        for broker, queue in waiting.items():
            asked = [queue.popleft() for _ in range(min(partitions_per_request, len(queue)))]
            max_bytes = partition_max_bytes * len(asked)
            try:
                reply = send_fetch(client, consumers[broker], asked, deadline, max_bytes=max_bytes, max_wait_ms=0)
            except KafkaError as error:
                log.debug("%s was not asked for a look at %d log(s): %s", broker, len(asked), error)
            else:
                replies[broker] = reply, asked
        for broker, (reply, asked) in replies.items():
            try:
                result = consumers[broker].handle_response(
                    reply.result(deadline.at_most_ms(client.config.request_timeout_ms))
                )
            except KafkaError as error:
                log.debug("%s has not let us look at %d log(s): %s", broker, len(asked), error)
                continue
            _note_failures(client, result)
            for partition, fetched in result.fetched:
                came_bytes += len(fetched.records.buffer)
                yield (partition.topic, partition.partition), fetched
            waiting[broker].extend(_to_ask_again(asked, result))
        waiting = {broker: queue for broker, queue in waiting.items() if queue}


def _by_leader(
    client: Client, config: ConsumerConfig, offsets: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[Broker, deque[PartitionConsumer]]:
    partitions = [PartitionConsumer(*key, offset, config) for key, offset in offsets.items()]
    failures = look_up(client, partitions, deadline)
    waiting: dict[Broker, deque[PartitionConsumer]] = {}
    for partition in partitions:
        if partition in failures:
            log.debug("%s: no leader to look at its log: %s", partition.name, failures[partition])
        elif partition.broker is not None:
            waiting.setdefault(partition.broker, deque()).append(partition)
    return waiting


def _note_failures(client: Client, result: FetchResult) -> None:
    for partition, error in result.failed:
        log.debug("%s: no look at its log: %s", partition.name, error)
        if what_to_refresh(error) is Refresh.METADATA:
            client.expire_metadata([partition.topic])


def _to_ask_again(asked: list[PartitionConsumer], result: FetchResult) -> list[PartitionConsumer]:
    """Those whose first record batch was larger than what they may bring.

    A broker sends one batch whole however large it is, but only of the first partition in a request that has any
    (KIP-74), and of the others nothing rather than a part. So each of them comes when it stands first.
    """
    if result.throttle_ms:
        # It answers nothing more for that long.
        return []
    done = {partition.name for partition, _ in (*result.fetched, *result.failed)}
    return [partition for partition in asked[1:] if partition.name not in done]
