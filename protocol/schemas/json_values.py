"""Read JSON values one by one, as Spark's `from_json` does by default. `json_columns` reads most values faster.

Numbers, dates and so on become what a column stores: microseconds, days, unscaled decimals. Beyond strict JSON, values
may have single quotes and NaN or Infinity, as Spark allows. Stricter than Spark where it would give another value
without an error: text behind the value, and numbers that a type cannot hold.

Source: Spark's `JacksonParser` and `SparkDateTimeUtils`; RFC 8259.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa

from protocol.errors import ConfigurationError

# Those of Jackson's defaults.
MAX_DEPTH = 1_000
_MAX_DIGITS = 1_000
_MAX_TYPE_DEPTH = 64
# Ends each text, so that readers need not compare with its length; it is no character of JSON.
_END = "\0"

_space = re.compile(r"[ \t\n\r]*").match
_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").match
_word = re.compile(r"[A-Za-z+-][A-Za-z]*").match
_single = re.compile(r"'((?:[^'\\\x00-\x1f]|\\.)*)'").match
_INTEGER = re.compile(r"-?[0-9]+")
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

_NOT_FINITE = {
    "NaN": float("nan"), "Infinity": float("inf"), "+Infinity": float("inf"), "-Infinity": float("-inf"),
    "+INF": float("inf"), "-INF": float("-inf"),
}  # fmt: skip
# Without quotes; Arrow's reader takes these, too.
_WORDS = {**_NOT_FINITE, "-NaN": float("nan"), "Inf": float("inf"), "-Inf": float("-inf")}
_KINDS = {'"': "a string", "'": "a string", "{": "an object", "[": "an array", "t": "a boolean", "f": "a boolean"}
_EXACT = Context(prec=_MAX_DIGITS)


class InvalidJson(Exception):
    """A value that is not JSON, or does not have the column's type.

    Attributes
    ----------
    reason : str
    path : str
        The field, such as `customer.address[].city`.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path

    def inside(self, name: str) -> InvalidJson:
        """Return the error as seen from the enclosing type."""
        return InvalidJson(self.reason, f"{name}{'.' if self.path and self.path[0] != '[' else ''}{self.path}")


# Reads a value of one type at a position, and returns it and the position behind it.
Read = Callable[[str, int], tuple[Any, int]]


def value_reader(kind: pa.DataType) -> Callable[[bytes], Any]:
    """Return a reader of one value of a type.

    The result is, by type: struct: tuple; list: list; map: list of pairs; date: days; timestamp: microseconds; decimal:
    the unscaled integer; null: None. It raises `InvalidJson`.

    Raises
    ------
    ConfigurationError
        There is no JSON for the type.
    """
    read = _reader(kind, "", 0)

    def read_whole(value: bytes) -> Any:
        text = value.decode("utf-8", "replace") + _END
        at = _space(text, 0).end()  # type: ignore[union-attr]
        if at == len(text) - 1:
            return None  # as Spark
        if text.startswith("null", at):
            if pa.types.is_struct(kind):
                raise InvalidJson(f"null, not {_expected(kind)}")
            found, at = None, at + 4
        else:
            found, at = read(text, at)
        at = _space(text, at).end()  # type: ignore[union-attr]
        if at != len(text) - 1:
            raise InvalidJson(f"text behind the value, at character {at}")
        return found

    return read_whole


# -- tokens -----------------------------------------------------------------------------------


def _skip_space(text: str, at: int) -> int:
    return _space(text, at).end() if text[at] in " \t\n\r" else at  # type: ignore[union-attr]


def _string(text: str, at: int) -> tuple[str, int]:
    """Read the string that begins at a quote."""
    if text[at] == '"':
        try:
            value, after = scanstring(text, at + 1, True)
            return value, after
        except ValueError as error:
            raise InvalidJson(f"a string that is not JSON: {error}".replace("Invalid control", "a control")) from None
    found = _single(text, at)
    if found is None:
        raise InvalidJson(f"a string that does not end, at character {at}")
    inner = re.sub(r'\\.|"', lambda each: {"\\'": "'", '"': '\\"'}.get(each[0], each[0]), found[1], flags=re.DOTALL)
    return _string(f'"{inner}"', 0)[0], found.end()


def _key(text: str, at: int) -> tuple[str, int]:
    """Read a key and its colon; return the position of the value."""
    if text[at] not in "\"'":
        raise InvalidJson(f"a key is missing at character {at}")
    key, at = _string(text, at)
    at = _skip_space(text, at)
    if text[at] != ":":
        raise InvalidJson(f"a colon is missing at character {at}")
    return key, _skip_space(text, at + 1)


def _scalar(text: str, at: int) -> tuple[str, int]:
    """Return the text of a number, true, false, null, NaN or an infinity."""
    found = _number(text, at)
    if found is not None:
        return found[0], found.end()
    found = _word(text, at)
    if found is None or (found[0] not in ("true", "false", "null") and found[0] not in _WORDS):
        raise InvalidJson(f"no JSON value at character {at}")
    return found[0], found.end()


def _read_any(text: str, at: int, out: list[str] | None = None) -> int:
    """Read a value of any type, without recursion; return the position behind it, and in `out` its parts."""
    enclosing: list[str] = []
    while True:
        first = text[at]
        if first in "{[":
            close = "}" if first == "{" else "]"
            at = _skip_space(text, at + 1)
            if out is not None:
                out.append(first)
            enclosing.append(close)
            if len(enclosing) > MAX_DEPTH:
                raise InvalidJson(f"it is nested deeper than {MAX_DEPTH} levels")
            if text[at] != close:
                at = _named(text, at, close, out)
                continue
        elif first in "\"'":
            value, at = _string(text, at)
            if out is not None:
                out.append(json.dumps(value, ensure_ascii=False))
        else:
            value, at = _scalar(text, at)
            if out is not None:
                out.append(f'"{value}"' if value in _WORDS else "0" if value == "-0" else value)
        while enclosing:
            at = _skip_space(text, at)
            if text[at] == enclosing[-1]:
                close, at = enclosing.pop(), at + 1
                if out is not None:
                    out.append(close)
            elif text[at] == ",":
                at = _skip_space(text, at + 1)
                if out is not None:
                    out.append(",")
                at = _named(text, at, enclosing[-1], out)
                break
            else:
                raise InvalidJson(f"a comma or {enclosing[-1]} is missing at character {at}")
        else:
            return at


def _named(text: str, at: int, close: str, out: list[str] | None) -> int:
    """Read the key of an object's member; nothing in an array."""
    if close == "]":
        return at
    key, at = _key(text, at)
    if out is not None:
        out += [json.dumps(key, ensure_ascii=False), ":"]
    return at


# -- types ------------------------------------------------------------------------------------


def _expected(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "an object"
    if pa.types.is_list(kind):
        return "an array"
    names = {pa.bool_(): "a boolean", pa.binary(): "base64", pa.string(): "a string", pa.date32(): "a date"}
    names |= {pa.float32(): "a float", pa.float64(): "a double"}
    integers = {pa.int8(): "a tinyint", pa.int16(): "a smallint", pa.int32(): "an int", pa.int64(): "a bigint"}
    if pa.types.is_decimal(kind):
        return f"a decimal({kind.precision},{kind.scale})"
    return (names | integers).get(kind, "a timestamp")


def _mismatch(text: str, at: int, kind: pa.DataType) -> InvalidJson:
    """Return the error for a value of another type, or for text that is not JSON."""
    try:
        after = _read_any(text, at)
    except InvalidJson as error:
        return error
    found = _KINDS.get(text[at]) or (text[at:after] if after - at <= 40 else f"{text[at : at + 40]}…")
    return InvalidJson(f"{found}, not {_expected(kind)}")


def _refused(value: str, kind: pa.DataType) -> InvalidJson:
    return InvalidJson(f"{value[:40]!r}{'…' if len(value) > 40 else ''} is not {_expected(kind)}")


def _reader(kind: pa.DataType, path: str, depth: int) -> Read:
    if depth > _MAX_TYPE_DEPTH:
        raise ConfigurationError(f"{path} is nested deeper than {_MAX_TYPE_DEPTH} types")
    if pa.types.is_struct(kind):
        return _struct(kind, path, depth)
    if pa.types.is_list(kind):
        return _list(kind, path, depth)
    if pa.types.is_map(kind):
        return _map(kind, path, depth)
    if kind == pa.null():
        return lambda text, at: (None, _read_any(text, at))
    if kind == pa.bool_():
        return _boolean
    if pa.types.is_string(kind):
        return _text
    if kind in _INTEGER_RANGES:
        return _integer(kind, _INTEGER_RANGES[kind])
    if pa.types.is_floating(kind):
        return _float(kind)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return _timestamp(kind)
    parsers: dict[Any, Callable[[str], Any]] = {pa.date32(): parse_date, pa.binary(): parse_base64}
    if kind in parsers:
        return _parsed(kind, parsers[kind])
    if pa.types.is_decimal128(kind):
        return _decimal(kind)
    raise ConfigurationError(f"{path or 'the value'} has the type {kind}, which JSON does not have")


def _struct(kind: pa.StructType, path: str, depth: int) -> Read:
    names = {each.name: number for number, each in enumerate(kind)}
    if len(names) < kind.num_fields:
        raise ConfigurationError(f"{path or 'the schema'} has a field name twice")
    readers = [_reader(each.type, f"{path}.{each.name}" if path else each.name, depth + 1) for each in kind]

    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "{":
            raise _mismatch(text, at, kind)
        values: list[Any] = [None] * len(readers)
        at = _skip_space(text, at + 1)
        if text[at] == "}":
            return tuple(values), at + 1
        while True:
            key, at = _key(text, at)
            number = names.get(key)
            if number is None:
                at = _read_any(text, at)
            elif text.startswith("null", at):
                values[number] = None
                at += 4
            else:
                try:
                    values[number], at = readers[number](text, at)
                except InvalidJson as error:
                    raise error.inside(key) from None
            at = _skip_space(text, at)
            if text[at] == "}":
                return tuple(values), at + 1
            at = _comma(text, at, "}")

    return read


def _comma(text: str, at: int, close: str) -> int:
    if text[at] != ",":
        raise InvalidJson(f"a comma or {close} is missing at character {at}")
    return _skip_space(text, at + 1)


def _list(kind: pa.ListType, path: str, depth: int) -> Read:
    read_item = _reader(kind.value_type, f"{path}[]", depth + 1)

    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "[":
            raise _mismatch(text, at, kind)
        values: list[Any] = []
        at = _skip_space(text, at + 1)
        if text[at] == "]":
            return values, at + 1
        while True:
            if text.startswith("null", at):
                value, at = None, at + 4
            else:
                try:
                    value, at = read_item(text, at)
                except InvalidJson as error:
                    raise error.inside("[]") from None
            values.append(value)
            at = _skip_space(text, at)
            if text[at] == "]":
                return values, at + 1
            at = _comma(text, at, "]")

    return read


def _map(kind: pa.MapType, path: str, depth: int) -> Read:
    if not pa.types.is_string(kind.key_type):
        raise ConfigurationError(f"{path or 'the value'} is a map whose keys are no strings, which JSON does not have")
    read_item = _reader(kind.item_type, f"{path}[]", depth + 1)

    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] != "{":
            raise _mismatch(text, at, kind)
        entries: dict[str, Any] = {}
        at = _skip_space(text, at + 1)
        if text[at] == "}":
            return [], at + 1
        while True:
            key, at = _key(text, at)
            if text.startswith("null", at):
                entries[key], at = None, at + 4
            else:
                try:
                    entries[key], at = read_item(text, at)
                except InvalidJson as error:
                    raise error.inside(f"[{key}]") from None
            at = _skip_space(text, at)
            if text[at] == "}":
                return list(entries.items()), at + 1
            at = _comma(text, at, "}")

    return read


def _boolean(text: str, at: int) -> tuple[Any, int]:
    if text.startswith("true", at):
        return True, at + 4
    if text.startswith("false", at):
        return False, at + 5
    raise _mismatch(text, at, pa.bool_())


def _text(text: str, at: int) -> tuple[Any, int]:
    """Read a string; of another value its JSON, without space."""
    if text[at] in "\"'":
        return _string(text, at)
    out: list[str] = []
    at = _read_any(text, at, out)
    return "".join(out), at


_INTEGER_RANGES = {
    pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63,
}  # fmt: skip


def _integer(kind: pa.DataType, limit: int) -> Read:

    def read(text: str, at: int) -> tuple[Any, int]:
        found = _number(text, at)
        if found is None or _INTEGER.fullmatch(found[0]) is None or len(found[0]) > _MAX_DIGITS:
            raise _mismatch(text, at, kind)
        number = int(found[0])
        if not -limit <= number < limit:
            raise _mismatch(text, at, kind)
        return number, found.end()

    return read


def _float(kind: pa.DataType) -> Read:
    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] in "\"'":
            value, after = _string(text, at)
            if value not in _NOT_FINITE:
                raise _refused(value, kind)
            return _NOT_FINITE[value], after
        if text[at] in "{[tfn":
            raise _mismatch(text, at, kind)
        value, at = _scalar(text, at)
        if len(value) > _MAX_DIGITS:
            raise InvalidJson(f"a number of more than {_MAX_DIGITS} characters")
        return _WORDS[value] if value in _WORDS else float(value), at

    return read


def _parsed(kind: pa.DataType, parse: Callable[[str], Any]) -> Read:
    """Return a reader of strings that become other values."""

    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] not in "\"'":
            raise _mismatch(text, at, kind)
        value, at = _string(text, at)
        found = parse(value)
        if found is None:
            raise _refused(value, kind)
        return found, at

    return read


def _timestamp(kind: pa.DataType) -> Read:
    parse = parse_timestamp if kind.tz else parse_local_timestamp
    from_text = _parsed(kind, parse)
    seconds = _integer(kind, MAX_SECONDS)

    def read(text: str, at: int) -> tuple[Any, int]:
        if kind.tz is None or text[at] not in "-0123456789":
            return from_text(text, at)
        number, after = seconds(text, at)
        return number * 1_000_000, after

    return read


def _decimal(kind: pa.DataType) -> Read:
    def read(text: str, at: int) -> tuple[Any, int]:
        if text[at] in "\"'":
            value, after = _string(text, at)
        elif text[at] in "-0123456789":
            value, after = _scalar(text, at)
        else:
            raise _mismatch(text, at, kind)
        found = parse_decimal(value, kind.precision, kind.scale)
        if found is None:
            raise _refused(value, kind)
        return found, after

    return read


# -- texts ------------------------------------------------------------------------------------


def parse_decimal(text: str, precision: int, scale: int) -> int | None:
    """Return the unscaled integer of a number, rounded half up; None if it is no number or has too many digits."""
    text = text.replace(",", "")
    if len(text) > _MAX_DIGITS or _DECIMAL.fullmatch(text) is None:
        return None
    number = Decimal(text)
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
    found = _DATE.fullmatch(text.strip(_TRIMMED))
    days = None if found is None else _days(found[1], found[2], found[3], found[4])
    return days if days is not None and -(2**31) <= days < 2**31 else None


def parse_timestamp(text: str) -> int | None:
    """Return the microseconds since 1970 of a time, in UTC if it has no zone; None if it is invalid."""
    return _micros(text, local=False)


def parse_local_timestamp(text: str) -> int | None:
    """Return the microseconds since 1970 of a time without a zone; None if it is invalid or has a zone."""
    return _micros(text, local=True)


def _micros(text: str, *, local: bool) -> int | None:
    found = _TIMESTAMP.fullmatch(text.strip(_TRIMMED))
    if found is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
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
        known = _zone(zone.strip())
        if known is None:
            return None
        try:
            moment = datetime(1970, 1, 1) + timedelta(days=days, seconds=of_day_s)
        except OverflowError:
            moment = datetime(1970, 1, 1)
        offset = known.utcoffset(moment)
        offset_s = int(offset.total_seconds()) if offset is not None else 0
    total = (days * 86_400 + of_day_s - offset_s) * 1_000_000 + micros
    return total if -(2**63) <= total < 2**63 else None


def _zone(name: str) -> tzinfo | None:
    name = _SHORT_ZONES.get(name, name)
    found = _OFFSET.fullmatch(name)
    if found is not None:
        offset_s = int(found[2]) * 3600 + int(found[3] or 0) * 60 + int(found[4] or 0)
        wrong = int(found[3] or 0) > 59 or int(found[4] or 0) > 59 or offset_s > _MAX_OFFSET_S
        return None if wrong else timezone(timedelta(seconds=offset_s if found[1] == "+" else -offset_s))
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
