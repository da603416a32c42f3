"""Read the batch headers of a Fetch response: its offsets, and the end of the last whole batch.

Cheap, so that the next Fetch can be sent before this one is decoded. Does not verify checksums (`decode` does) and
never reads a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from protocol.errors import Corrupt, ProtocolError
from protocol.records.batch_header import (
    CHECKED_FROM,
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
from protocol.records.legacy import fill_message_headers, require_message
from protocol.wire.primitives import BytesLike


@dataclass(frozen=True)
class MemoryRecords:
    """The whole record batches of one partition in one Fetch response (as `MemoryRecords` in the Java client).

    `buffer`: bytes of the response. `decode` reads the records from it, so it must not change before that.
    `headers`: one row per batch, in log order, of dtype `batch_header.NATIVE`. A message of magic 0 or 1 is a batch;
    `legacy.fill_message_headers` fills its fields.
    `next_offset`: the offset after the last batch, where the next Fetch starts; None without a whole batch.
    `whole_bytes`: bytes of `buffer` that the whole batches take. A partial batch may follow.
    `partial_bytes`: size (at least) of the partial batch at the end, as its header states it; 0 without one.
    `has_messages`: some rows are messages of magic 0 or 1.
    """

    buffer: memoryview
    headers: npt.NDArray[Any]
    next_offset: int | None
    whole_bytes: int
    partial_bytes: int
    has_messages: bool = False

    def __len__(self) -> int:
        return len(self.headers)

    def split_by_format(self, batches: npt.NDArray[np.int64]) -> list[tuple[bool, npt.NDArray[np.int64]]]:
        """Split `batches` where record batches and messages meet; True marks a run of messages."""
        if not self.has_messages:
            return [(False, batches)]
        is_message = self.headers["magic"] != MAGIC
        cuts = np.flatnonzero(np.diff(is_message[batches])) + 1
        return [(bool(is_message[run].any()), run) for run in np.split(batches, cuts)]

    def batch(self, index: int) -> memoryview:
        """Return the bytes of a whole batch, header and records."""
        header = self.headers[index]
        start = int(header["position"])
        return self.buffer[start : start + LOG_OVERHEAD_BYTES + int(header["length"])]

    def bytes_per_offset(self, position: int) -> float:
        """Estimate the bytes per offset of this response, which was fetched from `position`.

        Includes the partial batch if its header is whole. Counts offsets without records (compacted, or of aborted
        transactions) too, because ranges consist of offsets. Requires a whole batch.
        """
        assert self.next_offset is not None
        first, until, total_bytes = position, self.next_offset, self.whole_bytes
        if self.headers["magic"][0] == MAGIC:
            # The first batch may begin before the position, or after it in a compacted log. A wrapper message does
            # not state its base offset.
            first = min(first, int(self.headers["base_offset"][0]))
        cut = self.buffer[self.whole_bytes :]
        if len(cut) >= HEADER_BYTES:
            header = np.frombuffer(cut, WIRE, 1)[0]
            last = int(header["base_offset"]) + int(header["last_offset_delta"])
            if header["magic"] == MAGIC and last >= until:
                until = last + 1
                total_bytes += self.partial_bytes
        return total_bytes / (until - first)

    def with_batch_offset(self, error: ProtocolError, index: int, where: str) -> ProtocolError:
        """Return the same error with the batch's offset in its message."""
        base_offset = int(self.headers["base_offset"][index])
        return type(error)(
            f"{where}: the record batch at offset {base_offset} cannot be read: {error}", base_offset=base_offset
        )

    def first(self, count: int) -> MemoryRecords:
        """Return the first `count` batches; the other fields still describe the whole reply."""
        return replace(self, headers=self.headers[:count])

    def before(self, end_offset: int) -> MemoryRecords:
        """Return the batches that may have records before an offset.

        A batch may begin where the one before it ends, and the first one anywhere: its own base offset is not to be
        trusted if a damaged bit makes a message, whose base offset is not stored, look like a batch. Only batches at
        the end are left out: in a damaged log, offsets may go backwards.
        """
        begins = np.minimum(self.headers["base_offset"][1:], self.headers["last_offset"][:-1] + 1)
        (later,) = np.nonzero(begins < end_offset)
        return self.first(int(later[-1]) + 2 if len(later) else 1)

    def first_wrong_checksum(self, first_offset: int) -> int | None:
        """Return the index of the first batch whose checksum is wrong, from an offset on; messages have another one.

        A batch reaches up to the next one, or to its own last offset; before the check, either may be damaged. Beside
        messages, whose base offsets may be computed from it, all batches are checked.
        """
        checked = self.headers["magic"] == MAGIC
        if not self.has_messages:
            next_begins, last_offset = self.headers["base_offset"][1:], self.headers["last_offset"][:-1]
            checked[:-1] &= (next_begins > first_offset) | (last_offset >= first_offset)
        (batches,) = np.nonzero(checked)
        headers = self.headers[batches]
        begins = (headers["position"] + CHECKED_FROM).tolist()
        ends = (headers["position"] + LOG_OVERHEAD_BYTES + headers["length"]).tolist()
        checksums = [crc32c(self.buffer[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        wrong = np.array(checksums, np.int64) != headers["crc"]
        return int(batches[wrong.argmax()]) if wrong.any() else None

    def verify_checksum(self, index: int, where: str) -> None:
        """Raise `Corrupt` if the checksum of a batch is wrong."""
        computed, stated = checksum(self.batch(index)), int(self.headers["crc"][index])
        if computed != stated:
            raise Corrupt(
                f"{where}: the record batch at offset {self.headers['base_offset'][index]} is corrupt: its CRC-32C is "
                f"{computed:08x}, its header says {stated:08x}. Fetch it again, or from another replica; "
                "check.crcs=false reads it unverified",
                settings=("check.crcs",),
            )


def read_batch_headers(buffer: BytesLike, where: str = "record batches") -> MemoryRecords:
    """Read the batch headers in `buffer`.

    `buffer`: `records` of one partition in a Fetch response.
    `where`: start of error messages, for example "orders-3".
    Raises `Corrupt`: the first header is invalid. Another one ends the result: the next reply begins with that batch,
    and the batches before it are read.
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
            try:
                require_message(view, position, length, base_offset, where)
            except Corrupt:
                if not positions:
                    raise
                break
            short = True
        size_bytes = LOG_OVERHEAD_BYTES + length
        if position + size_bytes > total:
            partial_bytes = size_bytes
            break
        positions.append(position)
        position += size_bytes
    headers = _headers(view, positions, short)
    magic, base_offset = headers["magic"], headers["base_offset"]
    headers = _before_invalid(headers, "magic", (magic < 0) | (magic > MAGIC), where)
    headers = _before_invalid(headers, "base_offset", (base_offset < 0) | (base_offset > LARGEST_OFFSET), where)
    has_messages = bool((headers["magic"] != MAGIC).any())
    if has_messages:
        fill_message_headers(headers, view)
    for name in ("last_offset_delta", "count"):
        headers = _before_invalid(headers, name, headers[name] < 0, where)
    if len(headers) < len(positions):
        position, partial_bytes = positions[len(headers)], 0
    next_offset = int(headers["last_offset"][-1]) + 1 if positions else None
    complete = view if partial_bytes else view[:position]
    return MemoryRecords(complete, headers, next_offset, position, partial_bytes, has_messages)


def _headers(view: memoryview, positions: list[int], short: bool) -> npt.NDArray[Any]:
    rows: list[BytesLike] = [view[at : at + HEADER_BYTES] for at in positions]
    if short:
        # Messages of magic 0 and 1 can be shorter than a header, and be the last in the buffer.
        rows = [bytes(row).ljust(HEADER_BYTES, b"\0") for row in rows]
    raw = np.frombuffer(b"".join(rows), WIRE)
    headers = np.empty(len(raw), NATIVE)
    for name in FIELD_NAMES:
        headers[name] = raw[name]
    headers["position"] = positions
    headers["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    return headers


def _before_invalid(
    headers: npt.NDArray[Any], name: str, invalid: npt.NDArray[np.bool_], where: str
) -> npt.NDArray[Any]:
    """Return the rows before the first invalid one; raise `Corrupt` if there are none."""
    invalid = invalid[: len(headers)]
    if not invalid.any():
        return headers
    if index := int(invalid.argmax()):
        return headers[:index]
    raise Corrupt(f"{where}: the record batch at offset {headers['base_offset'][0]} has {name} {headers[name][0]}")
