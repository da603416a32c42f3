"""Sizes, times and durations in options: the number of bytes or milliseconds of each text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_source.options.scalars import at_or_after_ms, duration_ms, size_bytes, timestamp_ms

pytestmark = pytest.mark.soak

LARGEST = 2**63 - 1
NUMBERS = [
    # Bytes, or a number with a unit.
    *((size_bytes, "1", 1), (size_bytes, "1048576", 1 << 20), (size_bytes, str(LARGEST), LARGEST)),
    *((size_bytes, "7b", 7), (size_bytes, "64k", 64 << 10), (size_bytes, " 100M ", 100 << 20)),
    *((size_bytes, "10mb", 10 << 20), (size_bytes, "1g", 1 << 30), (size_bytes, "2T", 2 << 40)),
    # Milliseconds, or ISO text with its zone.
    *((timestamp_ms, "0", 0), (timestamp_ms, "99999999", 99_999_999), (timestamp_ms, str(LARGEST), LARGEST)),
    *((timestamp_ms, text, int(text)) for text in ("978307200000", "1767225600000")),
    *((timestamp_ms, "1999-12-31T00:00:00Z", 946_598_400_000), (timestamp_ms, "1970-01-01T00:00:00Z", 0)),
    (timestamp_ms, "2026-01-01T00:00:00Z", 1_767_225_600_000),
    (timestamp_ms, "2026-01-01 02:00:00+02:00", 1_767_225_600_000),
    (timestamp_ms, "2025-12-31T19:00:00-05:00", 1_767_225_600_000),
    (timestamp_ms, " 2026-01-01T00:00:00.123+00:00 ", 1_767_225_600_123),
    (timestamp_ms, "2026-01-01T00:00:00.123001Z", 1_767_225_600_124),
    # Spark's syntax.
    *((duration_ms, "15m", 900_000), (duration_ms, "15min", 900_000), (duration_ms, "90s", 90_000)),
    *((duration_ms, "1H", 3_600_000), (duration_ms, "2d", 172_800_000), (duration_ms, "250ms", 250)),
    *((duration_ms, "250", 250), (duration_ms, "1999us", 1), (duration_ms, " 0s ", 0)),
]


@pytest.mark.parametrize(("parse", "text", "number"), NUMBERS)
def test_text_is_parsed_to_a_number(parse: Callable[[str], int], text: str, number: int) -> None:
    assert parse(text) == number


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)))
def test_moment_is_rounded_up_to_milliseconds(moment: datetime) -> None:
    since_us = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // (moment.resolution)
    assert 0 <= at_or_after_ms(moment) * 1000 - since_us < 1000


DURATIONS = ["", "m", "-1s", "1.5h", "1 m", "1w", "1M30s", "9" * 19, "999999999999999999d"]
SIZES = ["", "m", "-1", "1.5g", "1 g", "1gib", "10x", "0", "0k", str(2**63), "9999999p"]
TIMES = {
    "2026-01-01T00:00:00": "without a time zone; end it with Z",
    "2026-01-01": "without a time zone",
    **dict.fromkeys(["1969-12-31T23:59:59Z", "-1"], "begin with 1970"),
    "100000000": "as milliseconds this is 1970-01-02; append 000",
    "978307199999": "as milliseconds this is 2000-12-31",
    str(LARGEST + 1): "out of range",
    **dict.fromkeys(["now", "", "1e3"], "Invalid isoformat"),
}


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        *((timestamp_ms, text, why) for text, why in TIMES.items()),
        *((duration_ms, text, r"not a duration|out of range") for text in DURATIONS),
        *((size_bytes, text, r"not a size|out of range") for text in SIZES),
    ],
)
def test_invalid_text_is_refused(parse: Callable[[str], int], text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse(text)
