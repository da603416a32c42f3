"""The header of a record batch (magic 2): its layout, attribute bits and checksum.

Handles a header only, not the records after it. `memory_records` and `decode` read it, `encode` writes it.
"""

from __future__ import annotations

import struct

import numpy as np
from crc32c import crc32c

from protocol.wire.primitives import BytesLike

MAGIC = 2

_FIELDS = (
    ("base_offset", "i8"),
    ("length", "i4"),
    ("partition_leader_epoch", "i4"),
    ("magic", "i1"),
    ("crc", "u4"),
    ("attributes", "i2"),
    ("last_offset_delta", "i4"),
    ("first_timestamp_ms", "i8"),
    ("max_timestamp_ms", "i8"),
    ("producer_id", "i8"),
    ("producer_epoch", "i2"),
    ("base_sequence", "i4"),
    ("count", "i4"),
)
FIELD_NAMES = tuple(name for name, _ in _FIELDS)
WIRE = np.dtype([(name, ">" + kind) for name, kind in _FIELDS])
"""The header as stored in the log: big-endian, packed."""
NATIVE = np.dtype([*_FIELDS, ("position", "i8"), ("last_offset", "i8")])
"""The header in native byte order, plus the batch's position in its buffer and its last offset."""

HEADER_BYTES = WIRE.itemsize
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: the bytes that `length` does not count."""
MAGIC_AT = 16
CRC_AT = 17
CHECKED_FROM = 21
"""The checksum covers the bytes from the attributes to the end of the batch."""
SMALLEST_RECORD_BYTES = 7
LARGEST_OFFSET = 2**62

LAYOUT = struct.Struct(">qiibIhiqqqhii")
FRAME = struct.Struct(">qi")

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


def checksum(batch: BytesLike) -> int:
    """Return the CRC-32C of a whole batch, as its header must state it."""
    value: int = crc32c(memoryview(batch)[CHECKED_FROM:])
    return value
