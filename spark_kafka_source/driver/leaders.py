"""Who leads which partition just now, from the metadata that the driver has anyway. Runs on the driver.

Only `maxInputPartitions` needs it: to put ranges of one leader together. A leader that is wrong costs a round trip,
no more, so nothing here is tried twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.errors import KafkaError
from spark_kafka_source.options.partitions import TopicPartition


def leaders(client: Client, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
    """The leaders' node ids; a partition without a leader is left out."""
    try:
        found, _ = client.leaders(partitions, deadline)
    except KafkaError:
        return {}
    return {key: broker.node_id for key, (broker, _) in found.items()}
