"""Ranges of partitions → Arrow batches with the columns Spark expects. Runs in the executors' Python workers.

Adds to what `protocol` reads the columns that are constant in a range (topic, partition) and turns milliseconds
into Spark's microseconds. Touches columns, never single records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from protocol.consumer.range_consumer import Range, RangeConsumer
from spark_kafka_source.clients import client_for
from spark_kafka_source.options import SourceOptions
from spark_kafka_source.ranges import OffsetRange
from spark_kafka_source.reused_worker import settle
from spark_kafka_source.row_schema import arrow_schema

log = logging.getLogger(__name__)

_MILLIS, _MICROS = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
_COLUMNS = ("key", "value", "offset", "timestamp_ms", "timestamp_type")


def read_range(options: SourceOptions, wanted: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of all `wanted` ranges, each range's in offset order, as `row_schema.arrow_schema`.

    Raises what `protocol.consumer.range_consumer.RangeConsumer` raises.
    """
    ranges = [
        Range(each.topic, each.partition, each.from_offset, each.until_offset, each.topic_id, each.from_epoch)
        for each in wanted
    ]
    records = RangeConsumer(
        client_for(options.client),
        options.consumer,
        ranges,
        columns=(*_COLUMNS, "headers") if options.include_headers else _COLUMNS,
        poll_timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    schema = arrow_schema(options.include_headers)
    for each, batch in records:
        yield _with_spark_columns(batch, each, schema)
    settle()


def _with_spark_columns(batch: pa.RecordBatch, wanted: Range, schema: pa.Schema) -> pa.RecordBatch:
    rows = batch.num_rows
    columns = [
        batch.column("key"),
        batch.column("value"),
        _constant(wanted.topic, _rounded(rows)).slice(0, rows),
        _constant(wanted.partition, _rounded(rows)).slice(0, rows),
        batch.column("offset"),
        batch.column("timestamp_ms").view(_MILLIS).cast(_MICROS),
        batch.column("timestamp_type"),
    ]
    if len(schema) > len(columns):
        columns.append(batch.column("headers"))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rounded(rows: int) -> int:
    """A power of two, so that chunks of all sizes share a few constant arrays."""
    return 1 << max(rows - 1, 1).bit_length()


@lru_cache(maxsize=64)
def _constant(value: str | int, rows: int) -> pa.Array:
    # From buffers: pa.scalar and pa.repeat would import pandas, 0.15 s and 35 MB in every Python worker.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(np.full(rows, value, np.int32))])
    text = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)])
