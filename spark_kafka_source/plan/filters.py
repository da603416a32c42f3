"""Filters of a batch query that narrow what is read: on topic, partition, offset, and from which time on.

Pure. Used by `batch_reader.pushFilters`: what is narrowed exactly is Spark's no longer, all else Spark checks again.
Filters come from PySpark 4.1 and later, only with `spark.sql.python.filterPushdown.enabled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from protocol.kafka_terms import TopicPartition
from spark_kafka_source.options.times import at_or_after_ms

# By name, because the classes do not exist before PySpark 4.1.
_ONE_OF = ("EqualTo", "EqualNullSafe", "In")
# Columns that are never null in this source: IsNotNull, which Spark adds to every comparison, always holds.
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_MICROSECOND = timedelta(microseconds=1)

_Ends = dict[TopicPartition, int]


@dataclass(frozen=True)
class Bounds:
    """Which partitions or offsets are wanted: those of [at_least, below) that are in `among` (None: all of them)."""

    at_least: int = 0
    below: int = 2**63
    among: frozenset[int] | None = None

    def __and__(self, other: Bounds) -> Bounds:
        return Bounds(max(self.at_least, other.at_least), min(self.below, other.below), _both(self.among, other.among))

    def __contains__(self, number: int) -> bool:
        return self.at_least <= number < self.below and (self.among is None or number in self.among)

    def cut(self, begin: int, until: int) -> tuple[int, int]:
        """The least range with all that is wanted of [begin, until); both ends are the same when that is nothing."""
        begin, until = max(begin, self.at_least), min(until, self.below)
        if self.among is not None:
            inside = [number for number in self.among if begin <= number < until]
            begin, until = (min(inside), max(inside) + 1) if inside else (begin, begin)
        return begin, max(begin, until)


@dataclass(frozen=True)
class Wanted:
    """What the filters of a query leave. `topics` None: all; `from_time_ms` None: of any time."""

    topics: frozenset[str] | None = None
    partitions: Bounds = field(default_factory=Bounds)
    offsets: Bounds = field(default_factory=Bounds)
    from_time_ms: int | None = None

    def cut(self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> tuple[_Ends, _Ends]:
        """Of the ranges from `begins` to `ends` what topics, partitions and offsets leave."""
        cut = {
            (topic, partition): self.offsets.cut(begins[topic, partition], ends[topic, partition])
            for topic, partition in ends
            if (self.topics is None or topic in self.topics) and partition in self.partitions
        }
        return {key: begin for key, (begin, _) in cut.items()}, {key: until for key, (_, until) in cut.items()}


def narrow(wanted: Wanted, filters: Iterable[Any]) -> tuple[Wanted, list[Any]]:
    """`wanted` by all of `filters` too, and those of them that Spark still has to check itself."""
    unchecked = []
    for one in filters:
        wanted, exact = _narrow(wanted, one)
        if not exact:
            unchecked.append(one)
    return wanted, unchecked


def _narrow(wanted: Wanted, one: Any) -> tuple[Wanted, bool]:
    kind = type(one).__name__
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if kind == "IsNotNull":
        return wanted, column in _NEVER_NULL
    values = tuple(one.value) if kind == "In" else (getattr(one, "value", None),)
    if column == "timestamp":
        return replace(wanted, from_time_ms=_later(wanted.from_time_ms, _from_time_ms(kind, values))), False
    if column == "topic" and kind in _ONE_OF and all(isinstance(value, str) for value in values):
        return replace(wanted, topics=_both(wanted.topics, frozenset(values))), True
    bounds = _bounds(kind, values)
    if bounds is not None and column == "partition":
        return replace(wanted, partitions=wanted.partitions & bounds), True
    if bounds is not None and column == "offset":
        # Between several offsets that are wanted, all are read.
        return replace(wanted, offsets=wanted.offsets & bounds), len(values) == 1
    return wanted, False


def _bounds(kind: str, values: tuple[Any, ...]) -> Bounds | None:
    """What a comparison of whole numbers leaves; None when it is none."""
    if not all(type(value) is int for value in values):
        return None
    if kind in _ONE_OF:
        return Bounds(among=frozenset(values))
    if kind == "GreaterThan":
        return Bounds(at_least=values[0] + 1)
    if kind == "GreaterThanOrEqual":
        return Bounds(at_least=values[0])
    if kind == "LessThan":
        return Bounds(below=values[0])
    if kind == "LessThanOrEqual":
        return Bounds(below=values[0] + 1)
    return None


def _from_time_ms(kind: str, values: tuple[Any, ...]) -> int | None:
    """The earliest time that is wanted. Upper bounds tell nothing: later records may well have earlier times."""
    if kind not in (*_ONE_OF, "GreaterThan", "GreaterThanOrEqual") or not values:
        return None
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return None
    try:
        return at_or_after_ms(min(values) + (_MICROSECOND if kind == "GreaterThan" else timedelta(0)))
    except (ValueError, OverflowError):  # before 1970, or after the last day that there is
        return None


def _both(one: frozenset[Any] | None, other: frozenset[Any] | None) -> frozenset[Any] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)
