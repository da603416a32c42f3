"""Encoding: the reference reader reads the written batches back; sequence numbers and sizes are correct."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import UsageError
from protocol.records import encode as encode_module
from protocol.records.batch_header import HEADER_BYTES
from protocol.records.encode import encode_batches, finalize_header, record_sizes
from protocol.records.record_columns import record_columns
from protocol.records.record_fields import HEADERS_TYPE
from protocol.testing.fake_kafka import record_batches as reference
from protocol.testing.fake_kafka.record_batches import read_batch, write_batch
from tests.protocol.records import reading
from tests.protocol.records.test_decode import DELTAS, HEADERS, PAYLOADS
from tests.support.encoded import encode

pytestmark = pytest.mark.soak

SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("timestamp_ms", pa.int64()), ("headers", HEADERS_TYPE)]
)
TWO_AT_A_TIME = ThreadPoolExecutor(2)


def table(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def read(batch: bytes | bytearray) -> list[dict[str, Any]]:
    """Return the encoded columns, read by the reference reader."""
    return [{name: row[name] for name in SCHEMA.names} for row in reference.rows([read_batch(bytes(batch))])]


@st.composite
def row_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw rows, often all without keys, values or headers, since separate code encodes those cases."""
    keys, values, headers = (draw(st.booleans()) for _ in range(3))
    return [
        {
            "key": draw(PAYLOADS) if keys else None,
            "value": draw(PAYLOADS) if values else None,
            "timestamp_ms": draw(DELTAS),
            "headers": [{"key": k, "value": v} for k, v in draw(HEADERS)] or None if headers else None,
        }
        for _ in range(draw(st.integers(1, 12)))
    ]


@given(row_lists(), st.sampled_from(list(reference.CODECS)))
def test_encoded_rows_are_read_by_the_reference_reader(rows: list[dict[str, Any]], codec: str) -> None:
    batch = encode(table(rows), compression=codec)
    assert read(batch) == rows
    header = read_batch(bytes(batch))
    assert (header.base_offset, header.last_offset, header.count) == (0, len(rows) - 1, len(rows))
    assert header.max_timestamp == max(row["timestamp_ms"] for row in rows)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@given(row_lists())
def test_encoded_bytes_equal_the_reference_writer(rows: list[dict[str, Any]]) -> None:
    batch = encode(table(rows))
    assert bytes(batch) == write_batch(read_batch(bytes(batch)))


@given(row_lists(), st.sampled_from(list(reference.CODECS)), st.data())
def test_batches_encoded_together_equal_those_encoded_separately(
    rows: list[dict[str, Any]], codec: str, data: st.DataObject
) -> None:
    columns = table(rows)
    firsts = sorted({0, *data.draw(st.sets(st.integers(0, len(rows) - 1)))})
    counts = [end - first for first, end in zip(firsts, [*firsts[1:], len(rows)], strict=True)]
    map_each = data.draw(st.sampled_from([map, TWO_AT_A_TIME.map]))
    together = encode_batches(record_columns(columns, 0), counts, compression=codec, map_each=map_each)
    for first, count, batch in zip(firsts, counts, together, strict=True):
        finalize_header(batch)
        assert bytes(batch) == bytes(encode(columns.slice(first, count), compression=codec))


@given(row_lists(), st.data())
def test_rows_with_an_order_are_encoded_as_if_sorted(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    columns = record_columns(table(rows), 0)
    order = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, unique=False)), np.int64)
    counts = [1, len(order) - 1]
    expected = encode_batches(columns.take(pa.array(order)), counts)
    assert list(map(bytes, encode_batches(columns, counts, order))) == list(map(bytes, expected))


@given(row_lists(), st.data())
def test_record_sizes_are_an_upper_bound_for_any_split(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    columns = table(rows)
    sizes = record_sizes(record_columns(columns, 0))
    start = data.draw(st.integers(0, len(rows) - 1))
    length = data.draw(st.integers(1, len(rows) - start))
    assert len(encode(columns.slice(start, length))) <= HEADER_BYTES + sizes[start : start + length].sum()


def test_record_sizes_are_close_to_the_encoded_size() -> None:
    rows = 9_000
    columns = table([{"key": b"%08d" % i, "value": bytes(100), "timestamp_ms": 1_000 + i} for i in range(rows)])
    written = len(encode(columns)) - HEADER_BYTES
    assert written <= record_sizes(record_columns(columns, 0)).sum() <= written * 1.03


@pytest.mark.parametrize("rows", [1, 64, 65, 8_192, 8_193, 30_000])
def test_batches_of_any_size_are_read_back(rows: int) -> None:
    columns = table([{"key": b"%d" % i, "value": b"v" * (i % 200), "timestamp_ms": i // 7} for i in range(rows)])
    assert reading.rows(encode(columns), columns=SCHEMA.names) == columns.to_pylist()


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.large_binary(), pa.binary(3)])
def test_text_and_binary_of_any_width_are_encoded(type_: pa.DataType) -> None:
    columns = pa.table({"key": pa.array(["abc", None], type_), "value": pa.array([None, "xyz"], type_)})
    assert [(row["key"], row["value"]) for row in read(encode(columns))] == [(b"abc", None), (None, b"xyz")]


def test_chunked_and_sliced_columns_are_encoded() -> None:
    rows = [
        {"key": b"k%d" % i, "value": b"v%d" % i, "timestamp_ms": i, "headers": [{"key": "h", "value": b"%d" % i}]}
        for i in range(20)
    ]
    pieces = pa.Table.from_batches([table(rows[:7]), table(rows[7:])])
    assert read(encode(pieces)) == rows
    assert read(encode(pieces.slice(5, 9))) == rows[5:14]
    assert read(encode(table(rows).slice(5, 9))) == rows[5:14]


def test_bytes_under_a_null_are_not_written() -> None:
    hidden = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 6, 9], np.int32)), pa.py_buffer(b"secretyes")]
    )
    batch = encode(pa.table({"value": hidden, "key": hidden}))
    assert b"secret" not in bytes(batch)
    assert [row["value"] for row in read(batch)] == [None, b"yes"]


def test_missing_columns_and_timestamps_have_their_defaults() -> None:
    rows = [{"key": None, "value": b"a", "timestamp_ms": 99, "headers": None}]
    assert read(encode(pa.table({"value": [b"a"]}), default_timestamp_ms=99)) == rows
    nulls = pa.table({"value": [b"a", b"b"], "timestamp_ms": pa.array([None, 5], pa.int64())})
    assert [row["timestamp_ms"] for row in read(encode(nulls, default_timestamp_ms=99))] == [99, 5]


def test_header_without_a_key_is_refused() -> None:
    headers = pa.array(
        [[{"key": None, "value": b"x"}]], pa.list_(pa.struct([("key", pa.string()), ("value", "binary")]))
    )
    with pytest.raises(UsageError, match="header needs a key"):
        encode(pa.table({"value": [b"a"], "headers": headers}))


@pytest.mark.parametrize("headers", [[1], ["k=v"], [["k", "v"]], [[{"key": "k", "value": 1}]]])
def test_headers_of_wrong_type_are_refused(headers: list[Any]) -> None:
    with pytest.raises(UsageError, match=r"column headers is .*; it must be list<struct<key"):
        encode(pa.table({"value": [b"a"], "headers": headers}))


def test_no_rows_make_no_batch() -> None:
    with pytest.raises(UsageError, match="at least one record"):
        encode(table([]))
    for none in (table([]), pa.Table.from_batches([], SCHEMA)):
        assert len(record_sizes(record_columns(none, 0))) == 0


def test_record_batch_above_2_gib_is_refused_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "_LARGEST_BATCH_BYTES", 1_000)
    with pytest.raises(UsageError, match=r"2 records of 1\d{3} bytes .* Decrease batch\.size") as refused:
        encode(pa.RecordBatch.from_pydict({"value": pa.array([b"." * 600] * 2)}))
    assert refused.value.settings == {"batch.size"}


def huge(*ends: int) -> pa.Array:
    """Return values that end at these bytes, in memory that is never touched."""
    offsets, data = np.array([0, *ends], np.int64), np.zeros(ends[-1], np.uint8)
    return pa.Array.from_buffers(pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def test_column_above_2_gib_is_refused() -> None:
    columns = pa.RecordBatch.from_arrays([huge(2**30, 2**31 + 16)], names=["value"])
    with pytest.raises(UsageError, match="column value has more than 2 GiB: send fewer rows"):
        record_columns(columns, 0)


def test_slice_behind_2_gib_of_a_column_is_written() -> None:
    """As of `Table.to_batches`, and of a caller who sends fewer rows in a call."""
    columns = pa.RecordBatch.from_arrays([huge(2**31, 2**31 + 16).slice(1)], names=["value"])
    assert record_columns(columns, 0).column("value").to_pylist() == [bytes(16)]


def test_slice_behind_2_gib_of_headers_is_written() -> None:
    header = pa.StructArray.from_arrays([pa.array(["a", "b"]), huge(2**31, 2**31 + 4)], names=["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), header)
    columns = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), headers], names=["value", "headers"])
    rows = record_columns(columns.slice(1), 0)
    assert rows.column("headers").to_pylist() == [b"\x02\x02b\x08" + bytes(4)]


def test_unknown_codec_is_named() -> None:
    with pytest.raises(UsageError, match=r"brotli.*gzip"):
        encode(pa.table({"value": [b"a"]}), compression="brotli")


@pytest.mark.parametrize("codec", reference.CODECS)
def test_finalize_header_sets_sequence_and_checksum(codec: str) -> None:
    columns = pa.table({"value": [b"a" * 50, b"b"]})
    batch = encode(columns, compression=codec)
    before = len(batch)
    for epoch, transactional in ((3, True), (4, False)):
        finalize_header(batch, producer_id=2**40, producer_epoch=epoch, base_sequence=17, transactional=transactional)
        read_back = read_batch(bytes(batch))
        assert (read_back.producer_id, read_back.producer_epoch, read_back.base_sequence) == (2**40, epoch, 17)
        assert bool(read_back.flags & reference.TRANSACTIONAL) is transactional
        assert [record.value for record in read_back.records] == [b"a" * 50, b"b"]
    assert len(batch) == before
