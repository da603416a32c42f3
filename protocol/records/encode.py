"""Arrow columns to record batches: vectorised, each payload copied by Arrow, no Python object per record.

Every record is a sequence of parts (the varints before the key, the key, the varints before the value, ...); each kind
of part is one column, and `row_layout` lays them out row by row. Called by the producer, which cuts the columns
(`record_sizes`) and numbers the batch at the last moment (`stamp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import UsageError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP_MS
from protocol.records.arrow_numpy import filled
from protocol.records.batch_header import (
    CRC_AT,
    HEADER_BYTES,
    LAYOUT,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
    checksum,
)
from protocol.records.compression import Codec, compress
from protocol.records.row_layout import RowLayout, varint_sizes, varint_words, zero_bytes

_LARGEST_BATCH_BYTES = 2**31 - 1
_ATTRIBUTES_BYTES = 1
_NO_HEADER = bytes(HEADER_BYTES)

Lengths = npt.NDArray[np.int64]
Columns = Any  # pa.RecordBatch | pa.Table; pyarrow has no type stubs
EncodedBatch = bytearray | memoryview
"""A whole record batch that can be written to, since its header is."""


def encode(
    columns: Columns,
    *,
    compression: str | Codec = Codec.NONE,
    level: int | None = None,
    default_timestamp_ms: int = NO_TIMESTAMP_MS,
) -> EncodedBatch:
    """One whole record batch (magic 2) of all rows, with base offset 0 and no producer id. See `encode_batches`."""
    (batch,) = encode_batches(
        columns,
        [columns.num_rows],
        compression=compression,
        level=level,
        default_timestamp_ms=default_timestamp_ms,
    )
    _sign(batch)
    return batch


def encode_batches(
    columns: Columns,
    counts: Sequence[int],
    *,
    compression: str | Codec = Codec.NONE,
    level: int | None = None,
    default_timestamp_ms: int = NO_TIMESTAMP_MS,
) -> list[EncodedBatch]:
    """Record batches of `counts[0]` rows, of the next `counts[1]` rows, and so on: far quicker than one by one.

    They are not signed yet: each has to be given to `stamp`.

    Parameters
    ----------
    columns : a record batch or table with `value` and `key` (binary or string of any width; nulls stay nulls; either
        may be missing), `timestamp_ms` (int64), `headers` (list<struct<key: string, value: binary>>); other columns
        are not looked at.
    counts : numbers above 0 whose sum is the number of rows.
    compression : "none", "gzip", "snappy", "lz4" or "zstd"; `level` is on the codec's own scale, None its default.
    default_timestamp_ms : the timestamp of rows that have none.

    Raises `UsageError` when there are no rows, a header has no key, or all together are too large for one buffer.
    """
    codec = _codec(compression)
    sizes = np.array(counts, np.int64)
    if not columns.num_rows or not sizes.all():
        raise UsageError("a record batch needs at least one record")
    firsts = np.cumsum(sizes) - sizes
    timestamps = _timestamps(columns, default_timestamp_ms)
    data, edges = _laid_out(columns, timestamps, firsts, sizes)
    first_ms, max_ms = timestamps[firsts].tolist(), np.maximum.reduceat(timestamps, firsts).tolist()
    batches: list[EncodedBatch] = []
    for nth, (begin, end) in enumerate(pairwise(edges)):
        batch: EncodedBatch = data[begin:end].data
        if codec is not Codec.NONE:
            batch = bytearray().join((_NO_HEADER, compress(codec, batch[HEADER_BYTES:], level)))
        LAYOUT.pack_into(
            batch,
            0,
            0,
            len(batch) - LOG_OVERHEAD_BYTES,
            NO_LEADER_EPOCH,
            MAGIC,
            0,
            int(codec),
            counts[nth] - 1,
            first_ms[nth],
            max_ms[nth],
            NO_PRODUCER_ID,
            NO_PRODUCER_EPOCH,
            NO_SEQUENCE,
            counts[nth],
        )
        batches.append(batch)
    return batches


def stamp(
    batch: EncodedBatch,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> None:
    """Numbers an encoded batch in place, and signs it. May be called again with other numbers."""
    fields = list(LAYOUT.unpack_from(batch))
    fields[5] = fields[5] & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
    fields[9:12] = producer_id, producer_epoch, base_sequence
    LAYOUT.pack_into(batch, 0, *fields)
    _sign(batch)


def _codec(compression: str | Codec) -> Codec:
    try:
        return Codec(compression) if isinstance(compression, int) else Codec[compression.upper()]
    except (KeyError, ValueError):
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise UsageError(f"no compression type {compression!r}; there are {known}") from None


def _sign(batch: EncodedBatch) -> None:
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")


def record_sizes(columns: Columns) -> Lengths:
    """How many bytes each row needs at most as a record, uncompressed (int64, one per row).

    The batch of any run of rows, header included, has at most `HEADER_BYTES` more than the sum of their sizes.
    """
    rows = columns.num_rows
    timestamps = _timestamps(columns, NO_TIMESTAMP_MS)
    spread = float(timestamps.max()) - float(timestamps.min()) if rows else 0.0
    extremes = np.array([min(spread, 2.0**62), rows]).astype(np.int64)
    body = np.full(rows, _ATTRIBUTES_BYTES + int(varint_sizes(extremes).sum()), np.int64)
    for name in ("key", "value"):
        lengths = _lengths(_binary(columns, name))
        body += varint_sizes(lengths) + np.maximum(lengths, 0)
    headers = _Headers.of(columns)
    body += varint_sizes(headers.counts) + headers.sizes() if headers else 1
    body += varint_sizes(body)
    return body


def _laid_out(
    columns: Columns, timestamps: Lengths, firsts: Lengths, counts: Lengths
) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """All records, with room for a header before each batch's; and where each batch starts, and the last one ends."""
    rows = columns.num_rows
    key, value, headers = _binary(columns, "key"), _binary(columns, "value"), _Headers.of(columns)
    key_lengths, value_lengths = _lengths(key), _lengths(value)
    offset_delta = np.arange(rows) - np.repeat(firsts, counts)
    timestamp_delta = timestamps - np.repeat(timestamps[firsts], counts)
    before_key = [*varint_words(timestamp_delta), *varint_words(offset_delta), *varint_words(key_lengths)]
    before_value = varint_words(value_lengths)
    body = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + _ATTRIBUTES_BYTES
    for words in before_key + before_value:
        body += words.sizes.view(np.int64)
    body += varint_sizes(headers.counts) + headers.sizes() if headers else 1
    if int(body.sum()) > _LARGEST_BATCH_BYTES - 6 * rows - (HEADER_BYTES + 1) * len(firsts):
        raise UsageError(f"{rows} records of {int(body.sum())} bytes are more than a record batch can have")
    layout = RowLayout(rows)
    if not headers:
        # The header count, 0, ends each record: cheaper as the first byte of the next one's head.
        layout.words([zero_bytes(rows, except_at=firsts)])
    layout.words(varint_words(body))
    layout.words([zero_bytes(rows), *before_key])
    layout.payload(key, int(key_lengths.max()))
    layout.words(before_value)
    layout.payload(value, int(value_lengths.max()))
    if not headers:
        return layout.batches(firsts, HEADER_BYTES, end=b"\0")
    layout.words(varint_words(headers.counts))
    layout.payload(headers.encoded(), 1)
    return layout.batches(firsts, HEADER_BYTES, end=b"")


class _Headers:
    """The headers of all rows, flattened: `counts` per row, and the keys and values one after the other."""

    def __init__(self, column: pa.Array) -> None:
        self.counts = filled(pc.list_value_length(column), 0)
        self._keys, self._values = (_as_binary(child) for child in column.flatten().flatten())
        if self._keys.null_count:
            raise UsageError("a record header needs a key")
        self._key_lengths, self._value_lengths = _lengths(self._keys), _lengths(self._values)

    @classmethod
    def of(cls, columns: Columns) -> _Headers | None:
        """None when no row has a header."""
        column = _column(columns, "headers")
        if column is None or column.null_count == len(column):
            return None
        headers = cls(column)
        return headers if headers.counts.any() else None

    def _ends(self) -> Lengths:
        """Where each header ends when all are encoded one after the other."""
        payload = self._key_lengths + np.maximum(self._value_lengths, 0)
        return np.cumsum(payload + varint_sizes(self._key_lengths) + varint_sizes(self._value_lengths))

    def _row_offsets(self) -> Lengths:
        """The same for the headers of each row; a 0 before the first."""
        ends = np.concatenate([np.zeros(1, np.int64), self._ends()])
        offsets: Lengths = ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])]
        return offsets

    def sizes(self) -> Lengths:
        """How many bytes the headers of each row have, without their count."""
        return np.diff(self._row_offsets())

    def encoded(self) -> pa.Array:
        """Each row's headers, as a binary column."""
        layout = RowLayout(len(self._keys))
        layout.words(varint_words(self._key_lengths))
        layout.payload(self._keys, int(self._key_lengths.max()))
        layout.words(varint_words(self._value_lengths))
        layout.payload(self._values, int(self._value_lengths.max()))
        offsets = pa.py_buffer(self._row_offsets().astype(np.int32))
        return pa.Array.from_buffers(pa.binary(), len(self.counts), [None, offsets, layout.data()])


def _column(columns: Columns, name: str) -> pa.Array | None:
    if name not in columns.schema.names:
        return None
    column = columns.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _binary(columns: Columns, name: str) -> pa.Array:
    column = _column(columns, name)
    return pa.nulls(columns.num_rows, pa.binary()) if column is None else _as_binary(column)


def _as_binary(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _lengths(column: pa.Array) -> Lengths:
    """Bytes of each value, -1 for null."""
    return filled(pc.binary_length(column), -1)


def _timestamps(columns: Columns, default_ms: int) -> Lengths:
    column = _column(columns, "timestamp_ms")
    if column is None:
        return np.full(columns.num_rows, default_ms, np.int64)
    return filled(column if column.type == pa.int64() else column.cast(pa.int64()), default_ms)
