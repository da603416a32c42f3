"""What a query reads: which partitions and columns, from where, and for a batch up to where; as its options say it.

Owns the values of `subscribe`, `subscribePattern`, `assign`, and of the options that say where to start and end, by
offset or by time: how they are read from text, and whether they fit together. Every function raises `ValueError` that
says what is wrong. Pure: what exists in the cluster is for the readers to compare. Used by `table`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_kafka_source.options.java_regex import compile_java
from spark_kafka_source.options.partitions import (
    MAX_PARTITION,
    TopicPartition,
    by_partition,
    legal_topic,
    name,
    whole_number,
)
from spark_kafka_source.options.times import MAX_TIME_MS, timestamp_ms

LATEST, EARLIEST = -1, -2

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"

# Topic -> partition -> a number, sorted.
ByPartition = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class AtTime:
    """At the first record that is as new as a time (milliseconds since 1970): one for all partitions, or one each.

    `option` is the one that said so, for messages.
    """

    times_ms: int | ByPartition
    option: str


# A place in every partition: a word, a time, or offsets, where -1 is LATEST and -2 EARLIEST.
Place = Literal["earliest", "latest", "group"] | ByPartition | AtTime
Assignment = Mapping[str, tuple[int, ...]]


# -- from text ------------------------------------------------------------------------------------


def subscribe(text: str) -> tuple[str, ...]:
    """`orders, payments` -> topics, each once, in the order given."""
    topics = tuple(dict.fromkeys(legal_topic(part.strip()) for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("names no topic")
    return topics


def subscribe_pattern(text: str) -> re.Pattern[str]:
    """Java's syntax -> a pattern to `search` names for: as in Spark's connector, it may match a part of the name."""
    if not text:
        raise ValueError("the pattern is empty")
    return compile_java(text)


def assign(text: str) -> Assignment:
    """`{"orders": [0, 1]}` -> topic -> partitions, sorted."""
    rows = _json_object(text)
    for topic, partitions in rows.items():
        legal_topic(topic)
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"{topic} has no list of partitions")
        for place, partition in enumerate(partitions):
            try:
                whole_number(partition, maximum=MAX_PARTITION)
            except ValueError as error:
                raise ValueError(f"a partition of {topic} {error}") from error
            if partition in partitions[:place]:
                raise ValueError(f"{topic}-{partition} is there twice")
    return {topic: tuple(sorted(rows[topic])) for topic in sorted(rows)}


def columns(text: str) -> tuple[str, ...]:
    """`value, offset` -> names of columns as the source spells them, in the order given."""
    known = {column.lower(): column for column in (*COLUMNS, HEADERS)}
    names = [part.strip() for part in text.split(",")]
    for place, column in enumerate(names):
        if column.lower() not in known:
            raise ValueError(f"{column!r} is no column")
        if column.lower() in [other.lower() for other in names[:place]]:
            raise ValueError(f"{column} is there twice")
    return tuple(known[column.lower()] for column in names)


def starting_offsets(text: str) -> Place:
    """`earliest`, `latest`, `group` in any case, or JSON."""
    words: dict[str, Place] = {"earliest": "earliest", "latest": "latest", "group": "group"}
    return words.get(text.lower()) or _by_partition(text)


def ending_offsets(text: str) -> Place:
    """`latest` in any case, or JSON without -2: a batch that ends at the start of the log reads nothing."""
    if text.lower() == "latest":
        return "latest"
    place = _by_partition(text)
    _refuse_offset(place, EARLIEST, "nothing can end at the earliest offset")
    return place


def offsets_by_timestamp(text: str) -> ByPartition:
    """`{"orders": {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}}` -> topic -> partition -> milliseconds."""
    return _by_partition(text, _timestamp)


def _timestamp(item: object) -> int:
    if not isinstance(item, str):
        return whole_number(item, 0, MAX_TIME_MS)
    try:
        return timestamp_ms(item)
    except ValueError as error:
        raise ValueError(f"is {item!r}: {error}") from error


def _offset(item: object) -> int:
    return whole_number(item, EARLIEST)


def _by_partition(text: str, number: Callable[[object], int] = _offset) -> ByPartition:
    rows = _json_object(text)
    empty = [topic for topic, partitions in rows.items() if partitions == {}]
    if empty:
        raise ValueError(f"{empty[0]} names no partition")
    place: dict[str, dict[int, int]] = {}
    for (topic, partition), value in by_partition(rows, number).items():
        place.setdefault(topic, {})[partition] = value
    return place


def _json_object(text: str) -> dict[str, Any]:
    rows = json.loads(text, object_pairs_hook=_no_duplicates)
    if not isinstance(rows, dict):
        raise ValueError("not a JSON object of topics")
    if not rows:
        raise ValueError("names no topic")
    return rows


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for key, value in pairs:
        if key in rows:
            raise ValueError(f"{key!r} is there twice")
        rows[key] = value
    return rows


# -- do they fit? ---------------------------------------------------------------------------------


def check_batch_start(start: Place) -> None:
    """A batch that starts at the end of the log reads nothing."""
    if start == "latest":
        raise ValueError("a batch cannot start at the latest offset")
    if not isinstance(start, (str, AtTime)):
        _refuse_offset(start, LATEST, "a batch cannot start at the latest offset")


def check_fits(
    place: Place,
    subscribe: Collection[str] | None,
    subscribe_pattern: re.Pattern[str] | None,
    assign: Assignment | None,
) -> None:
    """Offsets or times per partition must name what the query reads, and all of it as far as the options tell."""
    given = _each(place)
    if given is None:
        return
    remedy = "" if isinstance(place, AtTime) else "; -1 means latest, -2 earliest"
    if assign is not None:
        _require_same(_partitions(given), _partitions(assign), "assign", remedy)
    if subscribe is not None:
        _require_same(given, subscribe, "subscribe", remedy)
    if subscribe_pattern is not None:
        for topic in given:
            if not subscribe_pattern.search(topic):
                raise ValueError(f"{topic} does not match subscribePattern")


def check_same_partitions(start: Place, end: Place, start_option: str) -> None:
    """Start and end, when both are offsets or both are times per partition, must name the same partitions."""
    begins, ends = _each(start), _each(end)
    if begins is not None and ends is not None and isinstance(start, AtTime) == isinstance(end, AtTime):
        _require_same(_partitions(ends), _partitions(begins), start_option)


def check_order(start: Place, end: Place) -> None:
    """No end before its start, as far as that can be known without asking brokers."""
    if isinstance(start, AtTime) != isinstance(end, AtTime):
        return
    if isinstance(start, AtTime) and isinstance(end, AtTime):
        begin, until = start.times_ms, end.times_ms
        if isinstance(begin, int) and isinstance(until, int):
            if until < begin:
                raise ValueError(f"the end {until} is before the start {begin}")
            return
    begins, ends = _each(start), _each(end)
    if begins is None or ends is None:
        return
    for topic, partition in _pairs(begins):
        begin, until = begins[topic][partition], ends[topic][partition]
        if 0 <= until < begin:
            raise ValueError(f"{topic}-{partition} ends at {until}, before its start {begin}")


def _each(place: Place) -> ByPartition | None:
    """The numbers of each partition; None when all partitions have the same place."""
    numbers = place.times_ms if isinstance(place, AtTime) else place
    return None if isinstance(numbers, (str, int)) else numbers


def _pairs(rows: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    return [(topic, partition) for topic, partitions in rows.items() for partition in partitions]


def _partitions(rows: Mapping[str, Iterable[int]]) -> list[str]:
    return [name(tp) for tp in _pairs(rows)]


def _require_same(given: Collection[str], wanted: Collection[str], option: str, remedy: str = "") -> None:
    for item in wanted:
        if item not in given:
            raise ValueError(f"{item} is missing, which {option} has{remedy}")
    for item in given:
        if item not in wanted:
            raise ValueError(f"{item} is there, which {option} does not have")


def _refuse_offset(place: ByPartition, offset: int, why: str) -> None:
    for topic, partition in _pairs(place):
        if place[topic][partition] == offset:
            raise ValueError(f"{topic}-{partition} is {offset}: {why}")
