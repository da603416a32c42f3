"""Encode the default of a field, which a schema has in JSON.

Source: the Avro specification 1.12, "Complex Types", table of field default values.
"""

from __future__ import annotations

import struct
from typing import Any

from protocol.schemas.avro_schema import NO_DEFAULT, AvroType
from protocol.wire.primitives import Writer


def encode_default(avro: AvroType, value: Any) -> bytes:
    """Return the bytes of a default. Raises `TypeError` or `ValueError` if it has another type."""
    kind = avro.kind
    if kind == "union":
        # Since Avro 1.12 the default may match any branch; before, only the first.
        for number, branch in enumerate(avro.children):
            try:
                return zigzag_varint(number) + encode_default(branch, value)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
                continue
        raise ValueError
    if kind == "null":
        _require(value is None)
        return b""
    if kind == "boolean":
        _require(isinstance(value, bool))
        return bytes([value])
    if kind in ("int", "long"):
        _require(isinstance(value, int) and not isinstance(value, bool))
        limit = 2 ** (31 if kind == "int" else 63)
        _require(-limit <= value < limit)
        return zigzag_varint(value)
    if kind in ("float", "double"):
        _require(isinstance(value, (int, float)) and not isinstance(value, bool))
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind == "record":
        return b"".join(
            encode_default(
                field.type, value[field.name] if field.default is NO_DEFAULT else value.get(field.name, field.default)
            )
            for field in avro.fields
        )
    if kind == "array":
        _require(isinstance(value, list))
        items = b"".join(encode_default(avro.children[0], element) for element in value)
        return (zigzag_varint(len(value)) + items if value else b"") + b"\0"
    if kind == "map":
        items = b"".join(
            _sized(key.encode()) + encode_default(avro.children[0], element) for key, element in value.items()
        )
        return (zigzag_varint(len(value)) + items if value else b"") + b"\0"
    _require(isinstance(value, str))
    if kind == "enum":
        return zigzag_varint(avro.symbols.index(value))
    if kind == "string":
        return _sized(value.encode())
    # Each character is a byte.
    raw = value.encode("latin-1")
    _require(kind == "bytes" or len(raw) == avro.size_bytes)
    return _sized(raw) if kind == "bytes" else raw


def _require(condition: bool) -> None:
    if not condition:
        raise TypeError


def _sized(raw: bytes) -> bytes:
    return zigzag_varint(len(raw)) + raw


def zigzag_varint(number: int) -> bytes:
    """Return a number as Avro's int and long."""
    writer = Writer()
    writer.uvarint((number << 1) ^ (number >> 63))
    return b"".join(writer.parts())
