"""Convert Spark's rows to Arrow batches: only for PySpark 4.0, whose streaming sinks receive rows.

This creates one Python object per value, and is many times slower than the Arrow batches of later versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, StructType

from protocol.base.once import log_once
from spark_kafka_source.sink.columns import HEADERS, SinkPlan

_ROWS_PER_BATCH = 10_000
_REPEATED_HOUR = (
    "timestamps of rows are in the hour that clocks repeat when summer time ends, and PySpark 4.0 does not tell the "
    "two hours apart: they are written as of the first one. Set TZ=UTC for the executors (spark.executorEnv.TZ), or "
    "use PySpark 4.1 or newer"
)
_TYPES = {"headers": HEADERS, "topic": pa.string(), "partition": pa.int32(), "timestamp": pa.timestamp("us", tz="UTC")}


def arrow_batches(rows: Iterable[Row], schema: StructType, plan: SinkPlan) -> Iterator[pa.RecordBatch]:
    """Yield the columns of the plan, 10,000 rows at a time."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, _ROWS_PER_BATCH)):
        yield pa.record_batch({name: _column(name, chunk, schema) for name in sorted(plan.names)})


def _column(name: str, rows: Sequence[Row], schema: StructType) -> pa.Array:
    position = schema.fieldNames().index(name)
    values: list[Any] = [row[position] for row in rows]
    if name == "timestamp":
        values = [None if value is None else _micros(value) for value in values]
    if name == "headers":
        values = [None if value is None else [header and header.asDict() for header in value] for value in values]
    default = pa.binary() if isinstance(schema[position].dataType, BinaryType) else pa.string()
    return pa.array(values, _TYPES.get(name, default))


def _micros(value: datetime) -> int:
    """Return the microseconds since 1970 of a datetime in the worker's time zone, as PySpark 4.0 passes timestamps.

    PySpark drops `fold`, which distinguishes the two repeated hours at the end of summer time.
    """
    second = value.replace(microsecond=0)
    at_s = second.timestamp()
    if not value.fold and second.replace(fold=1).timestamp() != at_s:
        log_once(_REPEATED_HOUR)
    return int(at_s) * 1_000_000 + value.microsecond
