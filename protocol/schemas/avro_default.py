"""Encode the default of a field, which a schema has in JSON.

Source: the Avro specification 1.12, "Complex Types", table of field default values.
"""

from __future__ import annotations

import struct
from itertools import repeat
from types import NoneType
from typing import Any

from protocol.schemas.avro_schema import NO_DEFAULT, AvroType
from protocol.wire.primitives import Writer

# The type in JSON; of all others text, in which each character of bytes and fixed is a byte.
_TYPES: dict[str, Any] = {
    "null": NoneType,
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
}
_LIMITS = {"int": 2**31, "long": 2**63}
_STORED = {"float": "<f", "double": "<d"}


def encode_default(avro: AvroType, value: Any) -> bytes:
    """Return the bytes of a default. Raises `ValueError`: it has another type; the text says which."""
    try:
        return _encoded(avro, value)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        raise ValueError(f"a default that is no {avro.text}: {value!r}") from None


def _encoded(avro: AvroType, value: Any) -> bytes:
    kind = avro.kind
    if kind in _NESTED:
        return _NESTED[kind](avro, value)
    if not isinstance(value, _TYPES.get(kind, str)) or (isinstance(value, bool) and kind != "boolean"):
        raise TypeError
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in _LIMITS:
        if not -_LIMITS[kind] <= value < _LIMITS[kind]:
            raise ValueError
        return zigzag_varint(value)
    if kind in _STORED:
        return struct.pack(_STORED[kind], value)
    if kind == "enum":
        return zigzag_varint(avro.symbols.index(value))
    raw: bytes = value.encode("utf-8" if kind == "string" else "latin-1")
    if kind == "fixed" and len(raw) != avro.size_bytes:
        raise ValueError
    return raw if kind == "fixed" else _sized(raw)


def _union(avro: AvroType, value: Any) -> bytes:
    # Since Avro 1.12 the default may match any branch; before, only the first.
    for number, branch in enumerate(avro.children):
        try:
            return zigzag_varint(number) + encode_default(branch, value)
        except ValueError:
            continue
    raise ValueError


def _record(avro: AvroType, value: Any) -> bytes:
    members = {field.name: field.default for field in avro.fields if field.default is not NO_DEFAULT} | value
    return b"".join(_encoded(field.type, members[field.name]) for field in avro.fields)


def _items(avro: AvroType, value: Any) -> bytes:
    if not isinstance(value, list if avro.kind == "array" else dict):
        raise TypeError
    if not value:
        return b"\0"
    keys = map(_sized, map(str.encode, value)) if isinstance(value, dict) else repeat(b"")
    elements = value.values() if isinstance(value, dict) else value
    items = (key + _encoded(avro.children[0], element) for key, element in zip(keys, elements, strict=False))
    return zigzag_varint(len(value)) + b"".join(items) + b"\0"


_NESTED = {"union": _union, "record": _record, "array": _items, "map": _items}


def _sized(raw: bytes) -> bytes:
    return zigzag_varint(len(raw)) + raw


def zigzag_varint(number: int) -> bytes:
    """Return a number as Avro's int and long."""
    writer = Writer()
    writer.uvarint((number << 1) ^ (number >> 63))
    return b"".join(writer.parts())
