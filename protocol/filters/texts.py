"""Functions of Spark's strings, over columns of bytes. Spark does not check that a string is UTF-8."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import UsageError
from protocol.records.arrow_numpy import nullable_binaries, nullable_integers

# Java replaces an encoded surrogate, also a half one, by one character; Python by one for each byte.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
# Bytes of a character by its first byte, as in Spark's UTF8String; each invalid first byte is one character.
_WIDTHS = bytes(
    2 if 0xC2 <= byte <= 0xDF else 3 if byte >> 4 == 14 else 4 if 0xF0 <= byte <= 0xF4 else 1 for byte in range(256)
)
# Lower case letters that got an upper case one in Unicode 16, which Spark's ICU knows.
_NEW_CASES = {"\u019b": "\ua7dc", "\u0264": "\ua7cb"}


def decoded(raw: bytes) -> str:
    """Decode UTF-8 as Java does."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, raw).decode("utf-8", "replace")


def characters(raw: bytes) -> list[bytes]:
    """Split bytes into characters as Spark does: by the first byte of each."""
    pieces, at = [], 0
    while at < len(raw):
        width = _WIDTHS[raw[at]]
        pieces.append(raw[at : at + width])
        at += width
    return pieces


def length(column: pa.Array) -> pa.Array:
    """Return the number of characters."""
    if _is_ascii(column):
        return pc.binary_length(column)
    return _integers(column, lambda raw: len(raw) if raw.isascii() else len(characters(raw)))


def position(column: pa.Array, text: str) -> pa.Array:
    """Return the position of the first occurrence in characters, from 1; 0 if there is none."""
    part = text.encode()
    if _is_ascii(column):
        return _integers(column, lambda raw: raw.find(part) + 1)
    return _integers(column, lambda raw: _position(characters(raw), part))


def _position(pieces: list[bytes], part: bytes) -> int:
    if not part:
        return 1
    for index in range(len(pieces)):
        if b"".join(pieces[index : index + len(part)]).startswith(part):
            return index + 1
    return 0


def substring(column: pa.Array, start: int, count: int | None) -> pa.Array:
    """Return Spark's substring by characters."""
    return _binaries(column, lambda raw: _slice(raw if raw.isascii() else characters(raw), start, count))


def byte_substring(column: pa.Array, start: int, count: int | None) -> pa.Array:
    """Return Spark's substring of binary values."""
    return _binaries(column, lambda raw: _slice(raw, start, count))


def _slice(pieces: Any, start: int, count: int | None) -> bytes:
    begin = start - 1 if start > 0 else len(pieces) + start if start < 0 else 0
    until = len(pieces) if count is None else begin + count
    sliced = pieces[max(begin, 0) : max(until, 0)]
    return sliced if isinstance(sliced, bytes) else b"".join(sliced)


def change_case(column: pa.Array, *, upper: bool) -> pa.Array:
    """Return the texts in lower or upper case.

    Raises `UsageError` if a character is newer than the Unicode version of this Python.
    """
    if _is_ascii(column):
        kernel = pc.ascii_upper if upper else pc.ascii_lower
        return kernel(column.view(pa.string())).view(pa.binary())
    # Unlike patterns, these functions replace each byte of an encoded surrogate.
    return _binaries(column, lambda raw: _changed(raw.decode("utf-8", "replace"), upper=upper).encode())


def _changed(text: str, *, upper: bool) -> str:
    if not text.isascii():
        for character in text:
            if character > "\x7f" and unicodedata.category(character) == "Cn":
                raise UsageError(
                    f"filter: the case of {character!r} is unknown to this Python, whose Unicode is version "
                    f"{unicodedata.unidata_version}; apply lower, upper and ILIKE to the rows that were read, in "
                    "Spark with where"
                )
        if upper:
            text = "".join(_NEW_CASES.get(character, character) for character in text)
    return text.upper() if upper else text.lower()


def matches(column: pa.Array, pattern: re.Pattern[str]) -> pa.Array:
    """Return 1 where the pattern matches a part of the text, else 0."""
    search = pattern.search
    return _integers(column, lambda raw: search(decoded(raw)) is not None)


def _is_ascii(column: pa.Array) -> bool:
    if not len(column):
        return True
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    return data is None or bool((np.frombuffer(data, np.int8)[bounds[0] : bounds[1]] >= 0).all())


def _integers(column: pa.Array, function: Callable[[bytes], int]) -> pa.Array:
    return nullable_integers([None if raw is None else function(raw) for raw in column.to_pylist()], np.int32)


def _binaries(column: pa.Array, function: Callable[[bytes], bytes]) -> pa.Array:
    return nullable_binaries([None if raw is None else function(raw) for raw in column.to_pylist()])
