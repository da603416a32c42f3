"""Which partitions take rows without a key, and how much waits for each of them already (KIP-794).

Pure. Called by `partition_choice` for the partitioner of a topic.
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
    """The partitions that have a leader which takes what it is sent, and how many record batches wait for each.

    None in place of these numbers: that does not matter.
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
