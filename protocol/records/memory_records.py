"""The batch headers of a Fetch reply: which offsets it holds, and where the last whole batch ends.

Cheap, so that the next Fetch can be asked for before this one is decoded. Does not check the checksums (`decode`
does) and never looks at a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import Corrupt, ProtocolError
from protocol.records.batch_header import (
    FIELD_NAMES,
    FRAME,
    HEADER_BYTES,
    LARGEST_OFFSET,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NATIVE,
    WIRE,
    checksum,
)
from protocol.records.legacy import messages_as_batches, require_message
from protocol.wire.primitives import BytesLike


@dataclass(frozen=True)
class MemoryRecords:
    """The whole record batches of one partition in one reply (`MemoryRecords` in the Java client, too).

    Attributes
    ----------
    buffer : the bytes of the reply; `decode` reads the records from it, so it must stay unchanged until then.
    headers : one row per batch, in the order of the log, dtype `header.NATIVE`. A message of magic 0 or 1 is a batch
        of its own, whose fields `legacy.messages_as_batches` fills.
    next_offset : the offset after the last batch, where the next Fetch starts; None without a whole batch.
    whole_bytes : how many bytes of `buffer` the whole batches take; a cut one follows them, or nothing.
    partial_bytes : how many bytes the batch that was cut at the end announces (at least); 0 if none was cut.
    has_messages : whether some rows are messages.
    """

    buffer: memoryview
    headers: npt.NDArray[Any]
    next_offset: int | None
    whole_bytes: int
    partial_bytes: int
    has_messages: bool = False

    def __len__(self) -> int:
        return len(self.headers)

    def runs(self, batches: npt.NDArray[np.int64]) -> list[tuple[bool, npt.NDArray[np.int64]]]:
        """The same rows, cut where record batches and messages meet; True stands for messages."""
        if not self.has_messages:
            return [(False, batches)]
        is_message = self.headers["magic"] != MAGIC
        cuts = np.flatnonzero(np.diff(is_message[batches])) + 1
        return [(bool(is_message[run].any()), run) for run in np.split(batches, cuts)]

    def batch(self, index: int) -> memoryview:
        """One whole batch, header and records."""
        header = self.headers[index]
        start = int(header["position"])
        return self.buffer[start : start + LOG_OVERHEAD_BYTES + int(header["length"])]

    def bytes_per_offset(self, position: int) -> float:
        """What an offset takes in this reply, asked for from `position` on; with the cut batch, if its header is whole.

        Offsets without records, which the cleaner and aborted transactions leave, count: ranges are made of offsets.
        Needs a whole batch.
        """
        assert self.next_offset is not None
        first, until, total_bytes = position, self.next_offset, self.whole_bytes
        if self.headers["magic"][0] == MAGIC:
            # The batch may begin before the position; where the cleaner was, after it. Old messages do not say.
            first = min(first, int(self.headers["base_offset"][0]))
        cut = self.buffer[self.whole_bytes :]
        if len(cut) >= HEADER_BYTES:
            header = np.frombuffer(cut, WIRE, 1)[0]
            last = int(header["base_offset"]) + int(header["last_offset_delta"])
            if header["magic"] == MAGIC and last >= until:
                until = last + 1
                total_bytes += self.partial_bytes
        return total_bytes / (until - first)

    def located(self, error: ProtocolError, index: int, where: str) -> ProtocolError:
        """The same error, saying which batch it is about."""
        base_offset = int(self.headers["base_offset"][index])
        return type(error)(
            f"{where}: the record batch at offset {base_offset} cannot be read: {error}", base_offset=base_offset
        )

    def verify_checksum(self, index: int, where: str) -> None:
        """Raises `Corrupt` when a batch is not the one that its producer wrote."""
        found, stated = checksum(self.batch(index)), int(self.headers["crc"][index])
        if found != stated:
            raise Corrupt(
                f"{where}: the record batch at offset {self.headers['base_offset'][index]} is corrupt: its CRC-32C is "
                f"{found:08x}, its header says {stated:08x}. Fetch it again, or from another replica; "
                "check.crcs=false reads it as it is",
                settings=("check.crcs",),
            )


def read_batch_headers(buffer: BytesLike, where: str = "record batches") -> MemoryRecords:
    """Reads the batch headers in `buffer`, the `records` of one partition in a Fetch reply.

    Raises `Corrupt`, with a message that starts with `where` ("orders-3"), for a header that cannot be one.
    """
    view = memoryview(buffer).cast("B")
    total = len(view)
    position = partial_bytes = 0
    positions: list[int] = []
    short = False
    while position < total:
        if position + LOG_OVERHEAD_BYTES > total:
            partial_bytes = HEADER_BYTES
            break
        base_offset, length = FRAME.unpack_from(view, position)
        if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            require_message(view, position, length, base_offset, where)
            short = True
        size_bytes = LOG_OVERHEAD_BYTES + length
        if position + size_bytes > total:
            partial_bytes = size_bytes
            break
        positions.append(position)
        position += size_bytes
    headers = _headers(view, positions, short)
    has_messages = bool((headers["magic"] != MAGIC).any())
    if has_messages:
        messages_as_batches(headers, view, where)
    _check(headers, where)
    next_offset = int(headers["last_offset"][-1]) + 1 if positions else None
    return MemoryRecords(view, headers, next_offset, position, partial_bytes, has_messages)


def _headers(view: memoryview, positions: list[int], short: bool) -> npt.NDArray[Any]:
    rows: list[BytesLike] = [view[at : at + HEADER_BYTES] for at in positions]
    if short:
        # Messages of magic 0 and 1 can be shorter than a header, and stand at the end of the buffer.
        rows = [bytes(row).ljust(HEADER_BYTES, b"\0") for row in rows]
    raw = np.frombuffer(b"".join(rows), WIRE)
    headers = np.empty(len(raw), NATIVE)
    for name in FIELD_NAMES:
        headers[name] = raw[name]
    headers["position"] = positions
    headers["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    return headers


def _check(headers: npt.NDArray[Any], where: str) -> None:
    for what, wrong in (
        ("base_offset", (headers["base_offset"] < 0) | (headers["base_offset"] > LARGEST_OFFSET)),
        ("last_offset_delta", headers["last_offset_delta"] < 0),
        ("count", headers["count"] < 0),
    ):
        if wrong.any():
            row = headers[int(wrong.argmax())]
            raise Corrupt(f"{where}: the record batch at offset {row['base_offset']} has {what} {row[what]}")
