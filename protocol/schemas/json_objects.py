"""JSON values as Python objects of the standard library, and columns of these, as Spark's `from_json` by default.

Values that Arrow's reader refuses, and all of schemas with maps, are read so. Stricter than Spark where it would give
another value without an error: text behind the value, and numbers that a type cannot hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import ConfigurationError
from protocol.records.arrow_numpy import binaries, nullable_binaries
from protocol.records.varints import Positions
from protocol.schemas.json_texts import (
    MAX_SECONDS,
    parse_base64,
    parse_date,
    parse_decimal,
    parse_local_timestamp,
    parse_timestamp,
)

# Half of CPython's usual limit of recursion, which its scanner of JSON has until 3.11. Jackson has 1,000.
MAX_DEPTH = 500
# A bracket opens and one closes each level.
DEEP_BYTES = 2 * MAX_DEPTH
_MAX_DIGITS = 1_000
_FIXED = {
    pa.int8(): "i1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8", pa.float32(): "f4", pa.float64(): "f8",
    pa.date32(): "i4",
}  # fmt: skip
_DECIMAL_BYTES = 16
_ZONED, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
# Types of Arrow to try when text is cast to a type.
_FORMS = {_ZONED: (_ZONED, _LOCAL), _LOCAL: (_LOCAL,), pa.date32(): (pa.date32(),)}
_NAMES = {
    pa.bool_(): "a boolean", pa.binary(): "base64", pa.string(): "a string", pa.date32(): "a date",
    _ZONED: "a timestamp", _LOCAL: "a timestamp", pa.float32(): "a float", pa.float64(): "a double",
    pa.int8(): "a tinyint", pa.int16(): "a smallint", pa.int32(): "an int", pa.int64(): "a bigint", pa.null(): "null",
}  # fmt: skip
_KINDS = {str: "a string", dict: "an object", list: "an array", bool: "a boolean"}
# What Spark and Arrow read beyond the standard library: without quotes, and texts in a field of type double.
_INFINITIES = {"+Infinity": "Infinity", "+INF": "Infinity", "-INF": "-Infinity"}
_BARE = {**_INFINITIES, "-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}
_NOT_FINITE = {name: float(name) for name in ("NaN", "Infinity", "-Infinity", *_INFINITIES)}
_STRING = rb'"(?:[^"\\]|\\.)*"?'
_TOKEN = re.compile(_STRING.decode() + r"|'(?:[^'\\]|\\.)*'?|[+-]?[A-Za-z]+", re.DOTALL)
_NO_BRACKETS = re.compile(_STRING + rb"|[^\[\]{}\"]+", re.DOTALL)
_LEVELS = np.zeros(256, np.int8)
_LEVELS[list(b"[{")], _LEVELS[list(b"]}")] = 1, -1


class InvalidJson(Exception):
    """A value that is not JSON, or does not have the column's type.

    `path`: the field, such as `customer.address[].city`.
    """

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


def _integer(text: str) -> int | bytes:
    return int(text) if len(text) <= _MAX_DIGITS else text.encode()


# Numbers that are no integer, have very many digits or are not finite stay as they are written: bytes. Python's garbage
# collector does not track these, as it would a subclass of str.
_scan: Any = json.JSONDecoder(parse_float=str.encode, parse_constant=str.encode).scan_once  # type: ignore[attr-defined]
_read_leniently = json.JSONDecoder(parse_float=str.encode, parse_constant=str.encode, parse_int=_integer).decode


def read_object(value: bytes) -> Any:
    """Return a JSON value as Python objects, those of space only as None. Raises `InvalidJson`."""
    if is_deep(value):
        raise InvalidJson(f"it is nested deeper than {MAX_DEPTH} levels")
    text = value.decode("utf-8", "replace")
    stripped = text.strip(" \t\n\r")
    try:
        with suppress(ValueError, StopIteration):
            members, end = _scan(stripped, 0)
            if end == len(stripped):
                return members
        return _read_leniently(_TOKEN.sub(_in_json, text)) if stripped else None
    except json.JSONDecodeError as error:
        raise InvalidJson(f"not JSON: {error.msg.removesuffix(' at')} at character {error.pos}") from None
    except RecursionError:
        raise InvalidJson("it is nested too deeply for the stack of this thread") from None


def _in_json(token: re.Match[str]) -> str:
    """Return a string with single quotes, or an infinity, as the standard library reads it."""
    text = token[0]
    if text[0] == "'" and len(text) > 1 and text[-1] == "'":
        inner = re.sub(
            r'\\.|"', lambda match: {"\\'": "'", '"': '\\"'}.get(match[0], match[0]), text[1:-1], flags=re.DOTALL
        )
        return f'"{inner}"'
    return _BARE.get(text, text)


def is_deep(value: bytes) -> bool:
    """Return whether a JSON value has more than `MAX_DEPTH` levels of objects and arrays."""
    if len(value) <= DEEP_BYTES or value.count(b"[") + value.count(b"{") <= MAX_DEPTH:
        return False
    brackets = np.frombuffer(_NO_BRACKETS.sub(b"", value), np.uint8)
    return bool(_LEVELS[brackets].cumsum(dtype=np.int64).max(initial=0) > MAX_DEPTH)


def check_type(kind: pa.DataType, path: str = "") -> None:
    """Raise `ConfigurationError` if JSON objects cannot have a type: a field name twice, keys that are no strings."""
    if pa.types.is_struct(kind):
        if len({field.name for field in kind}) < kind.num_fields:
            raise ConfigurationError(f"{path or 'the schema'} has a field name twice")
        for field in kind:
            check_type(field.type, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_list(kind):
        check_type(kind.value_type, f"{path}[]")
    elif pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise ConfigurationError(
                f"{path or 'the value'} is a map whose keys are no strings, which JSON does not have"
            )
        check_type(kind.item_type, f"{path}[]")


def has_type(kind: pa.DataType, accept: Callable[[pa.DataType], bool]) -> bool:
    """Return whether `accept` is true for a type, or for a type in it."""
    if pa.types.is_struct(kind):
        return any(has_type(field.type, accept) for field in kind) or accept(kind)
    if pa.types.is_list(kind):
        return has_type(kind.value_type, accept)
    return accept(kind) or (pa.types.is_map(kind) and has_type(kind.item_type, accept))


class ObjectColumns:
    """Builds columns of JSON objects.

    `refused`: the rows with a value of another type; the columns have null in its place.
    """

    def __init__(self) -> None:
        self.refused: dict[int, InvalidJson] = {}

    def column(self, values: Sequence[Any], rows: Positions, kind: pa.DataType, path: str = "") -> pa.Array:
        """Return values as a column of a type; `rows` has the row that each is of."""
        if kind == pa.null():
            return pa.nulls(len(values))
        if pa.types.is_struct(kind):
            return self._struct(values, rows, kind, path)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            return self._items(values, rows, kind, path)
        if pa.types.is_string(kind):
            return _text_column(values if _are(values, str) else [*map(_text, values)])
        if kind == pa.bool_():
            return column_of(self._only(values, rows, kind, path, (bool,)), kind)
        if pa.types.is_floating(kind) and _are(values, bytes):
            return column_of([None if text is None else float(text) for text in values], kind)
        if kind in _FORMS and _are(values, str) and (times := cast_texts(_text_column(values), kind)) is not None:
            return times
        return self._parsed(values, rows, kind, path)

    def _struct(self, values: Sequence[Any], rows: Positions, kind: pa.StructType, path: str) -> pa.Array:
        values = self._only(values, rows, kind, path, (dict,))
        children = []
        for field in kind:
            name = field.name
            inner = [None if members is None else members.get(name) for members in values]
            children.append(self.column(inner, rows, field.type, f"{path}.{name}" if path else name))
        return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=children)

    def _parsed(self, values: Sequence[Any], rows: Positions, kind: pa.DataType, path: str) -> pa.Array:
        """Parse values one by one, and refuse the rows of those that the type does not take."""
        types, parse = _parser(kind)
        values = self._only(values, rows, kind, path, types)
        parsed = [None if value is None else parse(value) for value in values]
        if parsed.count(None) > values.count(None):
            for row, value, result in zip(rows.tolist(), values, parsed, strict=True):
                if result is None and value is not None:
                    text = repr(value[:40]) if type(value) is str else _shown(value)
                    self.refused.setdefault(row, InvalidJson(f"{text} is not {_expected(kind)}", path))
        return column_of(parsed, kind)

    def _only(
        self, values: Sequence[Any], rows: Positions, kind: pa.DataType, path: str, types: tuple[type, ...]
    ) -> Sequence[Any]:
        """Return the values with None for those of other types, whose rows are refused."""
        if _are(values, *types):
            return values
        for row, value in zip(rows.tolist(), values, strict=True):
            if value is not None and type(value) not in types:
                self.refused.setdefault(row, InvalidJson(f"{_shown(value)}, not {_expected(kind)}", path))
        return [value if type(value) in types else None for value in values]

    def _items(self, values: Sequence[Any], rows: Positions, kind: pa.DataType, path: str) -> pa.Array:
        is_map = pa.types.is_map(kind)
        values = self._only(values, rows, kind, path, (dict if is_map else list,))
        counts = np.fromiter((len(container) if container else 0 for container in values), np.int64, len(values))
        ends = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32))
        containers = [(container.values() if is_map else container) for container in values if container]
        items = self.column(
            [item for container in containers for item in container],
            np.repeat(rows, counts),
            kind.item_type if is_map else kind.value_type,
            f"{path}[]",
        )
        if is_map:
            keys = _text_column([key for container in values if container for key in container])
            entries = pa.struct([kind.key_field, kind.item_field])
            items = pa.Array.from_buffers(entries, len(keys), [None], children=[keys, items])
        return pa.Array.from_buffers(kind, len(values), [_validity(values), ends], children=[items])


def _are(values: Sequence[Any], *types: type) -> bool:
    return set(map(type, values)) <= {*types, NoneType}


def _shown(value: Any) -> str:
    """Return the kind of a value for an error, or a number."""
    text = value.decode() if type(value) is bytes else str(value)
    return _KINDS.get(type(value)) or (text if len(text) <= 40 else f"{text[:40]}…")


def _expected(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind) or pa.types.is_map(kind):
        return "an object"
    if pa.types.is_list(kind):
        return "an array"
    return f"a decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _NAMES[kind]


def _text(value: Any) -> str | None:
    """Return the text of a value in a field of type string: of one that is no string its JSON, without space."""
    return value if value is None or type(value) is str else _json(value)


def _json(value: Any) -> str:
    if type(value) is dict:
        members = []
        for name, member in value.items():
            members.append(f"{json.dumps(name, ensure_ascii=False)}:{_json(member)}")
        return f"{{{','.join(members)}}}"
    if type(value) is list:
        return f"[{','.join(map(_json, value))}]"
    if type(value) is bytes:
        return value.decode() if value[-1:].isdigit() else f'"{value.decode()}"'
    return json.dumps(value, ensure_ascii=False)


def _parser(kind: pa.DataType) -> tuple[tuple[type, ...], Callable[[Any], Any]]:
    """Return the types of objects that a column of numbers, times or bytes takes, and what makes its values of them."""
    if pa.types.is_integer(kind):
        limit = 2 ** (kind.bit_width - 1)
        return (int,), lambda number: number if -limit <= number < limit else None
    if pa.types.is_floating(kind):
        return (bytes, int, str), _float
    if pa.types.is_decimal(kind):
        return (str, int, bytes), lambda value: parse_decimal(
            value.decode() if type(value) is bytes else str(value), kind.precision, kind.scale
        )
    if kind == _ZONED:
        return (str, int), lambda value: parse_timestamp(value) if type(value) is str else _micros(value)
    parsers: dict[pa.DataType, Callable[[str], Any]] = {pa.binary(): parse_base64, pa.date32(): parse_date}
    return (str,), parsers.get(kind, parse_local_timestamp)


def _float(value: str | int | bytes) -> float | None:
    if type(value) is str:
        return _NOT_FINITE.get(value)
    try:
        return float(value)
    except OverflowError:
        return float("inf" if value > 0 else "-inf")  # type: ignore[operator]


def _micros(seconds: int) -> int | None:
    return seconds * 1_000_000 if -MAX_SECONDS <= seconds < MAX_SECONDS else None


# -- columns ----------------------------------------------------------------------------------


def cast_texts(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return texts as a column of dates or timestamps; None if Arrow does not know the form of one of them."""
    for form in _FORMS[kind]:
        try:
            converted = column.cast(form)
        except pa.ArrowInvalid:
            continue
        return pa.Array.from_buffers(kind, len(converted), converted.buffers(), offset=converted.offset)
    return None


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    is_valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _text_column(values: Sequence[str | None]) -> pa.Array:
    texts: Sequence[str] = [text or "" for text in values] if None in values else values  # type: ignore[assignment]
    joined = "".join(texts)
    if joined.isascii():
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=ends[1:])
        buffers = [_validity(values), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(joined.encode())]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    # A lone surrogate becomes a question mark, as in Java.
    plain = binaries([text.encode("utf-8", "replace") for text in texts])
    return pa.Array.from_buffers(pa.string(), len(texts), [_validity(values), *plain.buffers()[1:]])


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return numbers or bytes as a column: days, microseconds and unscaled decimals as integers."""
    validity = _validity(values)
    if kind == pa.binary():
        return nullable_binaries(values)
    if pa.types.is_decimal(kind):
        raw = b"".join((number or 0).to_bytes(_DECIMAL_BYTES, "little", signed=True) for number in values)
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(raw)])
    numbers = _numbers(values, kind)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])


def _numbers(values: Sequence[Any], kind: pa.DataType) -> npt.NDArray[Any]:
    plain = [number or 0 for number in values]
    if kind == pa.bool_():
        return np.packbits(np.array(plain, np.bool_), bitorder="little")
    if kind == pa.float32():
        with np.errstate(over="ignore"):  # beyond the range of float: infinite
            return np.array(plain, np.float64).astype(np.float32)
    return np.array(plain, _FIXED.get(kind, "i8"))
