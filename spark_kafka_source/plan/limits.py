"""Compute the end offsets of a micro-batch from positions, log end offsets and limits; decide if a trigger waits.

The arithmetic of Spark's own Kafka connector, so that an option gives the same batches. A limit in bytes, which that
connector lacks, is converted to a limit in offsets. Used by `driver/trigger.py`, after deleted and truncated logs were
handled. Sans-IO.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.options.partitions import partition_name


def max_offsets(limit: object | None, max_offsets_per_trigger: int | None) -> int | None:
    """Return the maximum number of offsets of a batch; None: no limit.

    `limit`: the read limit that Spark passes to `latestOffset` since 4.2, or None. It overrides the option: the trigger
    `once` reads everything.
    Raises `UsageError`: the kind of limit is unknown.
    """
    # Compare names, because the classes do not exist before Spark 4.2.
    kind = type(limit).__name__
    if limit is None:
        return max_offsets_per_trigger
    if kind == "ReadAllAvailable":
        return None
    if kind == "ReadMaxRows":
        return int(limit.max_rows)  # type: ignore[attr-defined]
    raise UsageError(f"Spark passes the read limit {kind}; this source supports ReadAllAvailable and ReadMaxRows.")


def max_bytes(limit: object | None, max_bytes_per_trigger: int | None) -> int | None:
    """Return the approximate maximum number of bytes of a batch; None: no limit, as for the trigger `once`."""
    return None if type(limit).__name__ == "ReadAllAvailable" else max_bytes_per_trigger


def must_wait(
    new_offsets: int,
    limit: object | None,
    *,
    min_offsets: int | None,
    max_trigger_delay_ms: int,
    now_ms: float,
    last_batch_ms: float | None,
) -> bool:
    """Return True if a trigger reads nothing because there are fewer than `min_offsets` new offsets.

    As in Spark's connector, these triggers never wait: a query's first one, one that reads everything (`once`), and
    one `max_trigger_delay_ms` or more after the last that did not wait (at `last_batch_ms`; None: none yet).
    """
    if min_offsets is None or new_offsets >= min_offsets or type(limit).__name__ == "ReadAllAvailable":
        return False
    return last_batch_ms is not None and now_ms - last_batch_ms < max_trigger_delay_ms


def end_offsets(
    starts: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """Return the ends of a batch of about `limit` offsets, divided among partitions in proportion to their lag.

    A share below one record becomes one, so that no partition starves; other shares are rounded down. A batch may
    therefore exceed the limit by the number of partitions. No end is before its start or after the log end offset.

    `starts`: has at least the partitions of `available`.
    `available`: log end offsets.
    The result has the partitions of `available`, sorted.
    Raises `UsageError`: a partition has no start.
    """
    lags = {tp: max(0, end - _start(starts, tp)) for tp, end in available.items()}
    total = float(sum(lags.values()))
    ends = {}
    for tp, lag in sorted(lags.items()):
        share = lag
        if limit is not None and lag:
            # Same order of operations as in Spark's connector: another one rounds differently in the last place.
            exact = limit * (lag / total)
            share = min(lag, math.ceil(exact) if exact < 1 else math.floor(exact))
        ends[tp] = starts[tp] + share
    return ends


def offsets_for_bytes(
    starts: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, int],
    bytes_per_offset: Mapping[TopicPartition, float],
    max_bytes: int,
) -> int | None:
    """Return the limit with which `end_offsets` makes a batch of about `max_bytes`: at least 1; None: no limit.

    Each partition reads the same fraction of its backlog, in offsets and in bytes: half the bytes are half the offsets.
    A batch may exceed `max_bytes` by one record of each partition.

    `bytes_per_offset`: has at least the partitions with new records.
    Raises `UsageError`: a partition has no start.
    """
    lags = {tp: end - _start(starts, tp) for tp, end in available.items() if end > _start(starts, tp)}
    total_bytes = sum(lag * bytes_per_offset[tp] for tp, lag in lags.items())
    return None if total_bytes <= max_bytes else max(1, math.floor(sum(lags.values()) * (max_bytes / total_bytes)))


def _start(starts: Mapping[TopicPartition, int], tp: TopicPartition) -> int:
    if tp not in starts:
        raise UsageError(f"{partition_name(tp)} is new and has no start offset.")
    return starts[tp]
