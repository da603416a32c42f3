"""Texts in JSON values as what a column stores: microseconds, days, unscaled decimals, as Spark's `from_json`.

Source: Spark's `JacksonParser` and `SparkDateTimeUtils`.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

_MAX_DIGITS = 1_000  # Jackson's default
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?)([0-9]{4,6})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?(.*))?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{1,2}))?(?::?([0-9]{1,2}))?")
_TRIMMED = "".join(map(chr, range(33)))
_SHORT_ZONES = {"Z": "UTC", "UT": "UTC", "GMT": "UTC", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00"}
# Arrow's limit; Spark has 18 hours.
_MAX_OFFSET_S = 24 * 3600 - 60
MAX_SECONDS = 2**63 // 1_000_000
_EXACT = Context(prec=_MAX_DIGITS)


def parse_decimal(text: str, precision: int, scale: int) -> int | None:
    """Return the unscaled integer of a number, rounded half up; None if it is no number or has too many digits."""
    text = text.replace(",", "")
    if len(text) > _MAX_DIGITS or _DECIMAL.fullmatch(text) is None:
        return None
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None  # an exponent that no number of Python has
    if not number or number.adjusted() < -scale - 1:
        return 0
    if number.adjusted() >= precision - scale:
        return None
    unscaled = int(number.scaleb(scale, _EXACT).to_integral_value(ROUND_HALF_UP, _EXACT))
    return unscaled if abs(unscaled) < 10**precision else None


def parse_base64(text: str) -> bytes | None:
    """Return the bytes of base64 text with padding; None if it is invalid."""
    try:
        return base64.b64decode(text.strip(_TRIMMED).encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        return None


def parse_date(text: str) -> int | None:
    """Return the days since 1970 of a date, which may have fewer digits or a time behind it; None if it is invalid."""
    match = _DATE.fullmatch(text.strip(_TRIMMED))
    days = None if match is None else _days(match[1], match[2], match[3], match[4])
    return days if days is not None and -(2**31) <= days < 2**31 else None


def parse_timestamp(text: str) -> int | None:
    """Return the microseconds since 1970 of a time, in UTC if it has no zone; None if it is invalid."""
    return _micros(text, local=False)


def parse_local_timestamp(text: str) -> int | None:
    """Return the microseconds since 1970 of a time without a zone; None if it is invalid or has a zone."""
    return _micros(text, local=True)


def _micros(text: str, *, local: bool) -> int | None:
    match = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if match is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(sign, year, month, day)
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if days is None or hours > 23 or minutes > 59 or seconds > 59:
        return None
    of_day_s = hours * 3600 + minutes * 60 + seconds
    micros = int((fraction or "")[:6].ljust(6, "0"))
    offset_s = 0
    if zone:
        if local:
            return None
        zone_info = _zone(zone.strip())
        if zone_info is None:
            return None
        try:
            moment = datetime(1970, 1, 1) + timedelta(days=days, seconds=of_day_s)
        except OverflowError:
            moment = datetime(1970, 1, 1)
        offset = zone_info.utcoffset(moment)
        offset_s = int(offset.total_seconds()) if offset is not None else 0
    total = (days * 86_400 + of_day_s - offset_s) * 1_000_000 + micros
    return total if -(2**63) <= total < 2**63 else None


def _zone(name: str) -> tzinfo | None:
    name = _SHORT_ZONES.get(name, name)
    match = _OFFSET.fullmatch(name)
    if match is not None:
        offset_s = int(match[2]) * 3600 + int(match[3] or 0) * 60 + int(match[4] or 0)
        wrong = int(match[3] or 0) > 59 or int(match[4] or 0) > 59 or offset_s > _MAX_OFFSET_S
        return None if wrong else timezone(timedelta(seconds=offset_s if match[1] == "+" else -offset_s))
    return ZoneInfo(name) if name in _regions() else None


@lru_cache
def _regions() -> frozenset[str]:
    """Return the names of regions. `ZoneInfo` would look for a file for each other text in a value."""
    return frozenset(available_timezones())


def _days(sign: str, year: str, month: str | None, day: str | None) -> int | None:
    """Return the days since 1970 of a date of the proleptic Gregorian calendar, of any year."""
    y, m, d = int(year) * (-1 if sign == "-" else 1), int(month or 1), int(day or 1)
    # 400 years have the same days; datetime has the years 1 to 9999.
    cycles, inside = divmod(y - 1, 400)
    try:
        return datetime(inside + 1, m, d).toordinal() - 719_163 + cycles * 146_097
    except ValueError:
        return None
