"""Find the partitions available for rows without a key, and their waiting batches (KIP-794). Sans-IO.

Called by `partition_choice`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.cluster.metadata import Topic
from protocol.config import ProducerConfig
from protocol.kafka_terms import TopicPartition
from protocol.producer.partition_producer import PartitionProducer


def partition_load(
    topic: Topic, busy: Mapping[TopicPartition, PartitionProducer], config: ProducerConfig, now_s: float
) -> tuple[list[int], list[int] | None]:
    """Return the available partitions of a topic, and the number of waiting batches of each.

    Available partitions have a leader that accepts batches. The numbers are None if they do not matter.
    """
    leaders = {number: each.leader for number, each in topic.partitions.items() if each.leader >= 0}
    waiting = {number: each for number in leaders if (each := busy.get((topic.name, number)))} if busy else {}
    if not waiting or not config.partitioner_adaptive_partitioning_enable:
        return list(leaders), None
    timeout_s = (config.partitioner_availability_timeout_ms or math.inf) / 1000
    stuck = {
        leaders[number] for number, each in waiting.items() if each.unsent and now_s - each.waits_since_s > timeout_s
    }
    available = [number for number in leaders if leaders[number] not in stuck] or list(leaders)
    return available, [waiting[number].unsent if number in waiting else 0 for number in available]
