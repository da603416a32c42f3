"""The records that a read_committed reader receives: no markers, no aborted transactions, nothing missing."""

from __future__ import annotations

import random

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
