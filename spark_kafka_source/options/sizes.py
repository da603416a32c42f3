"""Sizes in options, in bytes. Pure."""

from __future__ import annotations

import re

from protocol.property_kinds import MAX_INT64

# The units of Spark's JavaUtils.byteStringAsBytes.
_UNITS_BYTES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_SIZE = re.compile(r"([0-9]{1,19})([kmgtp]?)b?")


def size_bytes(text: str) -> int:
    """Parse `100m`, `1g`, `512kb`, … or bare bytes, as Spark does; raise `ValueError` below 1 byte."""
    match = _SIZE.fullmatch(text.strip().lower())
    if not match:
        raise ValueError("not a size")
    size = int(match[1]) * _UNITS_BYTES[match[2]]
    if not 1 <= size <= MAX_INT64:
        raise ValueError("out of range")
    return size
