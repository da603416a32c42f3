"""Encode rows as one record batch, as the producer does."""

from __future__ import annotations

from protocol.kafka_terms import NO_TIMESTAMP_MS
from protocol.records.compression import Codec
from protocol.records.encode import EncodedBatch, encode_batches, finalize_header
from protocol.records.record_columns import Columns, record_columns


def encode(
    columns: Columns,
    *,
    compression: str | Codec = Codec.NONE,
    level: int | None = None,
    default_timestamp_ms: int = NO_TIMESTAMP_MS,
) -> EncodedBatch:
    """Return a record batch with base offset 0 and no producer id. The columns are those of `record_columns`."""
    rows = record_columns(columns, default_timestamp_ms)
    (batch,) = encode_batches(rows, [rows.num_rows], compression=compression, level=level)
    finalize_header(batch)
    return batch
