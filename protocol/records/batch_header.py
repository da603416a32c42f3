"""The header of a record batch (magic 2): its layout, the bits of its attributes, its checksum.

Knows one header and nothing of the records behind it. Used by `memory_records` and `decode` on the way in, by `encode`
on the way out.
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
"""The header as it stands in the log: big-endian, packed."""
NATIVE = np.dtype([*_FIELDS, ("position", "i8"), ("last_offset", "i8")])
"""The same in this machine's byte order, with where the batch starts in its buffer and the last offset it covers."""

HEADER_BYTES = WIRE.itemsize
LOG_OVERHEAD_BYTES = 12
"""Base offset and length: what stands before the bytes that `length` counts."""
MAGIC_AT = 16
CRC_AT = 17
CHECKED_FROM = 21
"""The checksum covers everything from the attributes to the end of the batch."""
SMALLEST_RECORD_BYTES = 7
LARGEST_OFFSET = 2**62

LAYOUT = struct.Struct(">qiibIhiqqqhii")
FRAME = struct.Struct(">qi")

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


def checksum(batch: BytesLike) -> int:
    """CRC-32C of one whole batch, as its header should have it."""
    value: int = crc32c(memoryview(batch)[CHECKED_FROM:])
    return value
