"""Batch headers: the offset of the next fetch, truncated batches, and invalid headers."""

from __future__ import annotations

import struct
from itertools import product

import pytest

from protocol.errors import Corrupt
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka.record_batches import Batch, sequence, write_batch


def test_complete_batches_are_rows() -> None:
    first = Batch(
        sequence([b"a", b"b"]).records, 10, "lz4", 16, 100, 200, producer_id=9, producer_epoch=3, base_sequence=4
    )
    log = write_batch(first) + write_batch(sequence([b"c"], base_offset=12))
    records = read_batch_headers(log)
    assert len(records) == 2
    row = {name: int(records.headers[name][0]) for name in records.headers.dtype.names}
    assert row.pop("crc") > 0
    assert row == {
        "base_offset": 10, "last_offset": 11, "last_offset_delta": 1, "count": 2, "partition_leader_epoch": -1,
        "position": 0, "length": len(write_batch(first)) - 12, "magic": 2, "attributes": 16 + 3,
        "first_timestamp_ms": 100, "max_timestamp_ms": 200,
        "producer_id": 9, "producer_epoch": 3, "base_sequence": 4,
    }  # fmt: skip
    assert bytes(records.batch(1)) == write_batch(sequence([b"c"], base_offset=12))
    assert (records.next_offset, records.partial_bytes) == (13, 0)


def test_truncated_batch_reports_its_size() -> None:
    complete, cut = write_batch(sequence([b"a"])), write_batch(sequence([b"b" * 100], base_offset=1))
    for length in range(12, len(cut)):
        records = read_batch_headers(complete + cut[:length])
        assert (len(records), records.next_offset, records.partial_bytes) == (1, 1, len(cut))
    for length in range(1, 12):
        assert read_batch_headers(complete + cut[:length]).partial_bytes == 61


@pytest.mark.parametrize(("magic", "length"), [*product([0, 1, 2], [-(2**31), -1, 0, 4, 13]), (2, 48)])
def test_batch_shorter_than_its_header_is_corrupt(magic: int, length: int) -> None:
    """In magic 0 and 1, a batch is a message."""
    log = struct.pack(">qiIb", 7, length, 0, magic) + bytes(100)
    assert len(read_batch_headers(write_batch(sequence([b"a"])) + log)) == 1
    with pytest.raises(Corrupt, match=f"orders-3: the record batch at offset 7 announces {length} bytes"):
        read_batch_headers(log, where="orders-3")


@pytest.mark.parametrize(
    ("label", "batch"),
    [
        ("magic 3", Batch(base_offset=5, magic=3)),
        ("magic -1", Batch(base_offset=5, magic=-1)),
        ("count -1", Batch(base_offset=5, count=-1)),
        ("last_offset_delta -1", Batch(base_offset=5, last_offset_delta=-1)),
        ("base_offset -5", Batch(base_offset=-5)),
        ("base_offset", Batch(base_offset=2**63 - 1)),
    ],
)
def test_invalid_header_is_corrupt(label: str, batch: Batch) -> None:
    with pytest.raises(Corrupt, match=f"orders-3: the record batch at offset {batch.base_offset} has {label}"):
        read_batch_headers(write_batch(batch), where="orders-3")
    before = write_batch(sequence([b"a"]))
    records = read_batch_headers(before + write_batch(batch))
    assert (len(records), records.next_offset, records.whole_bytes) == (1, 1, len(before))
    assert (records.partial_bytes, bytes(records.buffer)) == (0, before)
