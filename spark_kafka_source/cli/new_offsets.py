"""The partitions and new offsets of `pykafka groups reset`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import click

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.fetch.list_offsets import list_offsets
from protocol.group.commits.committed_offsets import CommittedOffset, as_committed_offsets, fetch_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from protocol.settings.property_kinds import MAX_INT64
from spark_kafka_source.lag.of_group import partitions_of
from spark_kafka_source.options.partitions import partition_name

log = logging.getLogger(__name__)

# Targets whose offsets are those of a group or a file.
_COPIED = ("to_group", "from_file", "to_current")


class Specification(NamedTuple):
    """A target: `way` is the option's argument name.

    `value` is an offset, a number of offsets, milliseconds, the name of a group, or offsets by partition.
    """

    way: str
    value: Any


def specification(ways: Mapping[str, Any]) -> Specification:
    """Return the one option that was given; raise `click.UsageError` for none or several."""
    chosen = [Specification(way, value) for way, value in ways.items() if value is not None]
    if len(chosen) != 1:
        options = ", ".join(f"--{way.replace('_', '-')}" for way in sorted(ways))
        raise click.UsageError(f"Give exactly one of {options}.")
    return chosen[0]


def source_offsets(
    client: Client,
    specification: Specification,
    committed: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
) -> Mapping[TopicPartition, CommittedOffset]:
    """Return the offsets of a target's group or file, else `committed`; they also define "all topics".

    Raises `click.ClickException` if the other group has no offsets.
    """
    if specification.way == "from_file":
        return as_committed_offsets(specification.value)
    if specification.way != "to_group":
        return committed
    offsets = fetch_offsets(client, specification.value, None, deadline, require_stable=False)
    if not offsets:
        raise click.ClickException(f"Group '{specification.value}' has no committed offsets.")
    return offsets


def partitions_to_reset(
    client: Client,
    topics: Iterable[tuple[str, tuple[int, ...] | None]],
    committed: Collection[TopicPartition],
    deadline: Deadline,
) -> list[TopicPartition]:
    """Return the partitions to reset.

    `topics`: topics and their partitions; None means all partitions of the topic. Without topics, the existing
    partitions with a committed offset are returned.
    Raises `BrokerError`: a topic is unknown. `click.ClickException`: a partition is unknown, or there are no
    partitions.
    """
    named = list(topics)
    if not named:
        existing = set(partitions_of(client, sorted({topic for topic, _ in committed}), deadline, must_exist=False))
        if not existing & set(committed):
            raise click.ClickException("The group has no committed offsets; name its topics with --topic.")
        return sorted(existing & set(committed))
    return named_partitions(client, named, deadline)


def named_partitions(
    client: Client, named: Collection[tuple[str, tuple[int, ...] | None]], deadline: Deadline
) -> list[TopicPartition]:
    """Return partitions by topic; None means all of a topic. Raises as `partitions_to_reset`."""
    keys = set()
    existing = set(partitions_of(client, sorted({topic for topic, _ in named}), deadline, must_exist=True))
    for topic, numbers in named:
        selected = (
            {key for key in existing if key[0] == topic} if numbers is None else {(topic, number) for number in numbers}
        )
        if selected - existing:
            raise click.ClickException(f"There is no partition {partition_name(min(selected - existing))}.")
        keys |= selected
    return sorted(keys)


def new_offsets(
    client: Client,
    specification: Specification,
    keys: Collection[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
) -> dict[TopicPartition, CommittedOffset]:
    """Return the new offsets, as Kafka's own tool determines them; copied ones with their leader epochs and metadata.

    An offset outside the log becomes the nearer end of the log, with a warning. Raises `click.ClickException` for a
    shift without a committed offset.
    """
    first, end = (list_offsets(client, dict.fromkeys(keys, time), deadline=deadline) for time in (EARLIEST, LATEST))
    offsets = {}
    for key, offset in _wanted_offsets(client, specification, keys, committed, deadline).items():
        nearest = min(max(offset, first[key].offset), end[key].offset)
        is_copied = specification.way in _COPIED and nearest == offset
        offsets[key] = committed[key] if is_copied else CommittedOffset(nearest)
        if nearest != offset and specification.way in (*_COPIED, "shift_by", "to_offset"):
            log.warning("%s: offset %d is not in the log, %d is the nearest", partition_name(key), offset, nearest)
    return offsets


def _wanted_offsets(
    client: Client,
    specification: Specification,
    keys: Collection[TopicPartition],
    committed: Mapping[TopicPartition, CommittedOffset],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """Return the new offsets before they are limited to the log."""
    match specification:
        case ("to_earliest", _):
            return dict.fromkeys(keys, 0)
        case ("to_latest", _):
            return dict.fromkeys(keys, MAX_INT64)
        case ("to_offset", offset):
            return dict.fromkeys(keys, offset)
        case (way, _) if way in _COPIED:
            if missing := sorted(set(keys) - set(committed)):
                raise click.ClickException(f"There is no offset for partition {partition_name(missing[0])}.")
            return {key: committed[key].offset for key in keys}
        case ("shift_by", count):
            for key in keys:
                if key not in committed:
                    raise click.ClickException(
                        f"Cannot shift offset for partition {partition_name(key)} since there is no current committed "
                        "offset."
                    )
            return {key: committed[key].offset + count for key in keys}
        case (way, ms):
            # Brokers read negative times as words such as "latest".
            time_ms = ms if way == "to_datetime" else max(0, client.clock.wall_ms() - ms)
            listed = list_offsets(client, dict.fromkeys(keys, time_ms), deadline=deadline)
            # No record is that new: move to the log end.
            return {key: offset.offset if offset.offset >= 0 else MAX_INT64 for key, offset in listed.items()}
