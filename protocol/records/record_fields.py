"""Find the bounds of every field from the bounds of records, vectorised over the records of one chunk.

Implements the layout of a record (magic 2) and checks that its fields fill it exactly. Copies no payload. Used by
`decode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt
from protocol.records.varints import Bytes, Integers, Positions, read_varints

_ATTRIBUTES_BYTES = 1


@dataclass
class RecordFields:
    """One row per record; positions refer to the bytes that were read. A null has length -1."""

    offset_delta: Integers
    timestamp_delta: Integers
    key_at: Positions
    key_length: Integers
    value_at: Positions
    value_length: Integers
    headers_at: Positions
    header_count: Integers
    ends: Positions

    def select(self, rows: Any) -> RecordFields:
        """Return the given rows: a slice or an array of row numbers."""
        return RecordFields(**{name: column[rows] for name, column in vars(self).items()})

    def __len__(self) -> int:
        return len(self.ends)


def read_fields(data: Bytes, starts: Positions, ends: Positions) -> RecordFields:
    """Read the fields of the records `data[starts[i]:ends[i]]`.

    Raises
    ------
    Corrupt
        The fields of a record do not fill it exactly.
    """
    _, at = read_varints(data, starts)
    at += _ATTRIBUTES_BYTES
    timestamp_delta, at = read_varints(data, at, bits=64)
    offset_delta, at = read_varints(data, at)
    key_length, key_at = read_varints(data, at)
    value_length, value_at = read_varints(data, _end(key_at, key_length, ends, "key"))
    header_count, headers_at = read_varints(data, _end(value_at, value_length, ends, "value"))
    bare = header_count == 0
    wrong = (headers_at > ends) | (header_count < 0) | (bare & (headers_at != ends))
    if wrong.any():
        raise Corrupt(f"the fields of the record at byte {starts[int(wrong.argmax())]} do not fill it exactly")
    return RecordFields(
        offset_delta, timestamp_delta, key_at, key_length, value_at, value_length, headers_at, header_count, ends
    )


def _end(at: Positions, length: Integers, ends: Positions, what: str) -> Positions:
    """Return the end of a nullable field."""
    smallest = length.min() if len(length) else 0
    if smallest < -1:
        raise Corrupt(f"a {what} of length {smallest}")
    end: npt.NDArray[np.int64] = at + (np.maximum(length, 0) if smallest < 0 else length)
    if (end > ends).any():
        raise Corrupt(f"a {what} is longer than its record")
    return end
