"""Scalar values of options: times and durations in milliseconds, sizes in bytes, prefixes of ids.

Pure; every parser raises `ValueError`.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

from protocol.settings.property_kinds import MAX_INT64

MAX_TIME_MS = 2**63 - 1
# Timestamps that are probably in seconds: after 1973 if read as seconds, before 2001 if read as milliseconds.
_SECONDS = range(100_000_000, 978_307_200_000)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)
# The units of Spark's JavaUtils.timeStringAsMs; a bare number is in milliseconds.
_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_DURATION = re.compile(r"([0-9]{1,18})([a-z]*)")
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")
# The units of Spark's JavaUtils.byteStringAsBytes.
_UNITS_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_SIZE = re.compile(r"([0-9]{1,19})([kmgtp]?)b?")


def timestamp_ms(text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601 such as `2026-01-01T00:00:00Z`, into milliseconds since 1970, UTC.

    ISO text needs `Z` or an offset, because the local time zone differs between machines. Fractions of a millisecond
    are rounded up: Kafka's timestamps have none, and no record before the given time may be included.
    """
    text = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return number_ms(int(text))
    moment = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone; end it with Z, or with an offset such as +02:00")
    return at_or_after_ms(moment)


def number_ms(milliseconds: int) -> int:
    """Check milliseconds since 1970 that a user gave as a number."""
    if milliseconds in _SECONDS:
        date = _EPOCH + milliseconds * _MILLISECOND
        raise ValueError(
            f"as milliseconds this is {date:%Y-%m-%d}; append 000 to a time in seconds, and write a time before 2001 "
            "such as 1999-12-31T00:00:00Z"
        )
    return _in_range(milliseconds)


def at_or_after_ms(moment: datetime) -> int:
    """Round a time with a time zone up to a whole millisecond."""
    return _in_range(-((_EPOCH - moment) // _MILLISECOND))


def duration_ms(text: str) -> int:
    """Parse `15m`, `90s`, `1h`, … or bare milliseconds, as Spark does, into milliseconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if not match or match[2] not in _UNITS_US:
        raise ValueError("not a duration")
    milliseconds = int(match[1]) * _UNITS_US[match[2]] // 1_000
    if milliseconds > MAX_TIME_MS:
        raise ValueError("out of range")
    return milliseconds


def _in_range(milliseconds: int) -> int:
    if not 0 <= milliseconds <= MAX_TIME_MS:
        raise ValueError("Kafka's timestamps begin with 1970" if milliseconds < 0 else "out of range")
    return milliseconds


def size_bytes(text: str) -> int:
    """Parse `100m`, `1g`, `512kb`, … or bare bytes, as Spark does; raise `ValueError` below 1 byte."""
    match = _SIZE.fullmatch(text.strip().lower())
    if not match:
        raise ValueError("not a size")
    size = int(match[1]) * _UNITS_BYTES[match[2]]
    if not 1 <= size <= MAX_INT64:
        raise ValueError("out of range")
    return size


def id_prefix(text: str) -> str:
    """Return the prefix, or raise `ValueError`.

    Kafka accepts any text. The limits here avoid quoting in ACLs, metrics and commands.
    """
    if not _PREFIX.fullmatch(text):
        raise ValueError("not a prefix")
    return text
