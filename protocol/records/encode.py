"""Encode Arrow columns as record batches: vectorised, each payload copied by Arrow, no Python object per record.

A record is a sequence of parts (the varints before the key, the key, the varints before the value, ...). Each kind of
part is one column, and `row_layout` arranges the columns row by row. The producer slices the columns by `record_sizes`
and sets the sequence numbers just before sending (`finalize_header`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import UsageError
from protocol.kafka_terms import NO_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from protocol.records.arrow_numpy import filled, to_numpy
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
EncodedBatch = bytearray | memoryview
"""A whole record batch, writable so that `finalize_header` can complete its header."""


def encode_batches(
    columns: pa.RecordBatch,
    counts: Sequence[int],
    order: npt.NDArray[np.int64] | None = None,
    *,
    compression: str | Codec = Codec.NONE,
    level: int | None = None,
    map_each: Callable[..., Iterable[EncodedBatch]] = map,
) -> list[EncodedBatch]:
    """Encode rows as record batches: the first `counts[0]` rows, the next `counts[1]` rows, and so on.

    Encoding many batches in one call is far faster than one by one. Each batch must be passed to `finalize_header`
    before it is sent, since it has no checksum yet.

    `columns`: result of `record_columns`.
    `counts`: rows per batch, each above 0; their sum is the number of rows.
    `order`: row numbers of `columns` to encode, in this order; None for all rows as they are. Saves the caller a sorted
    copy. Efficient if it selects most rows, since all rows are copied internally.
    `compression`: "none", "gzip", "snappy", "lz4" or "zstd".
    `level`: compression level on the codec's own scale; None for its default.
    `map_each`: a function like `map`; an executor's `map` compresses several batches in parallel.
    Raises `UsageError`: there are no rows, or all rows together are too large for one buffer.
    """
    codec = _codec(compression)
    sizes = np.array(counts, np.int64)
    if not counts or not sizes.all():
        raise UsageError("a record batch needs at least one record")
    firsts = np.cumsum(sizes) - sizes
    timestamps = _ordered(to_numpy(columns.column("timestamp_ms")), order)
    data, edges = _layout_records(columns, order, timestamps, firsts, sizes)
    first_ms, max_ms = timestamps[firsts].tolist(), np.maximum.reduceat(timestamps, firsts).tolist()
    batches: list[EncodedBatch] = [data[begin:end].data for begin, end in pairwise(edges)]
    if codec is not Codec.NONE:
        map_all = map_each if len(batches) > 1 else map  # to hand one to a thread costs more than it brings
        batches = list(map_all(partial(_compressed, codec, level), batches))
    for nth, batch in enumerate(batches):
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
    return batches


def _compressed(codec: Codec, level: int | None, batch: memoryview) -> EncodedBatch:
    return bytearray().join((_NO_HEADER, compress(codec, batch[HEADER_BYTES:], level)))


def finalize_header(
    batch: EncodedBatch,
    *,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> None:
    """Set the producer fields and the checksum of an encoded batch in place.

    May be called again with other values, for example to retry with a new producer id.
    """
    fields = list(LAYOUT.unpack_from(batch))
    fields[5] = fields[5] & ~TRANSACTIONAL | (TRANSACTIONAL if transactional else 0)
    fields[9:12] = producer_id, producer_epoch, base_sequence
    LAYOUT.pack_into(batch, 0, *fields)
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")


def _codec(compression: str | Codec) -> Codec:
    try:
        return Codec(compression) if isinstance(compression, int) else Codec[compression.upper()]
    except (KeyError, ValueError):
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise UsageError(f"unknown compression type {compression!r}; known are {names}") from None


class DeltaBounds(NamedTuple):
    """Bounds of the deltas of rows, if they are one batch: their timestamps, and their number."""

    low_ms: int
    high_ms: int
    rows: int

    @classmethod
    def of(cls, columns: pa.RecordBatch) -> DeltaBounds:
        """Return the bounds of these rows, a result of `record_columns`."""
        timestamps = to_numpy(columns.column("timestamp_ms"))
        return cls(int(timestamps.min()), int(timestamps.max()), len(timestamps)) if len(timestamps) else cls(0, 0, 0)

    def with_rows(self, bounds: DeltaBounds) -> DeltaBounds:
        """Return the bounds of both together."""
        low_ms, high_ms = min(self.low_ms, bounds.low_ms), max(self.high_ms, bounds.high_ms)
        return DeltaBounds(low_ms, high_ms, self.rows + bounds.rows)

    @property
    def size_bytes(self) -> int:
        """Largest size of both deltas of a record."""
        return _varint_size(min(self.high_ms - self.low_ms, 2**62)) + _varint_size(self.rows)


def _varint_size(number: int) -> int:
    """Return the size of a number that is not negative, and the most of its negation."""
    return max(1, (number.bit_length() + 7) // 7)


def record_sizes(columns: pa.RecordBatch) -> Lengths:
    """Return the maximum size in bytes of each row as an uncompressed record (int64, one per row).

    A batch of any consecutive rows, with its header, is at most `HEADER_BYTES` larger than the sum of their sizes.
    Together with other rows, each may need more bytes for its deltas: see `DeltaBounds`.
    """
    rows = columns.num_rows
    body = np.full(rows, _ATTRIBUTES_BYTES + DeltaBounds.of(columns).size_bytes, np.int64)
    for name in ("key", "value"):
        _, lengths = _payload(columns, name)
        body += varint_sizes(lengths) + np.maximum(lengths, 0)
    body += np.maximum(_payload(columns, "headers")[1], 1)
    body += varint_sizes(body)
    return body


def _ordered(values: npt.NDArray[np.int64], order: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return values if order is None else values[order]


def _layout_records(
    columns: pa.RecordBatch, order: npt.NDArray[np.int64] | None, timestamps: Lengths, firsts: Lengths, counts: Lengths
) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """Lay out all records with room for a header before each batch; return the start of each batch and the end."""
    rows = len(timestamps)
    key, key_lengths = _payload(columns, "key", order)
    value, value_lengths = _payload(columns, "value", order)
    headers, header_lengths = _payload(columns, "headers", order)
    with_headers = int(header_lengths.max()) > 1
    offset_delta = np.arange(rows) - np.repeat(firsts, counts)
    timestamp_delta = timestamps - np.repeat(timestamps[firsts], counts)
    before_key = [*varint_words(timestamp_delta), *varint_words(offset_delta), *varint_words(key_lengths)]
    before_value = varint_words(value_lengths)
    body = np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + np.maximum(header_lengths, 1)
    body += _ATTRIBUTES_BYTES
    for words in before_key + before_value:
        body += words.sizes
    if int(body.sum()) > _LARGEST_BATCH_BYTES - 6 * rows - (HEADER_BYTES + 1) * len(firsts):
        raise UsageError(
            f"{rows} records of {int(body.sum())} bytes exceed the maximum size of a record batch. "
            "Decrease batch.size, or write smaller records",
            settings=("batch.size",),
        )
    layout = RowLayout(rows, order)
    if not with_headers:
        # The header count, 0, ends each record. Writing it as the first byte of the next record's head is cheaper.
        layout.words([zero_bytes(rows, except_at=firsts)])
    layout.words(varint_words(body))
    layout.words([zero_bytes(rows), *before_key])
    layout.payload(key, int(key_lengths.max()))
    layout.words(before_value)
    layout.payload(value, int(value_lengths.max()))
    if not with_headers:
        return layout.batches(firsts, HEADER_BYTES, end=b"\0")
    layout.payload(headers, 1)
    return layout.batches(firsts, HEADER_BYTES, end=b"")


def _payload(
    columns: pa.RecordBatch, name: str, order: npt.NDArray[np.int64] | None = None
) -> tuple[pa.Array | None, Lengths]:
    """Return a binary column, if present, and the length of each row's value in that order, -1 for null."""
    if name not in columns.schema.names:
        return None, np.full(columns.num_rows if order is None else len(order), -1)
    column = columns.column(name)
    return column, _ordered(filled(pc.binary_length(column), -1), order)
