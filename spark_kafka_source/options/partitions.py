"""Names of topics and partitions, and values by partition in JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from protocol.base.listing import listed
from protocol.kafka_terms import TopicPartition

# Topic -> partition -> number, sorted.
ByPartition = Mapping[str, Mapping[int, int]]
_T = TypeVar("_T")

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
MAX_PARTITION = 2**31 - 1
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


def partition_name(tp: TopicPartition) -> str:
    """Return the name in the form of Kafka's tools: `orders-3`."""
    return f"{tp[0]}-{tp[1]}"


def partition_names(partitions: Collection[TopicPartition]) -> str:
    """List the first partitions, sorted, and the number of the others."""
    return listed([partition_name(key) for key in sorted(partitions)])


def checked_topic(topic: str) -> str:
    """Return `topic`; raise `ValueError` if Kafka allows no such name."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"{topic!r} is no topic name: 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")
    return topic


def by_partition(document: object, convert: Callable[[object], _T]) -> dict[TopicPartition, _T]:
    """Convert `{"orders": {"0": v}}` to `{("orders", 0): convert(v)}`, sorted.

    Raises `ValueError`: the document has another shape, or `convert` raises it for a value.
    """
    if not isinstance(document, Mapping):
        raise ValueError("not a JSON object of topics")
    values: dict[TopicPartition, _T] = {}
    for topic in sorted(map(checked_topic, document)):
        partitions = document[topic]
        if not isinstance(partitions, Mapping):
            raise ValueError(f"{topic} has no JSON object of partitions")
        try:
            numbers = sorted([(_partition(text), text) for text in partitions])
        except ValueError as error:
            raise ValueError(f"{topic} {error}") from error
        try:
            values.update({(topic, number): convert(partitions[text]) for number, text in numbers})
        except ValueError:
            _raise_first(topic, {number: partitions[text] for number, text in numbers}, convert)
            raise
    return values


def _raise_first(topic: str, partitions: Mapping[int, object], convert: Callable[[object], object]) -> None:
    """Raise the first error of `convert` with the name of its partition."""
    for number, value in partitions.items():
        try:
            convert(value)
        except ValueError as error:
            raise ValueError(f"{topic}-{number} {error}") from error


# Cached, because it is called for every partition of every batch.
@lru_cache(maxsize=10_000, typed=True)
def _partition(text: object) -> int:
    if not _NUMBER.fullmatch(str(text)) or int(str(text)) > MAX_PARTITION:
        raise ValueError(f"has the partition {text!r}, which is not one of 0 to {MAX_PARTITION}")
    return int(str(text))


def whole_number(value: object, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
    """Return `value` from a JSON document; raise `ValueError` unless it is an int from `minimum` to `maximum`."""
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"is {value!r}, not a whole number from {minimum} to {maximum}")
    return value


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object of topics; raise `ValueError` for other JSON, no topic, or a repeated key."""
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        if not text.lstrip().startswith("{"):
            raise ValueError("not a JSON object of topics") from error
        quotes = "; write names in double quotes, as json.dumps does" if "'" in text and '"' not in text else ""
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}{quotes}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object of topics")
    if not document:
        raise ValueError("names no topic")
    return document


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in pairs:
        if key in document:
            raise ValueError(f"{key!r} is there twice")
        document[key] = value
    return document
