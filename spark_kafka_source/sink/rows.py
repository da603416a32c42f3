"""Spark rows as the Arrow batches that the sink writes: only for PySpark 4.0, whose streaming sinks get rows.

One Python object per value, so many times slower than the Arrow batches that later versions hand over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, StructType, TimestampType

from spark_kafka_source.sink.columns import HEADERS, SinkPlan

_ROWS_PER_BATCH = 10_000
_TYPES = {
    "headers": HEADERS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_batches(rows: Iterable[Row], schema: StructType, plan: SinkPlan) -> Iterator[pa.RecordBatch]:
    """The columns of `plan`, some thousand rows at a time."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, _ROWS_PER_BATCH)):
        yield pa.record_batch({name: _column(name, chunk, schema) for name in sorted(plan.names)})


def _column(name: str, rows: Sequence[Row], schema: StructType) -> pa.Array:
    position = schema.fieldNames().index(name)
    values: list[Any] = [row[position] for row in rows]
    if name == "timestamp":
        # Spark gives datetimes of the worker's time zone without saying so.
        values = [TimestampType().toInternal(value) for value in values]
    if name == "headers":
        values = [None if value is None else [header and header.asDict() for header in value] for value in values]
    default = pa.binary() if isinstance(schema[position].dataType, BinaryType) else pa.string()
    return pa.array(values, _TYPES.get(name, default))
