"""What a query reads: which partitions, from where, and for a batch up to where; as its options say it.

Owns the values of `subscribe`, `subscribePattern`, `assign`, `startingOffsets` and `endingOffsets`: how they are read
from text, and whether they fit together. Every function raises `ValueError` that says what is wrong. Pure: what
exists in the cluster is for the readers to compare. Used by `options`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from spark_kafka_source.java_regex import compile_java
from spark_kafka_source.offsets import MAX_PARTITION, TopicPartition, by_partition, legal_topic, name, whole_number

LATEST, EARLIEST = -1, -2

# A place in every partition: a word, or topic -> partition -> offset, sorted, where -1 is LATEST and -2 EARLIEST.
ByPartition = Mapping[str, Mapping[int, int]]
Place = Literal["earliest", "latest", "group"] | ByPartition
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


def _by_partition(text: str) -> ByPartition:
    rows = _json_object(text)
    empty = [topic for topic, partitions in rows.items() if partitions == {}]
    if empty:
        raise ValueError(f"{empty[0]} names no partition")
    place: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in by_partition(rows, lambda item: whole_number(item, EARLIEST)).items():
        place.setdefault(topic, {})[partition] = offset
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
    if not isinstance(start, str):
        _refuse_offset(start, LATEST, "a batch cannot start at the latest offset")


def check_fits(
    place: Place,
    subscribe: Collection[str] | None,
    subscribe_pattern: re.Pattern[str] | None,
    assign: Assignment | None,
) -> None:
    """Offsets per partition must name what the query reads, and all of it as far as the options tell."""
    if isinstance(place, str):
        return
    if assign is not None:
        _require_same(_partitions(place), _partitions(assign), "assign")
    if subscribe is not None:
        _require_same(place, subscribe, "subscribe")
    if subscribe_pattern is not None:
        for topic in place:
            if not subscribe_pattern.search(topic):
                raise ValueError(f"{topic} does not match subscribePattern")


def check_order(start: Place, end: Place) -> None:
    """Start and end offsets per partition must name the same partitions, no end before its start."""
    if isinstance(start, str) or isinstance(end, str):
        return
    _require_same(_partitions(end), _partitions(start), "startingOffsets")
    for topic, partition in _pairs(start):
        begin, until = start[topic][partition], end[topic][partition]
        if 0 <= until < begin:
            raise ValueError(f"{topic}-{partition} ends at {until}, before its start {begin}")


def _pairs(rows: Mapping[str, Iterable[int]]) -> list[TopicPartition]:
    return [(topic, partition) for topic, partitions in rows.items() for partition in partitions]


def _partitions(rows: Mapping[str, Iterable[int]]) -> list[str]:
    return [name(tp) for tp in _pairs(rows)]


def _require_same(given: Collection[str], wanted: Collection[str], option: str) -> None:
    for item in wanted:
        if item not in given:
            raise ValueError(f"{item} is missing, which {option} has; -1 means latest, -2 earliest")
    for item in given:
        if item not in wanted:
            raise ValueError(f"{item} is there, which {option} does not have")


def _refuse_offset(place: ByPartition, offset: int, why: str) -> None:
    for topic, partition in _pairs(place):
        if place[topic][partition] == offset:
            raise ValueError(f"{topic}-{partition} is {offset}: {why}")
