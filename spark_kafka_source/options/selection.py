"""Options that select topics, partitions and columns. Pure; the parsers raise `ValueError`. Used by `table`."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping

from protocol.base.java_regex import compile_java
from protocol.errors import ConfigurationError
from spark_kafka_source.options.partitions import MAX_PARTITION, checked_topic, json_object, whole_number

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
# With `onDecodeError=null`: the bytes of a value that does not decode, and why.
RAW, ERROR = "_raw", "_error"
# With several types of values: the type of each.
VALUE_TYPE = "valueType"
_PATH = re.compile(r"[^\s{}\"]+\.(avsc|json|proto|desc|pb)")

# Topic -> partitions, sorted.
Assignment = Mapping[str, tuple[int, ...]]


def subscribe(text: str) -> tuple[str, ...]:
    """Parse `orders, payments` into topics without repetition, in the given order."""
    topics = tuple(dict.fromkeys(checked_topic(part.strip()) for part in text.split(",") if part.strip()))
    if not topics:
        raise ValueError("names no topic")
    return topics


def subscribe_pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern for `search`: as in Spark's connector, it may match a part of the name."""
    if not text:
        raise ValueError("the pattern is empty")
    return compile_java(text)


def assign(text: str) -> Assignment:
    """Parse `{"orders": [0, 1]}` into partitions by topic, sorted."""
    rows = json_object(text)
    for topic, partitions in rows.items():
        checked_topic(topic)
        if not isinstance(partitions, list) or not partitions:
            raise ValueError(f"{topic} has no list of partitions")
        numbers: set[int] = set()
        for partition in partitions:
            try:
                whole_number(partition, maximum=MAX_PARTITION)
            except ValueError as error:
                raise ValueError(f"a partition of {topic} {error}") from error
            if partition in numbers:
                raise ValueError(f"{topic}-{partition} is there twice")
            numbers.add(partition)
    return {topic: tuple(sorted(rows[topic])) for topic in sorted(rows)}


def columns(text: str) -> tuple[str, ...]:
    """Parse `value, offset` into column names in the source's spelling, in the given order."""
    columns_by_name = {column.lower(): column for column in (*COLUMNS, HEADERS, RAW, ERROR, VALUE_TYPE)}
    names = [part.strip() for part in text.split(",")]
    for index, column in enumerate(names):
        if column.lower() not in columns_by_name:
            raise ValueError(f"{column!r} is no column")
        if column.lower() in [earlier.lower() for earlier in names[:index]]:
            raise ValueError(f"{column} is there twice")
    return tuple(columns_by_name[column.lower()] for column in names)


def fields(text: str) -> tuple[str, ...]:
    """Parse `id, country` into names without repetition."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("a name is empty, or there twice")
    return names


def schema_text(text: str) -> str:
    """Return `text`, or for `file:PATH` the file's text on the driver; for a binary file the base64 of its bytes."""
    if not text.startswith("file:"):
        if _PATH.fullmatch(text):
            raise ValueError(f"a file is given as file:{text}")
        return text
    try:
        with open(text.removeprefix("file:"), "rb") as file:
            raw = file.read()
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error}") from None
    # A compiled descriptor has control characters: the tags of its fields.
    if not any(byte < ord(" ") and byte not in b"\t\n\r\f\v" for byte in raw):
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    return base64.b64encode(raw).decode()


def row_columns(chosen: tuple[str, ...] | None, include_headers: bool) -> tuple[str, ...]:
    """Return the columns of the rows in order; `chosen` None means all. Raises `ConfigurationError`."""
    if chosen is None:
        return (*COLUMNS, HEADERS) if include_headers else COLUMNS
    if include_headers and HEADERS not in chosen:
        raise ConfigurationError(
            "includeHeaders is true, but columns does not name headers; add it to columns, or remove includeHeaders."
        )
    return chosen
