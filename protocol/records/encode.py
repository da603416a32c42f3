"""Arrow columns to record batches: vectorised, each payload copied by Arrow, no Python object per record.

Every record is a sequence of parts (the varints before the key, the key, the varints before the value, ...); each kind
of part is one column, and `row_layout` lays them out row by row. Called by the producer, which cuts the columns
(`record_sizes`) and numbers the batch at the last moment (`stamp`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

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
"""A whole record batch that can be written to, since its header is."""


def encode_batches(
    columns: pa.RecordBatch,
    counts: Sequence[int],
    order: npt.NDArray[np.int64] | None = None,
    *,
    compression: str | Codec = Codec.NONE,
    level: int | None = None,
    map_each: Callable[..., Iterable[EncodedBatch]] = map,
) -> list[EncodedBatch]:
    """Record batches of `counts[0]` rows, of the next `counts[1]` rows, and so on: far quicker than one by one.

    They are not signed yet: each has to be given to `stamp`.

    Parameters
    ----------
    columns : as `record_columns` makes them.
    counts : numbers above 0 whose sum is the number of rows.
    order : which of the columns' rows, and in which order; None: all as they are. It spares the copy of who would sort
        them before, as long as most of them are wanted: all are copied on the way.
    compression : "none", "gzip", "snappy", "lz4" or "zstd"; `level` is on the codec's own scale, None its default.
    map_each : as `map`; that of an executor compresses several record batches at a time.

    Raises `UsageError` when there are no rows, or all together are too large for one buffer.
    """
    codec = _codec(compression)
    sizes = np.array(counts, np.int64)
    if not counts or not sizes.all():
        raise UsageError("a record batch needs at least one record")
    firsts = np.cumsum(sizes) - sizes
    timestamps = _ordered(to_numpy(columns.column("timestamp_ms")), order)
    data, edges = _laid_out(columns, order, timestamps, firsts, sizes)
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
    batch[CRC_AT : CRC_AT + 4] = checksum(batch).to_bytes(4, "big")


def _codec(compression: str | Codec) -> Codec:
    try:
        return Codec(compression) if isinstance(compression, int) else Codec[compression.upper()]
    except (KeyError, ValueError):
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise UsageError(f"no compression type {compression!r}; there are {known}") from None


def record_sizes(columns: pa.RecordBatch) -> Lengths:
    """How many bytes each row needs at most as a record, uncompressed (int64, one per row).

    The batch of any run of rows, header included, has at most `HEADER_BYTES` more than the sum of their sizes.
    """
    rows, timestamps = columns.num_rows, to_numpy(columns.column("timestamp_ms"))
    spread = float(timestamps.max()) - float(timestamps.min()) if rows else 0.0
    extremes = np.array([min(spread, 2.0**62), rows]).astype(np.int64)
    body = np.full(rows, _ATTRIBUTES_BYTES + int(varint_sizes(extremes).sum()), np.int64)
    for name in ("key", "value"):
        _, lengths = _payload(columns, name)
        body += varint_sizes(lengths) + np.maximum(lengths, 0)
    body += np.maximum(_payload(columns, "headers")[1], 1)
    body += varint_sizes(body)
    return body


def _ordered(values: npt.NDArray[np.int64], order: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    return values if order is None else values[order]


def _laid_out(
    columns: pa.RecordBatch,
    order: npt.NDArray[np.int64] | None,
    timestamps: Lengths,
    firsts: Lengths,
    counts: Lengths,
) -> tuple[npt.NDArray[np.uint8], list[int]]:
    """All records, with room for a header before each batch's; and where each batch starts, and the last one ends."""
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
        body += words.sizes.view(np.int64)
    if int(body.sum()) > _LARGEST_BATCH_BYTES - 6 * rows - (HEADER_BYTES + 1) * len(firsts):
        raise UsageError(f"{rows} records of {int(body.sum())} bytes are more than a record batch can have")
    layout = RowLayout(rows, order)
    if not with_headers:
        # The header count, 0, ends each record: cheaper as the first byte of the next one's head.
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
    """A binary column, if it is there, and the bytes of each row's value in that order, -1 for null."""
    if name not in columns.schema.names:
        return None, np.full(columns.num_rows if order is None else len(order), -1)
    column = columns.column(name)
    return column, _ordered(filled(pc.binary_length(column), -1), order)
