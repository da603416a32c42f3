"""Invalid bytes: they raise only this package's errors, quickly, and memory stays within the caps."""

from __future__ import annotations

import contextlib
import time
import tracemalloc

import pytest

from protocol.errors import ProtocolError, UnsupportedVersion
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import (
    TRANSACTIONAL,
    Batch,
    Record,
    marker,
    sealed,
    sequence,
    varint,
    write_batch,
    write_record,
)
from tests.protocol.records.reading import chunks, rows
from tests.support.hostile import cases, corrupted, tracing

pytestmark = pytest.mark.soak

CAP = 4 << 20
ABORTED = [{"producer_id": 7, "first_offset": 0}]
LENGTHS = [-(2**31), -2, -1, 0, 1, 5, 63, 64, 2**13, 2**31 - 1]


def provoke(log: bytes) -> None:
    """Read the log; only the expected errors may be raised."""
    with contextlib.suppress(ProtocolError, UnsupportedVersion):
        for _ in chunks(log, 1, 10_000, aborted_transactions=ABORTED, max_decompressed_bytes=CAP, check_crc=False):
            pass


def seeds(codec: str) -> list[bytes]:
    headers = (("key", b"value"), ("key", None), ("", b""))
    records = [
        Record(b"v" * (i * 9 % 200), b"k%d" % i if i % 3 else None, i, i * 40, headers if i % 4 == 0 else ())
        for i in range(60)
    ]
    small = [sequence([b"x" * (i % 90)] * (i % 7 + 1), base_offset=i * 10, codec=codec) for i in range(40)]
    transactions = [
        Batch(records[:5], 0, codec, TRANSACTIONAL, producer_id=7),
        marker(5, 7, commit=False),
        Batch(records, 6, codec),
    ]
    return [
        write_batch(Batch(records, 0, codec)),
        b"".join(map(write_batch, small)),
        b"".join(map(write_batch, transactions)),
    ]


@pytest.mark.parametrize("codec", reference.CODECS)
def test_mutated_logs_raise_only_protocol_errors(codec: str) -> None:
    logs = seeds(codec)
    for rng in cases(f"bytes {codec}", 200):
        provoke(corrupted(rng.choice(logs), rng, logs))


def test_prefixes_and_single_byte_changes_raise_only_protocol_errors() -> None:
    log = write_batch(Batch([Record(b"v" * 70, b"k", 0, 0, (("h", b"x"),)), Record(offset_delta=1)], 0))
    for length in range(len(log)):
        provoke(log[:length])
    for at in range(len(log)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            provoke(log[:at] + bytes([value]) + log[at + 1 :])


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_inside_a_record_are_checked(length: int) -> None:
    pieces = [b"\0", b"\0", b"\0", varint(1), b"k", varint(1), b"v", varint(1), varint(1), b"h", varint(1), b"x"]
    for lying in (3, 5, 7, 8, 10):
        body = b"".join(pieces[:lying]) + varint(length) + b"".join(pieces[lying + 1 :])
        if pieces[lying] == varint(length):
            continue
        batch = Batch([Record(), Record(offset_delta=1)], 4)
        log = write_batch(batch, (varint(len(body)) + body) * 2)
        with pytest.raises(ProtocolError, match="orders-3: the record batch at offset 4 cannot be read"):
            rows(log)


@pytest.mark.parametrize(
    "lying", [[-2, b"", 1, b"v", 0], [1, b"k", -2, b"", 0], [-1, b"", -(2**31), b"", 0], [-1, b"", -1, b"", -1]]
)
def test_negative_length_other_than_minus_one_is_corrupt(lying: list[int | bytes]) -> None:
    body = b"\0\0\0" + b"".join(varint(part) if isinstance(part, int) else part for part in lying)
    log = write_batch(sequence([b""]), varint(len(body)) + body)
    with pytest.raises(ProtocolError, match="offset 0 cannot be read"):
        rows(log, columns=["offset"])


def test_record_that_ends_before_its_header_count_is_corrupt() -> None:
    body = b"\0\0\0\1" + varint(5) + b"value"
    # The next record's length would pass as the header count if the end of this record were not checked.
    log = write_batch(sequence([b"", b""]), varint(len(body)) + body + write_record(Record(b"good")))
    for columns in (["value"], ["headers"]):
        with pytest.raises(ProtocolError, match="offset 0 cannot be read"):
            rows(log, columns=columns)


@pytest.mark.parametrize("length", LENGTHS)
def test_length_of_a_record_is_checked(length: int) -> None:
    good = write_record(Record(b"v" * 20))
    log = write_batch(Batch([Record(), Record(offset_delta=1)]), varint(length) + good[1:] + good)
    with pytest.raises(ProtocolError, match="offset 0 cannot be read"):
        rows(log)


@pytest.mark.parametrize("codec", reference.CODECS)
def test_count_of_two_billion_records_allocates_nothing(codec: str) -> None:
    section = reference.compress(codec, b"".join(map(write_record, sequence([b"abc"] * 10).records)))
    log = sealed(Batch(codec=codec, count=2**31 - 1, last_offset_delta=2**31 - 1), section)
    rows(write_batch(sequence([b"x"])))
    with tracing():
        with pytest.raises(ProtocolError, match="2147483647 records do not fit in"):
            rows(log)
        peak = tracemalloc.get_traced_memory()[1]
    assert peak < 18 << 20


def test_too_many_headers_name_the_maximum_and_a_remedy() -> None:
    body = b"\0\0\0\1\1" + varint(2**20 + 1) + b"\0\1" * (2**20 + 1)
    log = write_batch(sequence([b""]), varint(len(body)) + body)
    words = r"a record has 1048577 headers; the maximum is 1048576 \(leave out the headers column"
    with pytest.raises(ProtocolError, match=words):
        rows(log)
    assert rows(log, columns=["value"])


def test_batch_of_minimal_records_is_read_within_time_and_memory_limits() -> None:
    smallest = b"\x0c\0\0\0\1\1\0"
    count = 200_000
    log = sealed(Batch(count=count, last_offset_delta=0), smallest * count)
    started_s = time.process_time()
    assert sum(chunk.num_rows for chunk in chunks(log)) == count
    assert time.process_time() - started_s < 10
