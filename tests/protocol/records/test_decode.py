"""Decoding equals the reference reader for records of any shape."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import Corrupt, UsageError
from protocol.records.decode import ALL_COLUMNS, SCHEMA
from protocol.records.memory_records import read_batch_headers
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import (
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    Record,
    marker,
    sequence,
    write_batch,
)
from tests.protocol.records.reading import chunks, rows

pytestmark = pytest.mark.soak


def written(batches: Iterable[Batch]) -> bytes:
    return b"".join(map(write_batch, batches))


def follow(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with consecutive offsets."""
    placed, next_offset = [], 0
    for batch in batches:
        placed.append(Batch(**{**vars(batch), "base_offset": next_offset}))
        next_offset = placed[-1].last_offset + 1
    return placed


PAYLOADS = st.none() | st.binary(max_size=20) | st.integers(50, 300).map(bytes) | st.integers(8_000, 9_000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=4).map(tuple)
DELTAS = st.integers(0, 200) | st.integers(-(2**40), 2**40) | st.integers(-(2**62), 2**62)


@st.composite
def data_batches(draw: st.DrawFn) -> Batch:
    gaps = draw(st.lists(st.integers(1, 3) | st.integers(1, 2**20), max_size=12))
    records, delta = [], draw(st.integers(0, 100))
    headers = draw(st.booleans())
    for gap in gaps:
        records.append(Record(draw(PAYLOADS), draw(PAYLOADS), delta, draw(DELTAS), draw(HEADERS) if headers else ()))
        delta += gap
    return Batch(
        records,
        codec=draw(st.sampled_from(list(reference.CODECS))),
        flags=draw(st.sampled_from([0, LOG_APPEND_TIME])),
        first_timestamp=draw(st.integers(-1, 2**41)),
        last_offset_delta=delta + draw(st.integers(0, 5)),
    )


@given(st.lists(data_batches(), max_size=6).map(follow), st.data())
def test_decoded_logs_equal_the_reference_reader(batches: list[Batch], data: st.DataObject) -> None:
    end = batches[-1].last_offset + 2 if batches else 1
    first, until = (data.draw(st.integers(0, end)) for _ in range(2))
    expected = [row for row in reference.rows(batches) if first <= row["offset"] < until]
    assert rows(written(batches), first, until) == expected


@pytest.mark.parametrize(
    ("count", "codec"),
    [*product([1, 63, 64, 65, 128, 8_192], reference.CODECS), *product([20_000], ["none", "lz4"])],
)
def test_batches_of_any_size_and_codec_equal_the_reference(count: int, codec: str) -> None:
    rng = random.Random(count)
    records = [Record(rng.randbytes(rng.randrange(150)), b"%d" % delta, delta, delta // 3) for delta in range(count)]
    batches = [Batch(records, 5, codec), Batch(records, 5 + count, codec)]
    assert rows(written(batches)) == list(reference.rows(batches))


@pytest.mark.parametrize("codec", reference.CODECS)
def test_thousands_of_small_batches_equal_the_reference(codec: str) -> None:
    rng = random.Random(7)
    batches = follow(
        [
            Batch([Record(rng.randbytes(rng.randrange(90)), None, d, d) for d in range(rng.randrange(40))], 0, codec)
            for _ in range(1_500)
        ]
    )
    assert rows(written(batches)) == list(reference.rows(batches))


def test_chunks_have_about_16000_rows_for_any_batch_size() -> None:
    large = write_batch(sequence([b"x"] * 100_000))
    small = written(sequence([b"x"] * 10, base_offset=10 * i) for i in range(5_000))
    for log in (large, small):
        sizes = [chunk.num_rows for chunk in chunks(log)]
        assert all(8_000 <= size <= 24_000 for size in sizes[:-1]), sizes


def test_large_values_make_small_chunks() -> None:
    values = [bytes([i]) * 5_000_000 for i in range(9)]
    several = list(chunks(write_batch(sequence(values)), columns=["value"]))
    assert [value.as_py() for chunk in several for value in chunk["value"]] == values
    assert all(chunk.nbytes <= 17 << 20 for chunk in several)


def test_requested_columns_are_in_schema_order() -> None:
    log = write_batch(sequence([b"a", b"b"]))
    for columns in (["value", "key"], ["offset"], ["timestamp_ms", "headers"], list(ALL_COLUMNS), []):
        (chunk,) = chunks(log, columns=columns)
        assert chunk.schema == pa.schema([field for field in SCHEMA if field.name in columns])
        assert chunk.num_rows == 2


def test_unknown_column_is_named() -> None:
    with pytest.raises(UsageError, match="colour"):
        next(chunks(b"", columns=["colour"]))


def test_invalid_utf8_in_header_keys_is_replaced_as_in_java() -> None:
    body = b"\0\0\0\1\1\2" + b"\x06a\xffb" + b"\2x"
    log = write_batch(sequence([b""]), reference.varint(len(body)) + body)
    assert rows(log, columns=["headers"]) == [{"headers": [{"key": "a\ufffdb", "value": b"x"}]}]


@pytest.mark.parametrize("count", [100, 101, 60_000])
def test_records_with_very_many_headers_are_read(count: int) -> None:
    many = tuple(("h", None if i % 2 else b"%d" % i) for i in range(count))
    batch = Batch([Record(headers=many), Record(offset_delta=1), Record(offset_delta=2, headers=many[:3])])
    assert rows(write_batch(batch)) == list(reference.rows([batch]))


def test_rows_outlive_their_buffer() -> None:
    log = bytearray(write_batch(sequence([b"first", b"second"], codec="lz4")) + write_batch(sequence([b"third"])))
    several = list(chunks(log, columns=["value"]))
    rows(write_batch(sequence([b"x" * 100] * 10, codec="lz4")))
    log[:] = bytes(len(log))
    assert [value.as_py() for chunk in several for value in chunk["value"]] == [b"first", b"second", b"third"]


def test_two_partitions_are_decoded_in_turns() -> None:
    logs = (
        written(sequence([letter * 50] * 3_000, base_offset=3_000 * i, codec="zstd") for i in range(9))
        for letter in (b"a", b"b")
    )
    observed: list[set[bytes]] = [set(), set()]
    for pair in zip(*(chunks(log, columns=["value"]) for log in logs), strict=True):
        for values, chunk in zip(observed, pair, strict=True):
            values.update(chunk["value"].to_pylist())
    assert observed == [{b"a" * 50}, {b"b" * 50}]


def test_record_outside_its_batch_is_corrupt() -> None:
    for delta in (-1, 11):
        with pytest.raises(Corrupt, match=r"orders-3.*offset 50"):
            rows(write_batch(Batch([Record(offset_delta=delta)], 50, last_offset_delta=10)))


def offsets_before_error(log: bytes, first_offset: int = 0, **options: Any) -> tuple[list[int], str]:
    """Return the offsets that were read, reply by reply, and the error after them."""
    offsets: list[int] = []
    try:
        while (records := read_batch_headers(log, "orders-3")).next_offset is not None:
            for chunk in chunks(log, first_offset, records.next_offset, **options):
                offsets.extend(chunk["offset"].to_pylist())
            first_offset, log = records.next_offset, log[records.whole_bytes :]
    except Corrupt as error:
        return offsets, str(error)
    return offsets, ""


def test_damaged_header_hides_no_row_without_an_error() -> None:
    """Each bit under the checksum: also of control batches, and of aborted transactions."""
    flags = {"flags": TRANSACTIONAL, "producer_id": 7}
    batches = [
        sequence([b"a", b"b"], base_offset=0),
        sequence([b"c", b"d"], base_offset=2, **flags),
        marker(4, 7, commit=False),
        sequence([b"e", b"f"], base_offset=5, **flags),
        marker(7, 7, commit=True),
        sequence([b"g", b"h"], base_offset=8),
    ]
    logs = [write_batch(batch) for batch in batches]
    aborted = [{"producer_id": 7, "first_offset": 2}]
    for options in ({}, {"aborted_transactions": aborted}):
        expected, error = offsets_before_error(b"".join(logs), 1, **options)
        assert (expected, error) == ([1, 5, 6, 8, 9] if options else [1, 2, 3, 5, 6, 8, 9], "")
        for damaged, bit in product(range(len(batches)), range(21 * 8, 61 * 8)):
            log = [bytearray(value) for value in logs]
            log[damaged][bit // 8] ^= 1 << bit % 8
            offsets, error = offsets_before_error(b"".join(log), 1, **options)
            assert offsets == [offset for offset in expected if offset < batches[damaged].base_offset], (damaged, bit)
            assert f"the record batch at offset {batches[damaged].base_offset} " in error


def test_offset_of_the_next_batch_hides_no_damage() -> None:
    """Base offsets are not under a checksum."""
    first, second, third = (write_batch(sequence([b"a"] * 10, base_offset=10 * i)) for i in range(3))
    for bit in (23 * 8 - 3, 70 * 8):  # CONTROL, and a value
        damaged = bytearray(second)
        damaged[bit // 8] ^= 1 << bit % 8
        for after in (first, (4).to_bytes(8, "big") + third[8:]):
            with pytest.raises(Corrupt, match="the record batch at offset 10 is corrupt"):
                rows(first + bytes(damaged) + after, 5)


def test_batches_that_go_backwards_hide_no_row() -> None:
    log = written(sequence([b"a"] * 10, base_offset=10 * i) for i in (0, 2, 3, 1))
    assert [row["offset"] for row in rows(log, 0, 20)] == list(range(20))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_corrupt_batch_among_many_is_named_after_those_before_it(codec: str) -> None:
    batches = [sequence([b"a", b"b"], base_offset=2 * i, codec=codec) for i in range(50)]
    outside = [Record(b"a"), Record(b"b", offset_delta=2)]
    header_cut = b"\x12\0\0\0\1\1\2\2h\x06"
    flipped = bytearray(write_batch(batches[31]))
    flipped[-1] ^= 1
    for wrong in (
        bytes(flipped),
        write_batch(batches[31], records=b"\x0e" + b"\x01" * 13),
        write_batch(Batch(outside, 62, last_offset_delta=1, codec=codec)),
        write_batch(batches[31], records=header_cut * 2),
        write_batch(batches[31], records=b"\x02\0"),
    ):
        log = [write_batch(batch) for batch in batches]
        log[31] = wrong
        offsets, error = offsets_before_error(b"".join(log))
        assert offsets == list(range(62))
        assert error.startswith("orders-3: the record batch at offset 62 ")


def test_rows_before_a_corrupt_batch_are_read_once() -> None:
    """Also if some of the batches that were decoded together have been returned before the error."""
    batches = [sequence([b"a"] * 6_000, base_offset=6_000 * i) for i in range(5)]
    log = [write_batch(batch) for batch in batches]
    records = [Record(b"a", offset_delta=delta) for delta in range(5_999)]
    log[3] = write_batch(Batch([*records, Record(b"b", offset_delta=6_001)], 18_000, last_offset_delta=5_999))
    offsets, error = offsets_before_error(b"".join(log))
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= 18_000
    assert error.startswith("orders-3: the record batch at offset 18000 ")


def test_flipped_bit_is_found_only_with_check_crcs() -> None:
    log = bytearray(write_batch(sequence([b"a" * 50], base_offset=42)))
    log[80] ^= 1
    with pytest.raises(Corrupt, match=r"orders-3.*offset 42.*; check\.crcs=false"):
        rows(log)
    assert len(rows(log, check_crc=False)) == 1


def test_damaged_batch_behind_the_range_hides_no_transaction() -> None:
    aborted = [{"producer_id": 7, "first_offset": 1}]
    damaged = bytearray(write_batch(marker(1, 7, commit=False)))
    damaged[-1] ^= 1
    damaged[22] ^= 1  # it looks compressed
    log = write_batch(sequence([b"a"])) + damaged
    assert [row["offset"] for row in rows(log, 0, 1, aborted_transactions=aborted)] == [0]


def test_batches_outside_the_range_are_not_decoded() -> None:
    log = bytearray(written(sequence([b"a" * 50], base_offset=i) for i in range(3)))
    log[80] ^= 1
    log[-1] ^= 1
    assert [row["offset"] for row in rows(log, 1, 2)] == [1]
