"""Batch headers: the next offset, truncated and invalid batches, and the records that read_committed readers get."""

from __future__ import annotations

import random
import struct
from itertools import product

import pytest

from protocol.errors import Corrupt
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import (
    CONTROL,
    TRANSACTIONAL,
    Batch,
    Record,
    marker,
    sequence,
    write_batch,
)
from tests.protocol.records.reading import rows


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


def values(batches: list[Batch], aborted: list[dict[str, int]] | None) -> list[bytes | None]:
    return [row["value"] for row in rows(b"".join(map(write_batch, batches)), aborted_transactions=aborted)]


def transactional(text: bytes, base_offset: int, producer_id: int) -> Batch:
    return sequence([text], base_offset=base_offset, flags=TRANSACTIONAL, producer_id=producer_id)


def test_plain_batch_of_a_producer_with_an_aborted_transaction_is_kept() -> None:
    log = [sequence([b"plain"], producer_id=7), transactional(b"dropped", 1, 7), marker(2, 7, commit=False)]
    assert values(log, [{"producer_id": 7, "first_offset": 0}]) == [b"plain"]


def test_empty_control_batch_ends_no_transaction() -> None:
    log = [
        marker(0, 9, commit=False, empty=True),
        transactional(b"dropped", 1, 9),
        marker(2, 9, commit=False, empty=True),
        marker(3, 9, commit=False),
        transactional(b"kept", 4, 9),
    ]
    assert read_batch_headers(write_batch(log[2])).next_offset == 3
    assert values(log, [{"producer_id": 9, "first_offset": 1}]) == [b"kept"]


def test_range_may_end_inside_a_transaction() -> None:
    batch = sequence([b"a", b"b", b"c"], flags=TRANSACTIONAL, producer_id=1)
    log = write_batch(batch) + write_batch(marker(3, 1, commit=True))
    assert [row["value"] for row in rows(log, 1, 2, aborted_transactions=[])] == [b"b"]


def test_interleaved_transactions_follow_kafkas_definition() -> None:
    rng = random.Random(3)
    log: list[Batch] = []
    opened: dict[int, int] = {}
    aborted = []
    for offset in range(1_000):
        producer_id = rng.randrange(4)
        if rng.random() < 0.5:
            opened.setdefault(producer_id, offset)
            log.append(transactional(b"%d" % offset, offset, producer_id))
            continue
        commit = rng.random() < 0.5
        log.append(marker(offset, producer_id, commit=commit))
        first = opened.pop(producer_id, None)
        if first is not None and not commit:
            aborted.append({"producer_id": producer_id, "first_offset": first})
    rng.shuffle(aborted)
    expected = [row["value"] for row in reference.rows(reference.committed(log, aborted))]
    assert values(log, aborted) == expected
    assert 0 < len(expected) < 500


@pytest.mark.parametrize(
    ("key", "codec"), [(b"\0", "none"), (None, "none"), (b"\0\0\0\0", "lz4")], ids=["short", "null", "compressed"]
)
def test_invalid_marker_is_corrupt(key: bytes | None, codec: str) -> None:
    batch = Batch([Record(b"", key)], 6, codec, flags=TRANSACTIONAL | CONTROL, producer_id=1)
    with pytest.raises(Corrupt, match="orders-3: the control batch at offset 6"):
        values([batch], [{"producer_id": 1, "first_offset": 0}])


def test_checksum_of_a_marker_is_checked() -> None:
    log = bytearray(write_batch(marker(6, 1, commit=False)))
    log[-8] ^= 1
    with pytest.raises(Corrupt, match="offset 6 is corrupt"):
        rows(log, aborted_transactions=[{"producer_id": 1, "first_offset": 0}])
