"""Where a new query begins, and where a batch read ends: from words, JSON, times or the group to one offset each.

Runs on the driver, once per query or batch read; a restarted query takes its checkpoint and never comes here.
Functions that ask leaders raise `TopicUnknown` soon: call them within `discovery.retry_unknown_topics`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from protocol.clock import Deadline
from protocol.cluster.client import Client
from protocol.cluster.unknown_topic import SUSPECT_DELETED_S
from protocol.consumer.list_offsets import list_offsets
from protocol.consumer.log_offsets import ListedOffset
from protocol.errors import ConfigurationError, DeadlineExceeded
from protocol.group.committed_offsets import fetch_offsets
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from spark_kafka_source.error_classes import (
    OFFSETS_DO_NOT_MATCH_ASSIGNED,
    START_OFFSET_RESET,
    TIMESTAMPS_DO_NOT_MATCH_ASSIGNED,
    named,
)
from spark_kafka_source.options.partitions import ByPartition, listed, name
from spark_kafka_source.options.start_positions import AtTime
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.plan.data_loss import Loss, raise_or_warn
from spark_kafka_source.remedies import in_options

log = logging.getLogger(__name__)

# By then a broker that the cluster has replaced knows it, or is gone.
_STALE_LEADER_MS = 30_000

OffsetSpec = str | ByPartition


def starting_offsets(
    client: Client, options: SourceOptions, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, int]:
    """One offset for each of `partitions`, as `startingOffsets` says, or the option about times that is given instead.

    Of a streaming query it logs once where the query starts and why: as a warning if it leaves out records.

    Raises `ConfigurationError` for JSON that does not fit the partitions, offsets that are not in the log, or a time
    that no record is as new as; `DataLoss` for a group's offsets that are not in the log any more.
    """
    where = options.start
    at_latest: Collection[TopicPartition] = ()
    if where == "group":
        offsets, without = _from_group(client, options, partitions, deadline)
        if options.consumer.auto_offset_reset == "latest":
            at_latest = without
        why = _why_group(options, partitions, without)
    elif isinstance(where, AtTime):
        offsets, without = _at_time(client, options, where, partitions, deadline)
        if without and options.starting_offsets_by_timestamp_strategy == "error":
            raise ConfigurationError(
                f"{where.option}: no record of {listed(without)} is that new. Name an earlier time, or set "
                "startingOffsetsByTimestampStrategy=latest to begin at the end there"
            )
        why = where.option
    else:
        offsets = _resolved(client, options, "startingOffsets", where, partitions, deadline)
        if where == "latest":
            at_latest = partitions
        default = " (the default without kafka.group.id)" if options.starting_offsets is None else ""
        why = f"startingOffsets={where}{default}" if isinstance(where, str) else "startingOffsets"
    if options.streaming:
        left_out = log_starts(client, at_latest, deadline)
        _log_start(offsets, why, sum(offsets[key] - start for key, start in left_out.items()))
    return offsets


def _why_group(
    options: SourceOptions, partitions: Collection[TopicPartition], without: Collection[TopicPartition]
) -> str:
    group = f"the offsets of group {options.consumer.group_id}"
    if not without:
        return group
    default = "" if options.auto_offset_reset else ", the default"
    reset = f"kafka.auto.offset.reset={options.consumer.auto_offset_reset}{default}"
    if len(without) == len(partitions):
        return f"{reset}, since group {options.consumer.group_id} has no committed offsets"
    return f"{group}; at {reset}, in {listed(without)}, of which the group has none"


def _log_start(offsets: Mapping[TopicPartition, int], why: str, unread: int) -> None:
    """`unread`: offsets in the logs that the query leaves out because it starts at their ends."""
    begins = ", ".join(f"{name(key)} at {offsets[key]}" for key in sorted(offsets)[:10]) or "no partition yet"
    more = f" and {len(offsets) - 10} more" if len(offsets) > 10 else ""
    line = f"no batch of this query is complete yet: it starts at {why}: {begins}{more}"
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
) -> dict[TopicPartition, int]:
    """One offset (exclusive) for each of `partitions`, as `endingOffsets` or a time say where a batch read ends."""
    where = options.end
    if isinstance(where, AtTime):
        return _at_time(client, options, where, partitions, deadline)[0]
    return _resolved(client, options, "endingOffsets", where, partitions, deadline)


def first_at_or_after(
    client: Client, options: SourceOptions, times_ms: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, int]:
    """The first record of each partition that is as new as its time; partitions without one are left out."""
    listed = list_offsets(
        client,
        times_ms,
        isolation_level=options.consumer.isolation_level,
        deadline=deadline,
        unknown_topic_s=SUSPECT_DELETED_S,
    )
    return {key: entry.offset for key, entry in listed.items() if entry.offset >= 0}


def log_ends(
    client: Client, options: SourceOptions, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, ListedOffset]:
    """How far each log can be read: to the last stable offset with `read_committed`, else the high watermark."""
    return list_offsets(
        client,
        dict.fromkeys(partitions, LATEST),
        isolation_level=options.consumer.isolation_level,
        deadline=deadline,
        unknown_topic_s=SUSPECT_DELETED_S,
    )


def high_watermarks(
    client: Client,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    known_epochs: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """Where each log ends, also if an open transaction holds back what is before that. `known_epochs` as in
    `list_offsets`.
    """
    latest = dict.fromkeys(partitions, LATEST)
    listed = list_offsets(
        client, latest, deadline=deadline, known_epochs=known_epochs, unknown_topic_s=SUSPECT_DELETED_S
    )
    return {key: entry.offset for key, entry in listed.items()}


def log_starts(client: Client, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
    """The first offset of each log that is still there."""
    earliest = dict.fromkeys(partitions, EARLIEST)
    listed = list_offsets(client, earliest, deadline=deadline, unknown_topic_s=SUSPECT_DELETED_S)
    return {key: entry.offset for key, entry in listed.items()}


def _at_time(
    client: Client, options: SourceOptions, where: AtTime, partitions: Collection[TopicPartition], deadline: Deadline
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """One offset each, and the partitions without a record that new: there it is the end of the log."""
    if isinstance(where.times_ms, int):
        times_ms = dict.fromkeys(partitions, where.times_ms)
    else:
        times_ms = _flat(where.times_ms)
        _require_same_partitions(where.option, times_ms, partitions, TIMESTAMPS_DO_NOT_MATCH_ASSIGNED)
    # The ends first: what is written in between counts as not there yet.
    ends = log_ends(client, options, partitions, deadline)
    found = first_at_or_after(client, options, times_ms, deadline)
    offsets = {key: min(found.get(key, ends[key].offset), ends[key].offset) for key in partitions}
    return offsets, sorted(set(partitions) - set(found))


def _resolved(
    client: Client,
    options: SourceOptions,
    option: str,
    where: OffsetSpec,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    if where == "earliest":
        return log_starts(client, partitions, deadline)
    ends = {key: entry.offset for key, entry in log_ends(client, options, partitions, deadline).items()}
    if where == "latest":
        return ends
    assert not isinstance(where, str)
    wanted = _flat(where)
    _require_same_partitions(option, wanted, partitions, OFFSETS_DO_NOT_MATCH_ASSIGNED)
    starts = log_starts(client, partitions, deadline)
    # What a query begins with may have to wait for a transaction, what it ends with must be there to read.
    waits = option == "startingOffsets" and options.consumer.isolation_level == "read_committed"
    last = high_watermarks(client, partitions, deadline) if waits else ends
    resolved = {key: {LATEST: ends[key], EARLIEST: starts[key]}.get(offset, offset) for key, offset in wanted.items()}
    _require_in_log(option, resolved, starts, last, options.fail_on_data_loss)
    return resolved


def _require_same_partitions(
    option: str, wanted: Collection[TopicPartition], partitions: Collection[TopicPartition], error_class: str
) -> None:
    unknown, missing = sorted(set(wanted) - set(partitions)), sorted(set(partitions) - set(wanted))
    if unknown:
        what = f"names {listed(unknown)}, which the query does not subscribe to or which do not exist"
        raise ConfigurationError(named(error_class, f"{option} {what}; subscribed: {listed(sorted(partitions))}"))
    if missing:
        what = f"lacks {listed(missing)}: as JSON it must name every partition of the subscription"
        also = " (-2 means earliest, -1 latest)" if error_class == OFFSETS_DO_NOT_MATCH_ASSIGNED else ""
        raise ConfigurationError(named(error_class, f"{option} {what}{also}"))


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
        message = f"{option}: offset {offset} of {name(key)} is out of range: the log holds {log_range}"
        # A start before the log's start is data that is gone, which the user may have allowed.
        if offset < starts[key]:
            loss = Loss(
                START_OFFSET_RESET,
                f"{message}. Likely cause: retention or DeleteRecords has removed it",
                key,
                "Name an offset that is there, or set failOnDataLoss=false to begin where the log begins",
                f"failOnDataLoss=false: {starts[key] - offset} offsets are skipped",
            )
            raise_or_warn([loss], fail=fail_on_data_loss)
            offsets[key] = starts[key]
        else:
            raise ConfigurationError(f"{message}. Name an offset that is there, or -1 for the log's end")


def group_offsets(
    client: Client,
    options: SourceOptions,
    partitions: Collection[TopicPartition],
    deadline: Deadline,
    *,
    after: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, int]:
    """What the group has committed, of partitions for which it has, and of those of `after` only if it is further.

    Where that is not in the log: what `kafka.auto.offset.reset` or `failOnDataLoss=false` say, else raises `DataLoss`.
    """
    group, after = options.consumer.group_id, after or {}
    assert group is not None
    found = fetch_offsets(client, group, partitions, deadline)
    committed = {key: entry for key, entry in found.items() if entry.offset > after.get(key, -1)}
    if not committed:
        return {}
    starts = log_starts(client, committed, deadline)
    epochs = {key: entry.leader_epoch for key, entry in committed.items()}
    last = _newest_high_watermarks(client, committed, epochs, deadline)
    offsets = {key: entry.offset for key, entry in committed.items()}
    out = [key for key, offset in offsets.items() if not starts[key] <= offset <= last[key]]
    latest = {key: entry.offset for key, entry in log_ends(client, options, out, deadline).items()} if out else {}
    for key in out:
        offsets[key] = _reset(options, key, offsets[key], (starts[key], last[key]), latest[key])
    return offsets


def _from_group(
    client: Client, options: SourceOptions, partitions: Collection[TopicPartition], deadline: Deadline
) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
    """One offset each, and the partitions without a committed offset, which start at `kafka.auto.offset.reset`."""
    offsets = group_offsets(client, options, partitions, deadline)
    without = [key for key in partitions if key not in offsets]
    reset = options.consumer.auto_offset_reset
    if without and reset == "none":
        raise ConfigurationError(
            f"group {options.consumer.group_id} has no committed offset for {listed(without)} and "
            "kafka.auto.offset.reset=none; set kafka.auto.offset.reset=earliest or latest, or startingOffsets"
        )
    if reset == "earliest":
        return offsets | log_starts(client, without, deadline), without
    ends = {key: entry.offset for key, entry in log_ends(client, options, without, deadline).items()}
    return offsets | ends, without


def _reset(options: SourceOptions, key: TopicPartition, offset: int, there: tuple[int, int], latest: int) -> int:
    """Where to begin when the group's `offset` is not in the log, which holds [there[0], there[1]).

    Raises `DataLoss` unless the query may begin somewhere else. What it skips is said.
    """
    start, end = there
    cause = (
        "retention or DeleteRecords has removed what comes next"
        if offset < start
        else "the log was truncated (unclean leader election), or the topic was deleted and created again"
    )
    what = (
        f"group {options.consumer.group_id}: its offset {offset} of {key[0]}-{key[1]} is out of range: "
        f"the log holds [{start}, {end}). Likely cause: {cause}"
    )
    remedy = "To go on, set failOnDataLoss=false, to begin at the nearest offset that is there"
    if options.start == "group":
        remedy += ". Or set kafka.auto.offset.reset=earliest or latest, to begin at one end of the log all the same"
    where = options.group_out_of_range
    begin = {"earliest": start, "latest": latest}.get(where, start if offset < start else end)
    chosen = "failOnDataLoss=false" if where == "nearest" else f"kafka.auto.offset.reset={where}"
    skipped = f"Begins at {begin}: {begin - min(offset, start)} offsets are skipped"
    raise_or_warn([Loss(START_OFFSET_RESET, what, key, remedy, f"{chosen}. {skipped}")], fail=where == "fail")
    return begin


def _newest_high_watermarks(
    client: Client,
    partitions: Collection[TopicPartition],
    known_epochs: Mapping[TopicPartition, int],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """What a group has read may lie behind the beginning of an open transaction, and is there all the same.

    A leader that was replaced and does not know it may end before what the group has read: it is not believed. Not for
    ever: the group's offsets may also be those of an earlier topic under the same name.
    """
    try:
        patience = deadline.at_most_ms(_STALE_LEADER_MS)
        return high_watermarks(client, partitions, patience, known_epochs=known_epochs)
    except DeadlineExceeded as error:
        log.info("%s; what the leaders say is taken as it is", in_options(error))
        return high_watermarks(client, partitions, deadline)


def _flat(numbers: ByPartition) -> dict[TopicPartition, int]:
    return {(topic, partition): number for topic, each in numbers.items() for partition, number in each.items()}
