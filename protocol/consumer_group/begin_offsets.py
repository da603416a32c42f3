"""Where partitions begin to be read: at the group's offsets, else where `auto.offset.reset` says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.listed_offset import ListedOffset
from protocol.consumer_group.config import GroupConsumerConfig
from protocol.errors import KafkaError, NoOffset
from protocol.group.offsets import CommittedOffset, fetch_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition

_NO_RECORD = -1

Listed = tuple[dict[TopicPartition, int], KafkaError | None]
"""The offsets that leaders named, and one failure of the other partitions."""


def committed_offsets(
    client: Client, config: GroupConsumerConfig, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, CommittedOffset]:
    """The group's, of those that have one. Raises `BrokerError` or `DeadlineExceeded`."""
    group = config.consumer.group_id
    return fetch_offsets(client, group, partitions, deadline) if group and partitions else {}


def reset_offsets(
    client: Client,
    config: GroupConsumerConfig,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    max_attempts: int | None = None,
) -> Listed:
    """Look up the offsets that `auto.offset.reset` names. Raises `NoOffset` if that is `none`."""
    if not partitions:
        return {}, None
    reset = config.auto_offset_reset
    if reset == "none":
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
        what = f"{names}: there is no offset to begin at, and auto.offset.reset is none; seek, or set it"
        raise NoOffset(what, settings=("auto.offset.reset",))

    def listed(time: int, of: Collection[TopicPartition]) -> Listed:
        return listed_offsets(client, config, dict.fromkeys(of, time), deadline, max_attempts=max_attempts)

    if not isinstance(reset, timedelta):
        return listed(EARLIEST if reset == "earliest" else LATEST, partitions)
    found, failure = listed(client.clock.wall_ms() - int(reset.total_seconds() * 1000), partitions)
    without = [key for key, offset in found.items() if offset == _NO_RECORD]
    ends, failure_of_ends = listed(LATEST, without)
    found = {key: offset for key, offset in found.items() if offset != _NO_RECORD}
    return {**found, **ends}, failure or failure_of_ends


def listed_offsets(
    client: Client,
    config: GroupConsumerConfig,
    times: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    max_attempts: int | None = None,
) -> Listed:
    """Look up offsets by time, as far as leaders answer in `max_attempts` and by `deadline`."""
    found: dict[TopicPartition, ListedOffset] = {}
    failure: KafkaError | None = None
    if times:
        isolation_level = config.consumer.isolation_level
        options = {"isolation_level": isolation_level, "deadline": deadline, "max_attempts": max_attempts}
        try:
            list_offsets(client, times, found=found, **options)  # type: ignore[arg-type]
        except KafkaError as error:
            failure = error
    return {key: each.offset for key, each in found.items()}, failure
