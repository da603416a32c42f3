"""Resolve start and end offsets: from `earliest`, `latest`, JSON, times or the group's offsets.

Runs on the driver, once per new query or batch read; a restarted query resumes from its checkpoint. Functions that ask
leaders raise `TopicUnknown` early: call them in `discovery.retry_unknown_topics`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType

from protocol.base.clock import Deadline
from protocol.base.listing import listed
from protocol.cluster.client import Client
from protocol.cluster.unknown_topic import SUSPECT_DELETED_S
from protocol.consumer.out_of_range import OutOfRange, check_committed
from protocol.errors import ConfigurationError
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.group.commits.committed_offsets import fetch_start_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicIds, TopicPartition
from protocol.position import Position
from spark_kafka_source.error_messages import (
    OFFSETS_DO_NOT_MATCH_ASSIGNED,
    START_OFFSET_RESET,
    TIMESTAMPS_DO_NOT_MATCH_ASSIGNED,
    with_error_class,
)
from spark_kafka_source.options.partitions import ByPartition, partition_name, partition_names
from spark_kafka_source.options.start_positions import AtTime
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.data_loss import Loss, raise_or_warn

log = logging.getLogger(__name__)

KeywordOrOffsets = str | ByPartition


def starting_offsets(
    client: Client, options: SourceOptions, partitions: TopicIds, deadline: Deadline
) -> dict[TopicPartition, Position]:
    """Return the start position of each partition, from `startingOffsets` or an option with times.

    `partitions` are those to read, with the ids of their topics. Positions of the group have the leader epochs with
    which they were committed. Logs the start of a streaming query and its reason once: as a warning if existing records
    are not read.

    Raises `ConfigurationError`: JSON does not match the partitions, an offset is not in the log, or no record is as new
    as a time. `DataLoss`: an offset of the group is no longer in the log.
    """
    spec = options.start
    started_at_latest: Collection[TopicPartition] = ()
    committed: dict[TopicPartition, Position] = {}
    if spec == "group":
        committed = group_offsets(client, options, partitions, deadline)
        offsets, missing_offsets = _offsets_of_group(client, options, committed, partitions, deadline)
        if options.consumer.auto_offset_reset == "latest":
            started_at_latest = missing_offsets
        reason = _group_start_reason(options, partitions, missing_offsets)
    elif isinstance(spec, AtTime):
        offsets, missing_offsets = _offsets_at_time(client, options, spec, partitions, deadline)
        if missing_offsets and options.starting_offsets_by_timestamp_strategy == "error":
            raise ConfigurationError(
                f"{spec.option}: no record of {partition_names(missing_offsets)} is at or after its time. Use an "
                "earlier time, or set startingOffsetsByTimestampStrategy=latest to start at the log end offset"
            )
        reason = spec.option
    else:
        offsets = _resolve(client, options, "startingOffsets", spec, partitions, deadline)
        if spec == "latest":
            started_at_latest = partitions
        default = " (the default without kafka.group.id)" if options.starting_offsets is None else ""
        reason = f"startingOffsets={spec}{default}" if isinstance(spec, str) else "startingOffsets"
    if options.streaming:
        skipped_starts = log_start_offsets(client, started_at_latest, deadline)
        _log_start_positions(offsets, reason, sum(offsets[key] - start for key, start in skipped_starts.items()))
    return {
        key: committed[key] if key in committed else Position(offset, topic_id=partitions[key])
        for key, offset in offsets.items()
    }


def _group_start_reason(
    options: SourceOptions, partitions: Collection[TopicPartition], missing_offsets: Collection[TopicPartition]
) -> str:
    group = f"the offsets of group {options.consumer.group_id}"
    if not missing_offsets:
        return group
    default = "" if options.auto_offset_reset else ", the default"
    reset = f"kafka.auto.offset.reset={options.consumer.auto_offset_reset}{default}"
    if len(missing_offsets) == len(partitions):
        return f"{reset}, since group {options.consumer.group_id} has no committed offsets"
    return f"{group}; for {partition_names(missing_offsets)}, without a committed offset, {reset}"


def _log_start_positions(offsets: Mapping[TopicPartition, int], reason: str, unread: int) -> None:
    """Log the start; `unread` is the number of existing offsets that the query does not read."""
    listing = listed([f"{partition_name(key)} at {offsets[key]}" for key in sorted(offsets)]) or "no partition"
    line = f"no batch of this query is complete yet: it starts at {reason}: {listing}"
    if unread:
        log.warning(
            "%s. The %d offsets before that are not read. To read them, set startingOffsets=earliest and use a new "
            "checkpointLocation",
            line,
            unread,
        )
    else:
        log.info("%s", line)


def ending_offsets(
    client: Client, options: SourceOptions, partitions: Collection[TopicPartition], deadline: Deadline
) -> tuple[dict[TopicPartition, int], Collection[TopicPartition]]:
    """Return the end offset (exclusive) of each partition of a batch read, from `endingOffsets` or a time.

    Also returns the partitions that end at the log end.

    Raises `ConfigurationError`: JSON does not match the partitions, or an offset is after the log end offset.
    `DataLoss`: an offset is before the log start offset, and `failOnDataLoss` is true.
    """
    spec = options.end
    if isinstance(spec, AtTime):
        return _offsets_at_time(client, options, spec, partitions, deadline)
    ends = _resolve(client, options, "endingOffsets", spec, partitions, deadline)
    requested = dict.fromkeys(ends, LATEST) if isinstance(spec, str) else _flatten(spec)
    return ends, [key for key, offset in requested.items() if offset == LATEST]


def offsets_for_times(
    client: Client, options: SourceOptions, times_ms: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the offset of each partition's first record at or after its time; partitions without one are left out."""
    listed_offsets = list_offsets(
        client,
        times_ms,
        isolation_level=options.consumer.isolation_level,
        deadline=deadline,
        unknown_topic_s=SUSPECT_DELETED_S,
    )
    return {key: first.offset for key, first in listed_offsets.items() if first.offset >= 0}


def log_end_offsets(
    client: Client,
    options: SourceOptions,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    into: dict[TopicPartition, ListedOffset] | None = None,
) -> dict[TopicPartition, ListedOffset]:
    """Return the last stable offsets with `read_committed`, otherwise the high watermarks.

    `into`: as in `list_offsets`.
    """
    return list_offsets(
        client,
        dict.fromkeys(partitions, LATEST),
        isolation_level=options.consumer.isolation_level,
        deadline=deadline,
        unknown_topic_s=SUSPECT_DELETED_S,
        into=into,
    )


def high_watermarks(
    client: Client,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    positions_read: Mapping[TopicPartition, Position] = MappingProxyType({}),
) -> dict[TopicPartition, int]:
    """Return the high watermarks. `positions_read` as in `list_offsets`."""
    latest = dict.fromkeys(partitions, LATEST)
    watermarks = list_offsets(
        client, latest, deadline=deadline, positions_read=positions_read, unknown_topic_s=SUSPECT_DELETED_S
    )
    return {key: watermark.offset for key, watermark in watermarks.items()}


def log_start_offsets(
    client: Client, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the log start offsets."""
    earliest = dict.fromkeys(partitions, EARLIEST)
    log_starts = list_offsets(client, earliest, deadline=deadline, unknown_topic_s=SUSPECT_DELETED_S)
    return {key: log_start.offset for key, log_start in log_starts.items()}


def _offsets_at_time(
    client: Client, options: SourceOptions, spec: AtTime, partitions: Collection[TopicPartition], deadline: Deadline
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return an offset per partition, and the partitions without a record that new, which have their log end offset."""
    if isinstance(spec.times_ms, int):
        times_ms = dict.fromkeys(partitions, spec.times_ms)
    else:
        times_ms = _flatten(spec.times_ms)
        _require_same_partitions(spec.option, times_ms, partitions, TIMESTAMPS_DO_NOT_MATCH_ASSIGNED)
    # Request the ends first, so that records written after that are not included.
    ends = log_end_offsets(client, options, partitions, deadline)
    first_offsets = offsets_for_times(client, options, times_ms, deadline)
    offsets = {key: min(first_offsets.get(key, ends[key].offset), ends[key].offset) for key in partitions}
    return offsets, sorted(set(partitions) - set(first_offsets))


def _resolve(
    client: Client,
    options: SourceOptions,
    option: str,
    spec: KeywordOrOffsets,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    if spec == "earliest":
        return log_start_offsets(client, partitions, deadline)
    ends = {key: end.offset for key, end in log_end_offsets(client, options, partitions, deadline).items()}
    if spec == "latest":
        return ends
    assert not isinstance(spec, str)
    requested = _flatten(spec)
    _require_same_partitions(option, requested, partitions, OFFSETS_DO_NOT_MATCH_ASSIGNED)
    starts = log_start_offsets(client, partitions, deadline)
    # A start may be after the last stable offset; an end must be readable.
    may_exceed_stable_offset = option == "startingOffsets" and options.consumer.isolation_level == "read_committed"
    watermarks = high_watermarks(client, partitions, deadline) if may_exceed_stable_offset else ends
    resolved = {
        key: {LATEST: ends[key], EARLIEST: starts[key]}.get(offset, offset) for key, offset in requested.items()
    }
    _require_in_log(option, resolved, starts, watermarks, options.fail_on_data_loss)
    return resolved


def _require_same_partitions(
    option: str, requested: Collection[TopicPartition], partitions: Collection[TopicPartition], error_class: str
) -> None:
    unknown, missing = sorted(set(requested) - set(partitions)), sorted(set(partitions) - set(requested))
    if unknown:
        problem = f"names {partition_names(unknown)}, which the query does not subscribe to or which do not exist"
        raise ConfigurationError(
            with_error_class(error_class, f"{option} {problem}; subscribed: {partition_names(sorted(partitions))}")
        )
    if missing:
        problem = f"lacks {partition_names(missing)}: as JSON it must name every partition of the subscription"
        hint = " (-2 means earliest, -1 latest)" if error_class == OFFSETS_DO_NOT_MATCH_ASSIGNED else ""
        raise ConfigurationError(with_error_class(error_class, f"{option} {problem}{hint}"))


def _require_in_log(
    option: str,
    offsets: dict[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    fail_on_data_loss: bool,
) -> None:
    for key, offset in offsets.items():
        if starts[key] <= offset <= ends[key]:
            continue
        log_range = f"[{starts[key]}, {ends[key]})"
        message = f"{option}: offset {offset} of {partition_name(key)} is out of range: the log holds {log_range}"
        # An offset before the log start offset is a data loss, which the user may have allowed.
        if offset < starts[key]:
            is_start = option == "startingOffsets"
            effect = f"{starts[key] - offset} offsets are skipped" if is_start else f"the end is offset {starts[key]}"
            loss = Loss(
                START_OFFSET_RESET,
                f"{message}. Likely cause: retention or DeleteRecords has removed it",
                key,
                "Use an offset in this range, or set failOnDataLoss=false to "
                f"{'start' if is_start else 'end'} at the log start offset",
                f"failOnDataLoss=false: {effect}",
            )
            raise_or_warn([loss], fail=fail_on_data_loss)
            offsets[key] = starts[key]
        else:
            raise ConfigurationError(f"{message}. Use an offset in this range, or -1 for the log end offset")


def group_offsets(
    client: Client,
    options: SourceOptions,
    partitions: TopicIds,
    deadline: Deadline,
    *,
    after: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, Position]:
    """Return the group's positions in these topics that are beyond `after`.

    An offset that is not in the log is replaced according to `kafka.auto.offset.reset` or `failOnDataLoss=false`; so is
    one whose leader epoch ended before it (KIP-320): the log was truncated, and may have grown again.

    Raises `DataLoss`: an offset is not in the log, and neither option allows a replacement.
    """
    group, after = options.consumer.group_id, after or {}
    assert group is not None
    fetched = fetch_start_offsets(client, group, partitions, deadline, unknown_topic_s=SUSPECT_DELETED_S)
    committed = {key: position for key, position in fetched.items() if position.offset > after.get(key, -1)}
    if not committed:
        return {}
    valid, out_of_range = check_committed(client, committed, deadline, unknown_topic_s=SUSPECT_DELETED_S)
    latest = log_end_offsets(client, options, out_of_range, deadline) if out_of_range else {}
    for key, loss in sorted(out_of_range.items()):
        offset = _replace_out_of_range(options, key, loss, latest[key].offset)
        valid[key] = Position(offset, topic_id=partitions[key])
    return valid


def _offsets_of_group(
    client: Client,
    options: SourceOptions,
    committed: Mapping[TopicPartition, Position],
    partitions: Collection[TopicPartition],
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """Return an offset per partition, and those without a committed one, which follow `kafka.auto.offset.reset`."""
    offsets = {key: position.offset for key, position in committed.items()}
    missing_offsets = [key for key in partitions if key not in offsets]
    reset = options.consumer.auto_offset_reset
    if missing_offsets and reset == "none":
        raise ConfigurationError(
            f"group {options.consumer.group_id} has no committed offset for {partition_names(missing_offsets)} and "
            "kafka.auto.offset.reset=none; set kafka.auto.offset.reset=earliest or latest, or startingOffsets"
        )
    if reset == "earliest":
        return offsets | log_start_offsets(client, missing_offsets, deadline), missing_offsets
    ends = {key: end.offset for key, end in log_end_offsets(client, options, missing_offsets, deadline).items()}
    return offsets | ends, missing_offsets


def _replace_out_of_range(options: SourceOptions, key: TopicPartition, loss: OutOfRange, latest: int) -> int:
    """Return the replacement of a group's offset outside of the log; log skipped offsets.

    Raises `DataLoss`: no option allows a replacement.
    """
    remedy = "set failOnDataLoss=false to start at the nearest offset in the log, and to continue after later losses"
    if options.start == "group":
        remedy = (
            f"set kafka.auto.offset.reset=earliest or latest to start at the beginning or end of the log. Or {remedy}"
        )
    spec = options.group_out_of_range
    replacement = {"earliest": loss.log_start, "latest": latest}.get(spec, loss.nearest)
    reset = "failOnDataLoss=false" if spec == "nearest" else f"kafka.auto.offset.reset={spec}"
    skipped = f"Starts at {replacement}: {max(0, replacement - loss.first_unread)} offsets are skipped"
    message = loss.describe(key, f"group {options.consumer.group_id}: its")
    raise_or_warn(
        [Loss(START_OFFSET_RESET, message, key, f"To continue, {remedy}", f"{reset}. {skipped}")], fail=spec == "fail"
    )
    return replacement


def _flatten(numbers: ByPartition) -> dict[TopicPartition, int]:
    return {
        (topic, partition): number
        for topic, numbers_of_topic in numbers.items()
        for partition, number in numbers_of_topic.items()
    }
