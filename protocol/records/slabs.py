"""Record batches, checked and decompressed, some thousand records at a time and side by side in one byte array.

Small batches are put together, since a NumPy call costs the same for one record as for a hundred. Never holds more
than one slab of decompressed records. Used by `decode`; knows batches, not records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from protocol.errors import Corrupt
from protocol.records.compression import Bytes, Codec, decompress
from protocol.records.header import (
    CHECKED_FROM,
    COMPRESSION_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    SMALLEST_RECORD_BYTES,
)
from protocol.records.scan import Scan

SLAB_ROWS = 16_000
SLAB_BYTES = 4 << 20
_SCRATCH_BYTES = 16 << 20
# Memory that was touched before is several times faster than fresh pages. Lists hand out and take back atomically.
_idle_scratch: list[Bytes] = []
_MOST_IDLE = 4


@dataclass
class Slab:
    """The records of `batches` (rows of the scan's headers), each in data[begins[i]:ends[i]]."""

    data: Bytes
    batches: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: int, begin: int, end: int, count: int) -> None:
        self.batches.append(batch)
        self.begins.append(begin)
        self.ends.append(end)
        self.counts.append(count)
        self.rows += count

    def only(self, index: int) -> Slab:
        """One of its batches, by itself."""
        one = Slab(self.data)
        one.add(self.batches[index], self.begins[index], self.ends[index], self.counts[index])
        return one

    def takes(self, count: int) -> bool:
        """Whether it stays a slab of some thousand records with a batch of `count` more."""
        return not self.full and (not self.batches or self.rows + count <= SLAB_ROWS * 3 // 2)

    @property
    def full(self) -> bool:
        return bool(self.batches) and (self.rows >= SLAB_ROWS or self.ends[-1] - self.begins[0] >= SLAB_BYTES)


def slabs(
    scan: Scan, batches: npt.NDArray[np.int64], max_decompressed_bytes: int, check_crc: bool, where: str
) -> Iterator[Slab]:
    """The given batches in order. A slab's bytes are valid until the next one is asked for.

    Raises `Corrupt` (checksum, codec, a count of records that cannot be) and `DecompressedTooLarge`.
    """
    headers = scan.headers[batches]
    columns = (headers[name].tolist() for name in ("attributes", "position", "length", "count", "crc"))
    raw = np.frombuffer(scan.buffer, np.uint8)
    scratch = _idle_scratch.pop() if _idle_scratch else np.empty(_SCRATCH_BYTES, np.uint8)
    slab = Slab(raw)
    try:
        for batch, attributes, start, length, count, crc in zip(batches.tolist(), *columns, strict=True):
            if not slab.takes(count):
                yield slab
                slab = Slab(raw)
            data, begin, end = raw, start + HEADER_BYTES, start + LOG_OVERHEAD_BYTES + length
            if check_crc and crc32c(scan.buffer[start + CHECKED_FROM : end]) != crc:
                scan.verify_checksum(batch, where)
            codec = attributes & COMPRESSION_MASK
            try:
                if codec != Codec.NONE:
                    used = slab.ends[-1] if slab.data is scratch else 0
                    unpacked = decompress(codec, raw[begin:end].data, scratch[used:], max_decompressed_bytes)
                    data, begin = (scratch, used) if np.may_share_memory(unpacked, scratch) else (unpacked, 0)
                    end = begin + len(unpacked)
                if count * SMALLEST_RECORD_BYTES > end - begin:
                    raise Corrupt(f"{count} records cannot be in {end - begin} bytes")
            except Corrupt as error:
                raise scan.located(error, batch, where) from error
            if slab.data is not data:
                if slab.batches:
                    yield slab
                slab = Slab(data)
            slab.add(batch, begin, end, count)
        if slab.batches:
            yield slab
    finally:
        if len(_idle_scratch) < _MOST_IDLE:
            _idle_scratch.append(scratch)
