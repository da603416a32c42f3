"""A simple reader and writer of record batches: one record, one byte after the other.

The reference for the vectorised code. Slow on purpose, and shares no code with it except the header's field names.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lz4.frame
import pyarrow as pa
from crc32c import crc32c

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32


@dataclass(frozen=True)
class Record:
    """One record; offset and timestamp are relative to its batch."""

    value: bytes | None = b"value"
    key: bytes | None = None
    offset_delta: int = 0
    timestamp_delta: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """The content of a record batch. `count` and `last_offset_delta` follow from the records unless given."""

    records: Sequence[Record] = ()
    base_offset: int = 0
    codec: str = "none"
    flags: int = 0
    first_timestamp: int = 1_700_000_000_000
    max_timestamp: int = 1_700_000_100_000
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    last_offset_delta: int | None = None
    count: int | None = None
    magic: int = 2

    @property
    def last_offset(self) -> int:
        """Offset of the last record, also of one that the log cleaner removed."""
        if self.last_offset_delta is not None:
            return self.base_offset + self.last_offset_delta
        return self.base_offset + (self.records[-1].offset_delta if self.records else 0)

    def timestamp_of(self, record: Record) -> int:
        """Return a record's timestamp: its own, or that of the append."""
        appended = bool(self.flags & LOG_APPEND_TIME)
        return self.max_timestamp if appended else self.first_timestamp + record.timestamp_delta


def varint(value: int) -> bytes:
    """Encode a zigzag varint."""
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def nullable(value: bytes | None) -> bytes:
    """Encode bytes with their length; None has the length -1."""
    return varint(-1) if value is None else varint(len(value)) + value


def write_record(record: Record) -> bytes:
    """Encode a record with its length."""
    body = b"\x00" + varint(record.timestamp_delta) + varint(record.offset_delta)
    body += nullable(record.key) + nullable(record.value) + varint(len(record.headers))
    for key, value in record.headers:
        body += nullable(key.encode()) + nullable(value)
    return varint(len(body)) + body


def compress(codec: str, data: bytes) -> bytes:
    """Compress a records section."""
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "lz4":
        return bytes(lz4.frame.compress(data, block_linked=False))
    return bytes(pa.Codec(codec).compress(data))


def write_batch(batch: Batch, records: bytes | None = None) -> bytes:
    """Encode a batch; `records` replaces its uncompressed records section."""
    if records is None:
        records = b"".join(map(write_record, batch.records))
    return sealed(batch, compress(batch.codec, records))


def sealed(batch: Batch, section: bytes) -> bytes:
    """Encode a batch with a records section that is already compressed."""
    checked = struct.pack(
        ">hiqqqhii",
        batch.flags | CODECS[batch.codec],
        batch.last_offset - batch.base_offset,
        batch.first_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records) if batch.count is None else batch.count,
    )
    header = struct.pack(">ibI", -1, batch.magic, crc32c(checked + section)) + checked + section
    return struct.pack(">qi", batch.base_offset, len(header)) + header


def sequence(values: Iterable[bytes | None], **fields: Any) -> Batch:
    """Return a batch of records with these values and consecutive offsets."""
    return Batch([Record(value, offset_delta=delta) for delta, value in enumerate(values)], **fields)


def marker(base_offset: int, producer_id: int, *, commit: bool, empty: bool = False) -> Batch:
    """Return the control batch that ends a transaction; `empty` as the log cleaner leaves it."""
    key = struct.pack(">hh", 0, int(commit))
    records = [] if empty else [Record(struct.pack(">hi", 0, 0), key)]
    return Batch(records, base_offset, flags=TRANSACTIONAL | CONTROL, producer_id=producer_id)


def rows(batches: Iterable[Batch]) -> Iterator[dict[str, Any]]:
    """Yield the records of data batches as a consumer receives them, one dict per record."""
    for batch in batches:
        for record in batch.records:
            yield {
                "key": record.key,
                "value": record.value,
                "offset": batch.base_offset + record.offset_delta,
                "timestamp_ms": batch.timestamp_of(record),
                "timestamp_type": int(bool(batch.flags & LOG_APPEND_TIME)),
                "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
            }


def committed(batches: Sequence[Batch], aborted: Iterable[Mapping[str, int]]) -> list[Batch]:
    """Return the data batches that a read_committed consumer receives, by Kafka's definition."""
    visible = []
    for index, batch in enumerate(batches):
        if batch.flags & CONTROL:
            continue
        if batch.flags & TRANSACTIONAL and any(
            row["producer_id"] == batch.producer_id
            and row["first_offset"] <= batch.last_offset
            and not _ended(batches[:index], batch.producer_id, row["first_offset"])
            for row in aborted
        ):
            continue
        visible.append(batch)
    return visible


def _ended(earlier: Sequence[Batch], producer_id: int, first_offset: int) -> bool:
    """Return True if the producer's abort marker is in `earlier`, after `first_offset`."""
    return any(
        batch.flags & CONTROL
        and batch.producer_id == producer_id
        and batch.base_offset >= first_offset
        and batch.records
        and (batch.records[0].key or b"")[3:4] == b"\x00"
        for batch in earlier
    )


def read_batch(data: bytes) -> Batch:
    """Decode a batch with its records; assert that every byte is used."""
    base_offset, length, _, magic, crc = struct.unpack_from(">qiibI", data)
    assert len(data) == 12 + length
    assert crc == crc32c(data[21:])
    flags, last_delta, first, largest, producer_id, epoch, base_sequence, count = struct.unpack_from(
        ">hiqqqhii", data, 21
    )
    codec = next(name for name, number in CODECS.items() if number == flags & 7)
    section = decompress(codec, data[61:])
    position, records = 0, []
    for _ in range(count):
        record, position = read_record(section, position)
        records.append(record)
    assert position == len(section)
    return Batch(
        records,
        base_offset,
        codec,
        flags & ~7,
        first,
        largest,
        producer_id,
        epoch,
        base_sequence,
        last_delta,
        count,
        magic,
    )


def decompress(codec: str, data: bytes) -> bytes:
    """Decompress a records section."""
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.decompress(data)
    if codec == "lz4":
        return bytes(lz4.frame.decompress(data))
    if codec == "zstd":
        return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())
    if data[:8] != b"\x82SNAPPY\x00":  # librdkafka writes one block without Java's frame
        return _snappy_block(data)
    position, out = 16, b""
    while position < len(data):
        size = int.from_bytes(data[position : position + 4], "big")
        out += _snappy_block(data[position + 4 : position + 4 + size])
        position += 4 + size
    return out


def _snappy_block(block: bytes) -> bytes:
    """Decompress a block; it begins with its uncompressed size."""
    size = shift = 0
    for byte in block:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(block, size))


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode a zigzag varint; return the value and the position after it."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position


def read_nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    """Decode bytes with their length; return them and the position after them."""
    length, position = read_varint(data, position)
    if length < 0:
        assert length == -1
        return None, position
    return data[position : position + length], position + length


def read_record(data: bytes, position: int) -> tuple[Record, int]:
    """Decode a record; return it and the position after it."""
    length, position = read_varint(data, position)
    end = position + length
    assert data[position] == 0
    timestamp_delta, position = read_varint(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = read_nullable(data, position)
    value, position = read_nullable(data, position)
    count, position = read_varint(data, position)
    headers = []
    for _ in range(count):
        header_key, position = read_nullable(data, position)
        header_value, position = read_nullable(data, position)
        assert header_key is not None
        headers.append((header_key.decode(), header_value))
    assert position == end
    return Record(value, key, offset_delta, timestamp_delta, tuple(headers)), position
