"""How far a batch reads, and whether it waits for more: from where partitions stand, the ends of their logs and limits.

Pure arithmetic, the same as Spark's own Kafka connector's, so that the same option gives the same batches; it has no
limit in bytes, which here is turned into one in offsets first.
Used by `driver/trigger.py`. The caller has dealt with deleted and truncated logs before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from protocol.errors import UsageError
from protocol.kafka_terms import TopicPartition
from spark_kafka_source.options.partitions import name


def max_offsets(limit: object | None, max_offsets_per_trigger: int | None) -> int | None:
    """How many offsets a batch may cover; None: all there are.

    `limit` is what Spark hands to `latestOffset` (4.2 and later), which knows better than the option: a query with
    the trigger `once` reads everything whatever the option says. None stands for an older Spark, which hands nothing.
    """
    # By name, because the classes do not exist before Spark 4.2.
    kind = type(limit).__name__
    if limit is None:
        return max_offsets_per_trigger
    if kind == "ReadAllAvailable":
        return None
    if kind == "ReadMaxRows":
        return int(limit.max_rows)  # type: ignore[attr-defined]
    raise UsageError(
        f"Spark asks for a batch limited by {kind}; a Kafka source knows ReadAllAvailable and ReadMaxRows."
    )


def max_bytes(limit: object | None, max_bytes_per_trigger: int | None) -> int | None:
    """How many bytes a batch may cover, about; None: all there are, as for the trigger `once`."""
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
    """Whether a trigger reads nothing yet, because there are only `new_offsets`, fewer than `min_offsets`.

    As in Spark's connector, a query's first trigger never waits, nor one `max_trigger_delay_ms` or more after the
    last that did not wait (`last_batch_ms`; None: there was none), nor one that is to read everything (`once`).
    """
    if min_offsets is None or new_offsets >= min_offsets or type(limit).__name__ == "ReadAllAvailable":
        return False
    return last_batch_ms is not None and now_ms - last_batch_ms < max_trigger_delay_ms


def end_offsets(
    starts: Mapping[TopicPartition, int], available: Mapping[TopicPartition, int], limit: int | None
) -> dict[TopicPartition, int]:
    """The ends of a batch of about `limit` offsets, shared out in proportion to how far each partition is behind.

    `starts` has at least the partitions of `available` (ends of the logs); the result has exactly those, sorted.
    A share below one record becomes one, so that no partition starves and every batch gets on; other shares are
    rounded down. So a batch may exceed the limit by at most the number of partitions. No end is before its start,
    nor after the log's end. Raises `UsageError` when a partition has no start.
    """
    lags = {tp: max(0, end - _start(starts, tp)) for tp, end in available.items()}
    total = float(sum(lags.values()))
    ends = {}
    for tp, lag in sorted(lags.items()):
        share = lag
        if limit is not None and lag:
            # In this order of operations, as doubles: another order rounds differently in the last place.
            exact = limit * (lag / total)
            share = min(lag, math.ceil(exact) if exact < 1 else math.floor(exact))
        ends[tp] = starts[tp] + share
    return ends


def offsets_of_bytes(
    starts: Mapping[TopicPartition, int],
    available: Mapping[TopicPartition, int],
    bytes_per_offset: Mapping[TopicPartition, float],
    max_bytes: int,
) -> int | None:
    """The limit with which `end_offsets` makes a batch of about `max_bytes`: at least 1; None: all there are.

    Offsets are shared out by how far partitions are behind, so each reads the same part of its backlog, in offsets as
    in bytes: half the bytes are half the offsets. As a share below one record becomes one, however large that record
    is, a batch may exceed `max_bytes` by a record of each partition. `bytes_per_offset` has at least the partitions
    that have something new. Raises `UsageError` when a partition has no start.
    """
    lags = {tp: end - _start(starts, tp) for tp, end in available.items() if end > _start(starts, tp)}
    total_bytes = sum(lag * bytes_per_offset[tp] for tp, lag in lags.items())
    return None if total_bytes <= max_bytes else max(1, math.floor(sum(lags.values()) * (max_bytes / total_bytes)))


def _start(starts: Mapping[TopicPartition, int], tp: TopicPartition) -> int:
    if tp not in starts:
        raise UsageError(f"{name(tp)} is new and nobody has said where it begins.")
    return starts[tp]
