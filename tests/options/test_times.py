"""Times and durations in options: the milliseconds of each text."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_source.options.scalars import at_or_after_ms, duration_ms, timestamp_ms

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("99999999", 99_999_999),
        ("978307200000", 978_307_200_000),
        ("1999-12-31T00:00:00Z", 946_598_400_000),
        ("1767225600000", 1_767_225_600_000),
        (str(2**63 - 1), 2**63 - 1),
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01t00:00:00z".upper(), 1_767_225_600_000),
        ("2026-01-01 02:00:00+02:00", 1_767_225_600_000),
        ("2025-12-31T19:00:00-05:00", 1_767_225_600_000),
        (" 2026-01-01T00:00:00.123+00:00 ", 1_767_225_600_123),
        ("2026-01-01T00:00:00.123001Z", 1_767_225_600_124),
        ("1970-01-01T00:00:00Z", 0),
    ],
)
def test_time_is_milliseconds_or_iso_text_with_its_zone(text: str, milliseconds: int) -> None:
    assert timestamp_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2026-01-01T00:00:00", "without a time zone; end it with Z"),
        ("2026-01-01", "without a time zone"),
        ("1969-12-31T23:59:59Z", "begin with 1970"),
        ("-1", "begin with 1970"),
        ("100000000", "as milliseconds this is 1970-01-02; append 000"),
        ("978307199999", "as milliseconds this is 2000-12-31"),
        (str(2**63), "out of range"),
        ("now", "Invalid isoformat"),
        ("", "Invalid isoformat"),
        ("1e3", "Invalid isoformat"),
    ],
)
def test_invalid_times_are_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        timestamp_ms(text)


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(timezone.utc)))
def test_moment_is_rounded_up_to_milliseconds(moment: datetime) -> None:
    since_us = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // (moment.resolution)
    assert 0 <= at_or_after_ms(moment) * 1000 - since_us < 1000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("15m", 900_000),
        ("15min", 900_000),
        ("90s", 90_000),
        ("1H", 3_600_000),
        ("2d", 172_800_000),
        ("250ms", 250),
        ("250", 250),
        ("1999us", 1),
        (" 0s ", 0),
    ],
)
def test_duration_has_sparks_syntax(text: str, milliseconds: int) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "m", "-1s", "1.5h", "1 m", "1w", "1M30s", "9" * 19, "999999999999999999d"])
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration|out of range"):
        duration_ms(text)
