"""Whole logs, mutated at random: record batches written by Java, messages of magic 0 and 1, transactions.

`test_hostile_bytes` makes known changes; here they are random. Python and Arrow must not use much memory.
"""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from protocol.records.decode import decode
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import Record
from tests.protocol.records import test_hostile_bytes, test_legacy
from tests.support.hostile import LARGEST_RATIO, SPARE_BYTES, cases, corrupted, provoke, tracing

pytestmark = pytest.mark.soak

CAP_BYTES = 64 << 10
LONGEST_BYTES = 32_000
ARROW = pa.proxy_memory_pool(pa.default_memory_pool())  # never replaced: freed memory must return to its pool


def read(log: bytes, check_crc: bool = False) -> None:
    """Read all records and let Arrow validate them; assert the limit of Arrow's peak memory."""
    usual = pa.default_memory_pool()
    pa.set_memory_pool(ARROW)
    try:
        chunks = decode(
            read_batch_headers(log),
            first_offset=1,
            end_offset=1 << 40,
            aborted_transactions=test_hostile_bytes.ABORTED,
            max_decompressed_bytes=CAP_BYTES,
            check_crc=check_crc,
        )
        for chunk in chunks:
            chunk.validate(full=True)
    finally:
        pa.set_memory_pool(usual)
    assert ARROW.max_memory() <= LARGEST_RATIO * (LONGEST_BYTES + CAP_BYTES) + SPARE_BYTES


def seeds() -> list[bytes]:
    java = [path.read_bytes() for path in (Path(__file__).parent / "written_by_java").glob("*.bin")]
    assert len(java) == 5
    ours = [log for codec in reference.CODECS for log in test_hostile_bytes.seeds(codec)]
    old = [log for magic in (0, 1) for log in test_legacy.hostile_seeds(magic)]
    mixed = [old[0] + ours[0] + old[-1] + ours[1]]
    return [*java, *ours, *old, *mixed]


def bombs() -> list[bytes]:
    """Return small logs that decompress to much more than the cap."""
    zeros = [Record(bytes(CAP_BYTES * 8))]
    new = [reference.write_batch(reference.Batch(zeros, 0, codec)) for codec in PACKED]
    old = [
        test_legacy.write(test_legacy.wrap([test_legacy.Message(3, bytes(CAP_BYTES * 8), magic=magic)], codec))
        for codec in test_legacy.PACKED
        for magic in (0, 1)
    ]
    return new + old


PACKED = [codec for codec in reference.CODECS if codec != "none"]
SEEDS, BOMBS = seeds(), bombs()
HEADERS = (("key", b"value"), ("", None))
RECORDS = [Record(b"v" * (i * 30), b"k" * i, i, i * 40, HEADERS[: i % 3]) for i in range(5)]
MESSAGES = [test_legacy.some(magic, first=0) for magic in (0, 1)]


def with_valid_checksums(log: bytes) -> bytes:
    """Return the log with correct checksums, up to the first entry that cannot be delimited."""
    mended, position = bytearray(log), 0
    while position + 23 <= len(mended):
        size, magic = struct.unpack_from(">ixxxxb", mended, position + 8)
        end = position + 12 + size
        if size < 14 or end > len(mended):
            break
        if magic == 2:
            mended[position + 17 : position + 21] = struct.pack(">I", crc32c(mended[position + 21 : end]))
        else:
            mended[position + 12 : position + 16] = struct.pack(">I", zlib.crc32(mended[position + 16 : end]))
        position = end
    return bytes(mended)


def test_seeds_are_valid() -> None:
    for log in SEEDS:
        assert with_valid_checksums(log) == log
        read(log, check_crc=True)


@pytest.mark.parametrize("check_crc", [True, False])
def test_randomly_corrupted_logs_raise_only_protocol_errors(check_crc: bool) -> None:
    read(SEEDS[0])  # fills caches before memory is measured
    with tracing():
        for rng in cases(f"logs {check_crc}", 300):
            log = rng.choice([corrupted_outside, corrupted_outside, corrupted_records, corrupted_messages])(rng)[
                :LONGEST_BYTES
            ]
            log = with_valid_checksums(log) if check_crc else log
            provoke(lambda data: read(data, check_crc), log, len(log) + CAP_BYTES)


def corrupted_outside(rng: random.Random) -> bytes:
    """Mutate a log as a transport could: outside of compression."""
    if rng.randrange(8) == 0:
        return corrupted(rng.choice(BOMBS), rng, SEEDS) if rng.randrange(2) else rng.choice(BOMBS)
    return corrupted(cut_out(rng.choice(SEEDS), rng), rng, SEEDS)


def corrupted_records(rng: random.Random) -> bytes:
    """Mutate records inside compression, which other mutations do not reach."""
    records = RECORDS[rng.randrange(len(RECORDS)) :]
    section = corrupted(b"".join(map(reference.write_record, records)), rng, SEEDS)
    count = rng.choice([None, None, None, 0, len(records) + 1, 2**31 - 1])
    batch = reference.Batch(records, 2, rng.choice(list(reference.CODECS)), count=count)
    return reference.write_batch(batch, section) + rng.choice(SEEDS[:5])


def corrupted_messages(rng: random.Random) -> bytes:
    messages, codec = rng.choice(MESSAGES), rng.choice(test_legacy.PACKED)
    inner = corrupted(test_legacy.written(messages), rng, SEEDS)
    packed = test_legacy.pack(codec, inner, messages[0].magic)
    return test_legacy.write(test_legacy.wrap(messages, codec, value=packed))


def cut_out(log: bytes, rng: random.Random) -> bytes:
    """Return a few whole entries of a long log: a change to one of hundreds has little effect."""
    positions = read_batch_headers(log).headers["position"].tolist()
    first = rng.randrange(len(positions))
    last = min(len(positions), first + rng.randrange(1, 6))
    return log[positions[first] : [*positions, len(log)][last]]
