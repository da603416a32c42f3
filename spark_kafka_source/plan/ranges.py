"""From the two offsets of a batch to what its tasks read: one range per partition, split when more tasks are wanted.

Pure and repeatable: the same (start, end) gives the same ranges, now and in a replay. Splits as Spark's own Kafka
connector does for `maxRecordsPerPartition` and `minPartitions`. Used by `stream_reader` and `batch_reader`;
`range_groups` puts ranges together to tasks, `range_reader` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from protocol.consumer.log_offsets import Range
from protocol.errors import UsageError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_TOPIC_ID, TopicPartition
from spark_kafka_source.options.partitions import name
from spark_kafka_source.plan import data_loss
from spark_kafka_source.plan.offsets import Offsets


def offset_ranges(
    start: Offsets,
    end: Offsets,
    *,
    max_records: int | None = None,
    min_partitions: int | None = None,
    fail_on_data_loss: bool = True,
    earliest: Mapping[TopicPartition, int] | None = None,
) -> list[Range]:
    """The ranges of the batch (start, end), sorted by partition and offset; partitions without new offsets have none.

    A partition begins where `start` ends, or after that where `end.joined` says (what lies between is gone). When
    `start` lacks it, or has it of another topic id, or `end` lies before that (a truncated log), it begins where
    `end.joined` says; and when that lacks it too (offsets written by Spark's own connector) at `earliest`, which the
    caller must then have asked brokers for: see `unresolved`. Raises `UsageError` if it has not, and `DataLoss` when an
    end lies before its beginning (with `fail_on_data_loss=False` that partition is skipped, with a warning).
    """
    ranges = []
    for tp, until in sorted(end.ends.items()):
        begin = _begin(start, end, tp)
        if begin is None and (begin := (earliest or {}).get(tp)) is None:
            raise UsageError(f"{name(tp)} is new and nobody has said where it begins.")
        if until < begin:
            data_loss.raise_or_warn([data_loss.ends_before_start(tp, begin, until)], fail=fail_on_data_loss)
        elif until > begin:
            goes_on = begin == start.ends.get(tp) and not _recreated(start, end, tp[0])
            from_epoch = start.epochs.get(tp, NO_LEADER_EPOCH) if goes_on else NO_LEADER_EPOCH
            until_epoch = end.epochs.get(tp, NO_LEADER_EPOCH)
            ranges.append(Range(*tp, begin, until, end.ids.get(tp[0], NO_TOPIC_ID), from_epoch, until_epoch))
    return split(ranges, max_records, min_partitions)


def unresolved(start: Offsets, end: Offsets) -> list[TopicPartition]:
    """The partitions of `end` whose beginning neither offset tells; the caller asks for their earliest offsets."""
    return [tp for tp in sorted(end.ends) if _begin(start, end, tp) is None]


def split(ranges: list[Range], max_records: int | None = None, min_partitions: int | None = None) -> list[Range]:
    """Cuts non-empty `ranges`: first those above `max_records`, then the large ones, until about `min_partitions`.

    For the second, ranges too small to be cut are set aside, so that the rest shares what is left of `min_partitions`;
    with one range of a partition all of its ranges are left as they are, as Spark's connector does.
    """
    if max_records is not None:
        ranges = [piece for r in ranges for piece in _cut(r, math.ceil(r.size / max_records))]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(r.size for r in ranges)
    small = [r for r in ranges if _pieces(r.size, total, min_partitions) == 1]
    whole = {r.topic_partition for r in small}
    cut_total = total - sum(r.size for r in small)
    cut_pieces = max(min_partitions - len(small), 1)
    return [
        piece
        for r in ranges
        for piece in ([r] if r.topic_partition in whole else _cut(r, _pieces(r.size, cut_total, cut_pieces)))
    ]


def _pieces(size: int, total: int, wanted: int) -> int:
    # Halves are rounded up, as Java's Math.round does; Python's round would go to the even neighbour.
    return max(math.floor(size / total * wanted + 0.5), 1)


def _cut(whole: Range, pieces: int) -> list[Range]:
    cut = []
    begin = whole.from_offset
    for left in range(pieces, 0, -1):
        until = begin + (whole.until_offset - begin) // left
        if until > begin:
            # Of the records before a later piece nobody knows the epoch yet.
            epoch = whole.from_epoch if begin == whole.from_offset else NO_LEADER_EPOCH
            cut.append(replace(whole, from_offset=begin, until_offset=until, from_epoch=epoch))
        begin = until
    return cut


def _begin(start: Offsets, end: Offsets, tp: TopicPartition) -> int | None:
    joined = end.joined.get(tp)
    if tp not in start.ends or _recreated(start, end, tp[0]):
        return joined
    if joined is None:
        return start.ends[tp]
    truncated = end.ends[tp] < start.ends[tp]
    return joined if truncated else max(joined, start.ends[tp])


def _recreated(start: Offsets, end: Offsets, topic: str) -> bool:
    return topic in start.ids and topic in end.ids and start.ids[topic] != end.ids[topic]
