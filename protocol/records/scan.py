"""What a Fetch reply holds, from the batch headers alone: which offsets, and where the last whole batch ends.

Cheap, so that the next Fetch can be asked for before this one is decoded. Does not check the checksums (`decode`
does) and never looks at a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt, DecompressedTooLarge, ProtocolError, UnsupportedVersion
from protocol.records.header import (
    FIELD_NAMES,
    FRAME,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_AT,
    NATIVE,
    WIRE,
    checksum,
)
from protocol.wire.primitives import BytesLike

_LARGEST_OFFSET = 2**62


@dataclass(frozen=True)
class Scan:
    """The whole record batches of one partition in one reply.

    Attributes
    ----------
    buffer : the bytes scanned; `decode` reads the records from it, so it must stay unchanged until then.
    headers : one row per batch, in the order of the log, dtype `header.NATIVE`.
    next_offset : the offset after the last batch, where the next Fetch starts; None without a whole batch.
    partial_bytes : how many bytes the batch that was cut at the end announces (at least); 0 if none was cut.
    """

    buffer: memoryview
    headers: npt.NDArray[Any]
    next_offset: int | None
    partial_bytes: int

    def __len__(self) -> int:
        return len(self.headers)

    def batch(self, index: int) -> memoryview:
        """One whole batch, header and records."""
        header = self.headers[index]
        start = int(header["position"])
        return self.buffer[start : start + LOG_OVERHEAD_BYTES + int(header["length"])]

    def located(self, error: ProtocolError, index: int, where: str) -> ProtocolError:
        """The same error, saying which batch it is about."""
        base_offset = int(self.headers["base_offset"][index])
        hint = "; kafka.max.decompressed.batch.bytes raises the cap" if isinstance(error, DecompressedTooLarge) else ""
        return type(error)(
            f"{where}: the record batch at offset {base_offset} cannot be read: {error}{hint}", base_offset=base_offset
        )

    def verify_checksum(self, index: int, where: str) -> None:
        """Raises `Corrupt` when a batch is not the one that its producer wrote."""
        found, stated = checksum(self.batch(index)), int(self.headers["crc"][index])
        if found != stated:
            raise Corrupt(
                f"{where}: the record batch at offset {self.headers['base_offset'][index]} is corrupt: its CRC-32C is "
                f"{found:08x}, its header says {stated:08x}. Fetch it again, or from another replica; "
                "kafka.check.crcs=false reads it as it is"
            )


def scan(buffer: BytesLike, where: str = "record batches") -> Scan:
    """Reads the batch headers in `buffer`, the `records` of one partition in a Fetch reply.

    Raises `Corrupt` for a header that cannot be one, and `UnsupportedVersion` for a magic that is not read here;
    both messages start with `where` ("orders-3").
    """
    view = memoryview(buffer).cast("B")
    total = len(view)
    position = partial_bytes = 0
    positions: list[int] = []
    while position < total:
        if position + LOG_OVERHEAD_BYTES > total:
            partial_bytes = HEADER_BYTES
            break
        base_offset, length = FRAME.unpack_from(view, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            _refuse_short(view, position, length, base_offset, where)
        size_bytes = LOG_OVERHEAD_BYTES + length
        if position + size_bytes > total:
            partial_bytes = size_bytes
            break
        positions.append(position)
        position += size_bytes
    headers = _headers(view, positions, where)
    next_offset = int(headers["last_offset"][-1]) + 1 if positions else None
    return Scan(view, headers, next_offset, partial_bytes)


def _headers(view: memoryview, positions: list[int], where: str) -> npt.NDArray[Any]:
    raw = np.frombuffer(b"".join([view[at : at + HEADER_BYTES] for at in positions]), WIRE)
    headers = np.empty(len(raw), NATIVE)
    for name in FIELD_NAMES:
        headers[name] = raw[name]
    headers["position"] = positions
    headers["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    for what, wrong in (
        ("magic", headers["magic"] != MAGIC),
        ("base_offset", (headers["base_offset"] < 0) | (headers["base_offset"] > _LARGEST_OFFSET)),
        ("last_offset_delta", headers["last_offset_delta"] < 0),
        ("count", headers["count"] < 0),
    ):
        if wrong.any():
            row = headers[int(wrong.argmax())]
            if what == "magic":
                raise _unread_magic(int(row["magic"]), int(row["base_offset"]), where)
            raise Corrupt(f"{where}: the record batch at offset {row['base_offset']} has {what} {row[what]}")
    return headers


def _refuse_short(view: memoryview, position: int, length: int, base_offset: int, where: str) -> None:
    """Raises for a batch too short for a header; messages of magic 0 and 1 can be that short."""
    if length > MAGIC_AT - LOG_OVERHEAD_BYTES and position + MAGIC_AT < len(view) and view[position + MAGIC_AT] < MAGIC:
        raise _unread_magic(view[position + MAGIC_AT], base_offset, where)
    raise Corrupt(f"{where}: the record batch at offset {base_offset} announces {length} bytes, less than its header")


def _unread_magic(magic: int, base_offset: int, where: str) -> Exception:
    if magic in (0, 1):
        return UnsupportedVersion(
            f"{where}: offset {base_offset} is in a message set of magic {magic} (written before Kafka 0.11, or with "
            "message.format.version below 0.11); only record batches (magic 2) are read"
        )
    return Corrupt(f"{where}: the record batch at offset {base_offset} has magic {magic}; known are 0 to {MAGIC}")
