"""JSON values as Python objects, and columns of these: for values that Arrow's reader refuses, and for maps.

The scanner of `JSONDecoder`, which is written in C, makes the objects; the columns are built field by field. Values
that have another type than their column are left to `json_values`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.records.arrow_numpy import binaries, nullable_binaries
from protocol.records.varints import Positions
from protocol.schemas.json_values import (
    MAX_SECONDS,
    parse_base64,
    parse_date,
    parse_decimal,
    parse_local_timestamp,
    parse_timestamp,
)

_FIXED = {
    pa.int8(): "i1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8", pa.float32(): "f4", pa.float64(): "f8",
    pa.date32(): "i4",
}  # fmt: skip
_DECIMAL_BYTES = 16
_ZONED, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
# Types of Arrow to try when text is cast to a type.
_FORMS = {_ZONED: (_ZONED, _LOCAL), _LOCAL: (_LOCAL,), pa.date32(): (pa.date32(),)}


def object_scanner(kind: pa.DataType) -> Callable[[str, int], tuple[Any, int]]:
    """Return what reads a JSON value as Python objects, and the position behind it, for columns of a type."""
    exact = has_type(kind, pa.types.is_decimal)
    decoder: Any = json.JSONDecoder(parse_float=Decimal if exact else None, object_pairs_hook=_unique)
    scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once
    return scan


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises `ValueError` if a key is there twice: the first value may be invalid."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def has_type(kind: pa.DataType, wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type or a type in it is a wanted one."""
    if pa.types.is_struct(kind):
        return any(has_type(each.type, wanted) for each in kind) or wanted(kind)
    if pa.types.is_list(kind):
        return has_type(kind.value_type, wanted)
    return wanted(kind) or (pa.types.is_map(kind) and has_type(kind.item_type, wanted))


class ObjectColumns:
    """Builds columns of JSON objects.

    Attributes
    ----------
    refused : set of int
        The rows with a value of another type; the columns have null in its place.
    """

    def __init__(self) -> None:
        self.refused: set[int] = set()

    def column(self, values: Sequence[Any], rows: Positions, kind: pa.DataType) -> pa.Array:
        """Return values as a column of a type; `rows` has the row that each is of."""
        if kind == pa.null():
            return pa.nulls(len(values))
        if pa.types.is_struct(kind):
            values = self._only(values, rows, (dict,))
            children = []
            for field in kind:
                name = field.name
                inner = [None if each is None else each.get(name) for each in values]
                children.append(self.column(inner, rows, field.type))
            return pa.Array.from_buffers(kind, len(values), [_validity(values)], children=children)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            return self._items(values, rows, kind)
        if pa.types.is_string(kind):
            texts = self._only(values, rows, (str, int, bool))
            return _text_column([_text(each) for each in texts] if set(map(type, texts)) - {str, NoneType} else texts)
        if kind == pa.bool_():
            return column_of(self._only(values, rows, (bool,)), kind)
        if pa.types.is_floating(kind):
            return self._floats(values, rows, kind)
        if pa.types.is_decimal(kind):
            return self._parsed(values, rows, kind, (str, int, Decimal), _decimal_parser(kind))
        if kind == pa.binary():
            return self._parsed(values, rows, kind, (str,), parse_base64)
        if kind == pa.date32() or pa.types.is_timestamp(kind):
            return self._times(values, rows, kind)
        return self._integers(values, rows, kind)

    def _only(self, values: Sequence[Any], rows: Positions, types: tuple[type, ...]) -> Sequence[Any]:
        """Return the values with None for those of other types, whose rows are refused."""
        if set(map(type, values)) <= {*types, NoneType}:
            return values
        self.refused.update(
            int(row) for row, each in zip(rows, values, strict=True) if each is not None and type(each) not in types
        )
        return [each if type(each) in types else None for each in values]

    def _items(self, values: Sequence[Any], rows: Positions, kind: pa.DataType) -> pa.Array:
        is_map = pa.types.is_map(kind)
        values = self._only(values, rows, (dict if is_map else list,))
        counts = np.fromiter((len(each) if each else 0 for each in values), np.int64, len(values))
        ends = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32))
        below = np.repeat(rows, counts)
        if not is_map:
            items = self.column([item for each in values if each for item in each], below, kind.value_type)
        else:
            keys = _text_column([key for each in values if each for key in each])
            inner = self.column([item for each in values if each for item in each.values()], below, kind.item_type)
            entries = pa.struct([kind.key_field, kind.item_field])
            items = pa.Array.from_buffers(entries, len(keys), [None], children=[keys, inner])
        return pa.Array.from_buffers(kind, len(values), [_validity(values), ends], children=[items])

    def _integers(self, values: Sequence[Any], rows: Positions, kind: pa.DataType) -> pa.Array:
        values = self._only(values, rows, (int,))
        limit = 2 ** (kind.bit_width - 1)
        numbers = [each for each in values if each is not None]
        if numbers and not (-limit <= min(numbers) and max(numbers) < limit):
            fits = [each is None or -limit <= each < limit for each in values]
            self.refused.update(int(row) for row, fit in zip(rows, fits, strict=True) if not fit)
            values = [each if fit else None for each, fit in zip(values, fits, strict=True)]
        return column_of(values, kind)

    def _floats(self, values: Sequence[Any], rows: Positions, kind: pa.DataType) -> pa.Array:
        values = self._only(values, rows, (float, int, Decimal))
        try:
            return column_of([None if each is None else float(each) for each in values], kind)
        except (OverflowError, ValueError):
            # An integer beyond the range of a double becomes infinity, as a decimal literal does.
            self.refused.update(int(row) for row, each in zip(rows, values, strict=True) if type(each) is not float)
            return column_of([each if type(each) is float else None for each in values], kind)

    def _times(self, values: Sequence[Any], rows: Positions, kind: pa.DataType) -> pa.Array:
        if set(map(type, values)) <= {str, NoneType}:
            found = cast_texts(_text_column(values), kind)
            if found is not None:
                return found
        if kind == pa.date32():
            return self._parsed(values, rows, kind, (str,), parse_date)
        return self._parsed(values, rows, kind, (str, int) if kind.tz else (str,), _time_parser(kind))

    def _parsed(
        self,
        values: Sequence[Any],
        rows: Positions,
        kind: pa.DataType,
        types: tuple[type, ...],
        parse: Callable[[Any], Any],
    ) -> pa.Array:
        values = self._only(values, rows, types)
        found = [None if each is None else parse(each) for each in values]
        wrong = [
            int(row) for row, each, made in zip(rows, values, found, strict=True) if each is not None and made is None
        ]
        self.refused.update(wrong)
        return column_of(found, kind)


def _text(value: Any) -> str | None:
    if type(value) is bool:
        return "true" if value else "false"
    return None if value is None else str(value)


def _decimal_parser(kind: pa.DataType) -> Callable[[Any], int | None]:
    return lambda value: parse_decimal(str(value), kind.precision, kind.scale)


def _time_parser(kind: pa.DataType) -> Callable[[Any], int | None]:
    parse = parse_timestamp if kind.tz else parse_local_timestamp

    def parsed(value: Any) -> int | None:
        if type(value) is str:
            return parse(value)
        return int(value) * 1_000_000 if -MAX_SECONDS <= value < MAX_SECONDS else None

    return parsed


# -- columns ----------------------------------------------------------------------------------


def cast_texts(column: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return texts as a column of dates or timestamps; None if Arrow does not know the form of one of them."""
    for form in _FORMS[kind]:
        try:
            found = column.cast(form)
        except pa.ArrowInvalid:
            continue
        return pa.Array.from_buffers(kind, len(found), found.buffers(), offset=found.offset)
    return None


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    if None not in values:
        return None
    there = np.fromiter((each is not None for each in values), np.bool_, len(values))
    return pa.py_buffer(np.packbits(there, bitorder="little"))


def _text_column(values: Sequence[str | None]) -> pa.Array:
    texts: Sequence[str] = [each or "" for each in values] if None in values else values  # type: ignore[assignment]
    joined = "".join(texts)
    if joined.isascii():
        ends = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=ends[1:])
        buffers = [_validity(values), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(joined.encode())]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    # A lone surrogate becomes a question mark, as in Java.
    plain = binaries([each.encode("utf-8", "replace") for each in texts])
    return pa.Array.from_buffers(pa.string(), len(texts), [_validity(values), *plain.buffers()[1:]])


def column_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return values as a column. They are as `json_values.value_reader` returns them."""
    validity = _validity(values)
    if kind == pa.null():
        return pa.nulls(len(values))
    if pa.types.is_struct(kind):
        children = [
            column_of([None if each is None else each[number] for each in values], field.type)
            for number, field in enumerate(kind)
        ]
        return pa.Array.from_buffers(kind, len(values), [validity], children=children)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        counts = np.fromiter((len(each) if each else 0 for each in values), np.int64, len(values))
        ends = pa.py_buffer(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32))
        items = [item for each in values if each for item in each]
        inner = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
        return pa.Array.from_buffers(kind, len(values), [validity, ends], children=[column_of(items, inner)])
    if pa.types.is_string(kind):
        return _text_column(values)
    if kind == pa.binary():
        return nullable_binaries(values)
    if pa.types.is_decimal(kind):
        raw = b"".join((each or 0).to_bytes(_DECIMAL_BYTES, "little", signed=True) for each in values)
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(raw)])
    numbers = _numbers(values, kind)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])


def _numbers(values: Sequence[Any], kind: pa.DataType) -> npt.NDArray[Any]:
    plain = [each or 0 for each in values]
    if kind == pa.bool_():
        return np.packbits(np.array(plain, np.bool_), bitorder="little")
    if kind == pa.float32():
        with np.errstate(over="ignore"):  # beyond the range of float: infinite
            return np.array(plain, np.float64).astype(np.float32)
    return np.array(plain, _FIXED.get(kind, "i8"))
