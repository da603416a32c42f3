"""Arrow columns of any type as JSON texts."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

Write = Callable[[Any], str]

_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def json_column(column: pa.Array) -> pa.Array:
    """Return a binary column with the JSON text of each value; null for null.

    Structs are objects that include their null fields; maps are objects; binary values are base64, decimals numbers,
    durations seconds such as "1.5s"; NaN and infinity are strings. Dates and timestamps are ISO 8601; a timestamp with
    a time zone is in UTC and ends with "Z". Outside the years 1 to 9999 they are the numbers that Arrow stores.
    """
    stored, write = _stored(column.type), _writer(column.type)
    plain = column if stored == column.type else column.cast(stored)
    return pa.array([None if row is None else write(row).encode() for row in plain.to_pylist()], pa.binary())


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers for dates and times: Python's types have fewer years, and no nanoseconds."""
    if pa.types.is_dictionary(kind):
        return _stored(kind.value_type)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_stored(kind.key_type)), kind.item_field.with_type(_stored(kind.item_type))
        )
    if _is_list(kind):
        return pa.list_(kind.value_field.with_type(_stored(kind.value_type)))
    return kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _writer(kind: pa.DataType) -> Write:
    if pa.types.is_dictionary(kind):
        return _writer(kind.value_type)
    if pa.types.is_struct(kind):
        return _object(
            [(json.dumps(field.name, ensure_ascii=False), field.name, _writer(field.type)) for field in kind]
        )
    if pa.types.is_map(kind):
        return _map(_writer(kind.key_type), _writer(kind.item_type))
    if _is_list(kind):
        return _array(_writer(kind.value_type))
    if pa.types.is_timestamp(kind):
        return _timestamp(_PER_SECOND[kind.unit], "Z" if kind.tz else "")
    if pa.types.is_duration(kind):
        return _duration(_PER_SECOND[kind.unit])
    for check, write in _WRITERS:
        if check(kind):
            return write
    return _text


def _or_null(write: Write, value: Any) -> str:
    return "null" if value is None else write(value)


def _object(fields: list[tuple[str, str, Write]]) -> Write:
    def write(value: Any) -> str:
        return "{" + ", ".join(f"{text}: {_or_null(writer, value[name])}" for text, name, writer in fields) + "}"

    return write


def _map(key: Write, item: Write) -> Write:
    def name(value: Any) -> str:
        text = key(value)
        return text if text.startswith('"') else f'"{text}"'

    return lambda value: (
        "{" + ", ".join(f"{name(key)}: {_or_null(item, value_of_key)}" for key, value_of_key in value) + "}"
    )


def _array(item: Write) -> Write:
    return lambda value: "[" + ", ".join(_or_null(item, element) for element in value) + "]"


def _timestamp(per_second: int, suffix: str) -> Write:
    def write(value: Any) -> str:
        seconds, remainder = divmod(value, per_second)
        try:
            text = (_EPOCH + timedelta(seconds=seconds)).isoformat()
        except OverflowError:
            return str(value)
        fraction = f".{remainder:0{len(str(per_second)) - 1}d}" if remainder else ""
        return f'"{text}{fraction}{suffix}"'

    return write


def _duration(per_second: int) -> Write:
    def write(value: Any) -> str:
        seconds, remainder = divmod(abs(value), per_second)
        fraction = f".{remainder:0{len(str(per_second)) - 1}d}" if remainder else ""
        return f'"{"-" if value < 0 else ""}{seconds}{fraction}s"'

    return write


def _date(value: Any) -> str:
    try:
        return f'"{(_EPOCH + timedelta(days=value)).date().isoformat()}"'
    except OverflowError:
        return str(value)


def _number(value: Any) -> str:
    if math.isfinite(value):
        return str(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _base64(value: Any) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _text(value: Any) -> str:
    return json.dumps(value if isinstance(value, str) else str(value), ensure_ascii=False)


_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Write], ...] = (
    (pa.types.is_boolean, lambda value: "true" if value else "false"),
    (pa.types.is_integer, str),
    (pa.types.is_float32, lambda value: _number(np.float32(value))),
    (pa.types.is_floating, _number),
    (pa.types.is_decimal, lambda value: format(value, "f")),
    (pa.types.is_date32, _date),
    *((check, _base64) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)),
)
