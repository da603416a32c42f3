"""Where partitions begin to be read: at the group's offsets, else where `auto.offset.reset` says."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer_group.config import GroupConsumerConfig
from protocol.errors import NoOffset
from protocol.group.offsets import CommittedOffset, fetch_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition

_NO_RECORD = -1


def committed_offsets(
    client: Client, config: GroupConsumerConfig, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, CommittedOffset]:
    """The group's, of those that have one. Raises `BrokerError` or `DeadlineExceeded`."""
    group = config.consumer.group_id
    return fetch_offsets(client, group, partitions, deadline) if group and partitions else {}


def reset_offsets(
    client: Client, config: GroupConsumerConfig, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Where `auto.offset.reset` says. Raises `NoOffset` if that is `none`, else as `list_offsets`."""
    if not partitions:
        return {}
    reset = config.auto_offset_reset
    if reset == "none":
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
        what = f"{names}: there is no offset to begin at, and auto.offset.reset is none; seek, or set it"
        raise NoOffset(what, settings=("auto.offset.reset",))
    isolation_level = config.consumer.isolation_level

    def listed(time: int, of: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = list_offsets(client, dict.fromkeys(of, time), isolation_level=isolation_level, deadline=deadline)
        return {key: each.offset for key, each in found.items()}

    if not isinstance(reset, timedelta):
        return listed(EARLIEST if reset == "earliest" else LATEST, partitions)
    found = listed(client.clock.wall_ms() - int(reset.total_seconds() * 1000), partitions)
    without = [key for key, offset in found.items() if offset == _NO_RECORD]
    return {**found, **(listed(LATEST, without) if without else {})}
