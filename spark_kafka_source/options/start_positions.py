"""Start and end positions in options: words, offsets or times, and their checks against other options.

Every function raises `ValueError` with the reason. Pure: readers compare the positions with the cluster. Used by
`table` and `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from protocol.base.spelling import closest_match
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from spark_kafka_source.options.partitions import ByPartition, by_partition, json_object, partition_name, whole_number
from spark_kafka_source.options.scalars import MAX_TIME_MS, number_ms, timestamp_ms
from spark_kafka_source.options.selection import Assignment


@dataclass(frozen=True)
class AtTime:
    """The first record at or after a time (milliseconds since 1970): one time for all partitions, or one for each.

    `option` is the name of the option that set it, for messages.
    """

    times_ms: int | ByPartition
    option: str


def at_time(side: str, time_ms: int | None, times_ms: ByPartition | None) -> AtTime | None:
    """Combine the two time options of `side` ("starting", "ending"); one time for all partitions takes precedence."""
    if time_ms is not None:
        return AtTime(time_ms, f"{side}Timestamp")
    return None if times_ms is None else AtTime(times_ms, f"{side}OffsetsByTimestamp")


# A position in every partition: a word, a time, or offsets, where -1 is LATEST and -2 EARLIEST.
OffsetSpec = Literal["earliest", "latest", "group"] | ByPartition | AtTime


# -- from text ------------------------------------------------------------------------------------


def starting_offsets(text: str) -> OffsetSpec:
    """Parse `earliest`, `latest` or `group` in any case, or JSON."""
    keywords: dict[str, OffsetSpec] = {"earliest": "earliest", "latest": "latest", "group": "group"}
    return keywords.get(text.lower()) or _offsets(text, keywords)


def ending_offsets(text: str) -> OffsetSpec:
    """Parse `latest` in any case, or JSON without -2: a batch that ends at the log start offset reads nothing."""
    if text.lower() == "latest":
        return "latest"
    if text.lower() == "earliest":
        raise ValueError("nothing can end at the earliest offset")
    spec = _offsets(text, ["latest"])
    _refuse_offset(spec, EARLIEST, "nothing can end at the earliest offset")
    return spec


def offsets_by_timestamp(text: str) -> ByPartition:
    """Parse `{"orders": {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}}` into milliseconds by partition."""
    return _by_partition(json_object(text), _timestamp)


def _timestamp(value: object) -> int:
    number = None if isinstance(value, str) else whole_number(value, 0, MAX_TIME_MS)
    try:
        return timestamp_ms(str(value)) if number is None else number_ms(number)
    except ValueError as error:
        raise ValueError(f"is {value!r}: {error}") from error


def _offset(value: object) -> int:
    return whole_number(value, EARLIEST)


def _offsets(text: str, keywords: Iterable[str]) -> ByPartition:
    """Parse JSON, which may be a copy of this source's offsets in a checkpoint or in a query's progress."""
    if not text.startswith("{"):
        like = closest_match(text, keywords)
        raise ValueError(f"did you mean {like}?" if like else "")
    # A topic name has no @. The values of these keys are for replays only.
    return _by_partition({key: value for key, value in json_object(text).items() if not key.startswith("@")}, _offset)


def _by_partition(document: Mapping[str, object], number: Callable[[object], int]) -> ByPartition:
    if not document:
        raise ValueError("names no topic")
    empty = [topic for topic, partitions in document.items() if partitions == {}]
    if empty:
        raise ValueError(f"{empty[0]} names no partition")
    spec: dict[str, dict[int, int]] = {}
    for (topic, partition), value in by_partition(document, number).items():
        spec.setdefault(topic, {})[partition] = value
    return spec


# -- checks ---------------------------------------------------------------------------------------


def check_batch_start(start: OffsetSpec) -> None:
    """Refuse a batch that starts at the log end offset, since it reads nothing."""
    if start == "latest":
        raise ValueError("a batch cannot start at the latest offset")
    if not isinstance(start, (str, AtTime)):
        _refuse_offset(start, LATEST, "a batch cannot start at the latest offset")


def check_fits(
    spec: OffsetSpec,
    subscribe: Collection[str] | None,
    subscribe_pattern: re.Pattern[str] | None,
    assign: Assignment | None,
) -> None:
    """Require that offsets or times by partition name exactly what the query reads, as far as the options tell."""
    numbers = _numbers_by_partition(spec)
    if numbers is None:
        return
    remedy = "" if isinstance(spec, AtTime) else "; -1 means latest, -2 earliest"
    if assign is not None:
        _require_same(_partitions(numbers), _partitions(assign), "assign", remedy)
    if subscribe is not None:
        _require_same(numbers, subscribe, "subscribe", remedy)
    if subscribe_pattern is not None:
        for topic in numbers:
            if not subscribe_pattern.search(topic):
                raise ValueError(f"{topic} does not match subscribePattern")


def check_same_partitions(start: OffsetSpec, end: OffsetSpec, start_option: str) -> None:
    """Require that start and end, if both are offsets or both are times, name the same partitions."""
    starts, ends = _numbers_by_partition(start), _numbers_by_partition(end)
    if starts is not None and ends is not None and isinstance(start, AtTime) == isinstance(end, AtTime):
        _require_same(_partitions(ends), _partitions(starts), start_option)


def check_order(start: OffsetSpec, end: OffsetSpec) -> None:
    """Refuse an end before its start, as far as that is known without a request to brokers."""
    if isinstance(start, AtTime) != isinstance(end, AtTime):
        return
    if isinstance(start, AtTime) and isinstance(end, AtTime):
        first, last = start.times_ms, end.times_ms
        if isinstance(first, int) and isinstance(last, int) and last < first:
            raise ValueError(f"the end {last} is before the start {first}")
    starts, ends = _numbers_by_partition(start), _numbers_by_partition(end)
    if starts is None or ends is None:
        return
    for topic, partition in _pairs(starts):
        first, last = starts[topic][partition], ends[topic][partition]
        if 0 <= last < first:
            raise ValueError(f"{topic}-{partition} ends at {last}, before its start {first}")


def _numbers_by_partition(spec: OffsetSpec) -> ByPartition | None:
    """Return the numbers by partition; None if all partitions have the same position."""
    numbers = spec.times_ms if isinstance(spec, AtTime) else spec
    return None if isinstance(numbers, (str, int)) else numbers


def _pairs(by_topic: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    return [(topic, partition) for topic, partitions in by_topic.items() for partition in partitions]


def _partitions(by_topic: Mapping[str, Iterable[int]]) -> dict[str, None]:
    """Return the names of partitions: an ordered set."""
    return dict.fromkeys(map(partition_name, _pairs(by_topic)))


def _require_same(named: Collection[str], expected: Collection[str], option: str, remedy: str = "") -> None:
    for name in expected:
        if name not in named:
            raise ValueError(f"{name} is missing, although {option} names it{remedy}")
    for name in named:
        if name not in expected:
            raise ValueError(f"{name} is not in {option}")


def _refuse_offset(spec: ByPartition, offset: int, why: str) -> None:
    for topic, partition in _pairs(spec):
        if spec[topic][partition] == offset:
            raise ValueError(f"{topic}-{partition} is {offset}: {why}")
