"""The record batches of one partition on a broker's disk: headers only.

For tests that wait for the log cleaner, or must check that a topic has the intended record batches. Reads the files by
Kafka's published format and shares no code with the tested package.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

# base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, record count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_AND_OFFSET_BYTES = 12
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class StoredBatch:
    """One record batch. `bytes` is its total size; `records` may be fewer than its offsets."""

    base_offset: int
    last_offset: int
    records: int
    bytes: int
    codec: str
    log_append_time: bool
    transactional: bool
    control: bool
    delete_horizon: bool


def stored_batches(data_folder: Path, topic: str, partition: int = 0) -> list[StoredBatch]:
    """Return the batches of the partition in offset order, from the segments in the broker's `data_folder`."""
    batches: list[StoredBatch] = []
    for segment in sorted((data_folder / f"{topic}-{partition}").glob("*.log")):
        try:
            content = segment.read_bytes()
        except FileNotFoundError:  # replaced by the cleaner
            return stored_batches(data_folder, topic, partition)
        batches += _batches(content)
    return batches


def _batches(content: bytes) -> list[StoredBatch]:
    batches: list[StoredBatch] = []
    position = 0
    while position + _HEADER.size <= len(content):
        base_offset, length, _, _, _, attributes, last_delta, *_, records = _HEADER.unpack_from(content, position)
        size = _LENGTH_AND_OFFSET_BYTES + length
        batches.append(
            StoredBatch(
                base_offset,
                base_offset + last_delta,
                records,
                size,
                CODECS[attributes & 0x07],
                log_append_time=bool(attributes & 0x08),
                transactional=bool(attributes & 0x10),
                control=bool(attributes & 0x20),
                delete_horizon=bool(attributes & 0x40),
            )
        )
        position += size
    return batches
