"""Positions in a log, as `pykafka consume -o` takes them: `earliest`, `-100`, `@2026-01-31T06:00Z`, `FROM:TO`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from protocol.base.clock import Deadline
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.fetch.list_offsets import list_offsets
from protocol.fetch.log_offsets import ListedOffset
from protocol.kafka_terms import EARLIEST, LATEST, TopicPartition
from spark_kafka_source.cli.values import Parsed, parse_duration
from spark_kafka_source.options.scalars import timestamp_ms

EARLIEST_NAME, LATEST_NAME = "earliest", "latest"


@dataclass(frozen=True)
class Position:
    """One end of a range of offsets.

    `kind`: `earliest`, `latest`, `offset`, `after_earliest`, `before_latest`, `time` (milliseconds since 1970) or `age`
    (milliseconds before now).
    `value`: the offset, the number of offsets or the milliseconds; 0 for the first two kinds.
    """

    kind: str
    value: int = 0


FROM_EARLIEST, FROM_LATEST = Position(EARLIEST_NAME), Position(LATEST_NAME)


@dataclass(frozen=True)
class Span:
    """A range of positions; without an end if `end` is None."""

    start: Position
    end: Position | None = None


def parse_span(text: str) -> Span:
    """Parse a position, or FROM:TO; a time may contain colons itself. Raises `ValueError`."""
    if (single := _position(text)) is not None:
        return Span(single)
    for colon in re.finditer(":", text):
        first, last = text[: colon.start()], text[colon.end() :]
        start = _position(first) if first else FROM_EARLIEST
        end = _position(last) if last else None
        if start is not None and (end is not None or not last):
            return Span(start, end)
    raise ValueError(
        "a position is earliest, latest, an offset, +N, -N, @TIME such as @2026-01-31T06:00Z, @-1h, or FROM:TO. A time "
        "ends with Z or an offset such as +02:00"
    )


SPAN = Parsed("position", parse_span)


def _position(text: str) -> Position | None:
    if text in (EARLIEST_NAME, LATEST_NAME):
        return Position(text)
    if number := re.fullmatch(r"([+-]?)([0-9]{1,18})", text):
        kinds = {"": "offset", "+": "after_earliest", "-": "before_latest"}
        return Position(kinds[number[1]], int(number[2]))
    if not text.startswith("@"):
        return None
    try:
        if text.startswith("@-"):
            return Position("age", parse_duration(text[2:]))
        return Position("time", timestamp_ms(text[1:]))
    except ValueError:
        return None


@dataclass(frozen=True)
class LogEnds:
    """Log start offset and log end offset of each partition, as listed once for all positions of a command."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, ListedOffset]


def list_ends(client: Client, consumer: ConsumerConfig, keys: Iterable[TopicPartition], deadline: Deadline) -> LogEnds:
    """List the ends of logs; the isolation level decides what a log end is."""
    keys = list(keys)
    starts, ends = (
        list_offsets(client, dict.fromkeys(keys, time), isolation_level=consumer.isolation_level, deadline=deadline)
        for time in (EARLIEST, LATEST)
    )
    return LogEnds({key: start.offset for key, start in starts.items()}, ends)


def resolve(
    client: Client, consumer: ConsumerConfig, position: Position, logs: LogEnds, deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the offset of a position in each partition, within the log."""
    if position.kind in ("time", "age"):
        time_ms = position.value if position.kind == "time" else max(0, client.clock.wall_ms() - position.value)
        isolation = consumer.isolation_level
        offsets = list_offsets(client, dict.fromkeys(logs.ends, time_ms), isolation_level=isolation, deadline=deadline)
        # Without a record that new: the log end.
        resolved = {
            key: offset.offset if offset.offset >= 0 else logs.ends[key].offset for key, offset in offsets.items()
        }
    else:
        of_kind = _OFFSETS[position.kind]
        resolved = {key: of_kind(position.value, logs.starts[key], end.offset) for key, end in logs.ends.items()}
    return {key: min(max(offset, logs.starts[key]), logs.ends[key].offset) for key, offset in resolved.items()}


_OFFSETS: Mapping[str, Callable[[int, int, int], int]] = {
    "earliest": lambda _, start, end: start,
    "latest": lambda _, start, end: end,
    "offset": lambda value, start, end: value,
    "after_earliest": lambda value, start, end: start + value,
    "before_latest": lambda value, start, end: end - value,
}
