"""Check values of callers where they are passed: a request with one that cannot be encoded would fail for all others.

Each function returns the value as Kafka's type, or raises `UsageError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index

from protocol.errors import UsageError
from protocol.kafka_terms import NO_TOPIC_ID, TopicPartition
from protocol.settings.property_kinds import MAX_INT32, MAX_INT64
from protocol.wire.primitives import LONGEST_STRING_BYTES


def checked_integer(name: str, number: object, minimum: int, maximum: int) -> int:
    """Return an integer, such as one of NumPy, as an `int`; raise `UsageError` for a bool or a float."""
    try:
        integer = index(None if isinstance(number, bool) else number)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{name} is {number!r}; it must be an integer") from None
    if not minimum <= integer <= maximum:
        raise UsageError(f"{name} is {integer}; it must be from {minimum} to {maximum}")
    return integer


def checked_offset(offset: object, where: str = "") -> int:
    """Return an offset of a record, or of the next one."""
    return checked_integer(f"{where}offset", offset, 0, MAX_INT64)


def checked_leader_epoch(leader_epoch: object, where: str = "") -> int:
    """Return a leader epoch; a negative one means that it is unknown."""
    return checked_integer(f"{where}leader epoch", leader_epoch, -MAX_INT32 - 1, MAX_INT32)


def checked_topic_id(topic_id: object) -> bytes:
    """Return a topic id; zeros mean that it is unknown."""
    if not isinstance(topic_id, bytes) or len(topic_id) != len(NO_TOPIC_ID):
        raise UsageError(f"topic id is {topic_id!r}; it must be 16 bytes")
    return topic_id


def require_callback(callback: object) -> None:
    """Raise `UsageError` for a callback that is neither callable nor None."""
    if callback is not None and not callable(callback):
        raise UsageError(f"callback is {callback!r}; it must be callable")


def encoded(name: str, text: str) -> bytes:
    """Return a text in UTF-8, which has no lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} has no UTF-8: {text[error.start]!r} at position {error.start}") from None


def checked_string(name: str, text: object) -> str:
    """Return a text for a field of a request."""
    if not isinstance(text, str):
        raise UsageError(f"{name} is {type(text).__name__}; it must be a str")
    if (size_bytes := len(encoded(name, text))) > LONGEST_STRING_BYTES:
        raise UsageError(f"{name} has {size_bytes} bytes; it must have at most {LONGEST_STRING_BYTES}")
    return text


def checked_partition(key: object) -> TopicPartition:
    """Return a topic name with a partition number."""
    if not isinstance(key, tuple) or len(key) != 2:
        raise UsageError(f"{key!r} is not a partition; use a topic with a number, such as ('orders', 0)")
    topic = checked_string("topic", key[0])
    return topic, checked_integer(f"partition of {topic}", key[1], 0, MAX_INT32)


def checked_times(times_ms: object) -> dict[TopicPartition, int]:
    """Return timestamps, in milliseconds since 1970, by partition."""
    if not isinstance(times_ms, Mapping):
        raise UsageError(
            f"the times are {type(times_ms).__name__}; pass a mapping of (topic, partition) to milliseconds"
        )
    partitions = map(checked_partition, times_ms)
    return {
        (topic, partition): checked_integer(f"timestamp of {topic}-{partition}", time_ms, 0, MAX_INT64)
        for (topic, partition), time_ms in zip(partitions, times_ms.values(), strict=True)
    }
