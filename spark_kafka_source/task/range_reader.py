"""Read ranges as Arrow batches with Spark's columns. Runs in the executors' Python workers.

Adds the columns that are constant in a range (topic, partition), and converts milliseconds to Spark's microseconds.
Handles columns, never single records.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from protocol.base.once import warn_once
from protocol.cluster.client import Client
from protocol.config import ConsumerConfig
from protocol.errors import DataLoss, TopicRecreated, UsageError
from protocol.fetch.bounded_reader import BoundedReader
from protocol.fetch.log_offsets import Range
from protocol.records.arrow_numpy import to_arrow, to_numpy
from spark_kafka_source.error_messages import (
    COULD_NOT_READ_OFFSET_RANGE,
    MALFORMED_RECORD_TIMESTAMP,
    option_to_continue,
    remedy_to_continue,
    with_error_class,
    with_remedies,
)
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.task.decoded_columns import TaskDecoder
from spark_kafka_source.task.pickling import PickledForExecutors
from spark_kafka_source.task.row_schema import arrow_schema
from spark_kafka_source.task.worker_tuning import tune_worker

if TYPE_CHECKING:
    from protocol.filters.record_filter import RecordFilter


@dataclass
class RangePartition(InputPartition):
    """The ranges that one task reads. Spark pickles it for the executor."""

    ranges: tuple[Range, ...]


log = logging.getLogger(__name__)

_MILLIS, _MICROS = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")
_MAX_MILLIS = (2**63 - 1) // 1000
# Small, so that Spark receives the first rows while the next ones are fetched.
FIRST_FETCH_BYTES = 1 << 20
# Limit of one cached column; 16 are cached. Topics of more than 60 characters are repeated for each chunk.
_MAX_CACHED_BYTES = 1 << 20
_INT32_BYTES = 4
_REPLAN_HINT = (
    ". If this is not the first action on the DataFrame: its offsets are those of the first one. Call load() again to "
    "read what the topic has now"
)
# `kafka.client.rack=env:NAME`: executors of one query may be in different racks.
_RACK_FROM_ENVIRONMENT = "env:"
# Spark's columns that `protocol` decodes; the others are constant in a range.
_DECODED = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp_ms",
    "timestampType": "timestamp_type",
    "headers": "headers",
}


class RangeReader(PickledForExecutors):
    """The readers' part for executors. Readers of the driver inherit it, and are pickled as this class.

    Executors therefore do not import the driver's modules.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __reduce__(self) -> tuple[Any, ...]:
        return PickledForExecutors.__reduce__(RangeReader(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, as `read_range`. Runs on an executor."""
        # If `partitions` returns none, Spark creates an empty InputPartition.
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(self._options, partition.ranges)


def read_range(options: SourceOptions, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all ranges, in offset order within each range. Runs on an executor.

    `ranges`: batches of different ranges arrive in any order.
    Yields batches with the schema `row_schema.arrow_schema`: `timestamp` in microseconds, UTC.
    Raises `KafkaError`: as `protocol.fetch.bounded_reader.BoundedReader`. `UsageError`: a record's timestamp exceeds
    Spark's range. `FilterFailed`: the option `filter` fails on a record, in Spark's ANSI mode.
    """
    client = PROCESS.client(options.client)
    record_filter = _record_filter(options, client)
    decodes = bool(options.schemas or options.type_schema or (record_filter and record_filter.decoded_columns))
    client.has_answered = True  # the driver has connected when it planned these ranges
    records = BoundedReader(
        client,
        resolve_client_rack(options.consumer),
        ranges,
        columns=fetched_columns(options, record_filter),
        poll_timeout_ms=options.poll_timeout_ms,
        on_loss=partial(_on_loss, options),
        first_fetch_bytes=FIRST_FETCH_BYTES,
        record_bytes=PROCESS.record_bytes(client),
        row_filter=None if record_filter is None else record_filter.of_range,
    )
    schema = arrow_schema(options.row_columns, options.schemas)
    try:
        with with_remedies(), TaskDecoder(options, record_filter) if decodes else nullcontext() as decoder:
            for source_range, batch in records:
                kept = batch if decoder is None else decoder.filtered(batch, source_range)
                if kept.num_rows:
                    yield with_spark_columns(kept, source_range, schema, decoder)
    except DataLoss as loss:
        raise DataLoss(with_error_class(COULD_NOT_READ_OFFSET_RANGE, loss.message), **loss.context) from loss
    tune_worker()


def _record_filter(options: SourceOptions, client: Client) -> RecordFilter | None:
    if options.condition is None:
        return None
    from protocol.filters.record_filter import RecordFilter

    context = TaskContext.get()
    # Spark passes the settings that the session has set, as their text; in Spark 4 this one is true by default.
    ansi = (context and context.getLocalProperty("spark.sql.ansi.enabled")) or "true"
    return RecordFilter(options.condition, ansi=ansi.strip().lower() != "false", client=client)


def _on_loss(options: SourceOptions, loss: DataLoss, skipped: Range) -> None:
    recreated = isinstance(loss, TopicRecreated)
    if options.fail_on_topic_recreated if recreated else options.fail_on_data_loss:
        loss.message = f"{loss}. {remedy_to_continue(loss)}{'' if options.streaming else _REPLAN_HINT}"
        raise loss
    log.warning("%s (%s: %d offsets are skipped)", loss, option_to_continue(loss), skipped.size)


def fetched_columns(options: SourceOptions, record_filter: RecordFilter | None = None) -> list[str]:
    """Return the columns of `protocol` that the rows need."""
    names = [_DECODED[name] for name in options.row_columns if name in _DECODED]
    if record_filter is not None:
        names += [name for name in record_filter.decoded_columns if name not in names]
    if options.schemas or options.condition_schemas or options.type_schema:
        # For the message of an invalid value, and its bytes.
        names += [name for name in ("value", "offset") if name not in names]
        if options.writes_dead_letters:
            names += [name for name in ("key", "headers", "timestamp_ms") if name not in names]
        elif options.schema_id_location == "header" and "headers" not in names:
            names.append("headers")
    # At least one column is needed to count the rows.
    return names or ["offset"]


def with_spark_columns(
    batch: pa.RecordBatch, source_range: Range, schema: pa.Schema, decoder: TaskDecoder | None = None
) -> pa.RecordBatch:
    """Return the rows of `batch` with the columns of `schema`, in Spark's types."""
    decoded, rows = decoder.decode(batch, source_range) if decoder is not None else ({}, None)
    columns = [decoded[name] if name in decoded else spark_column(name, batch, source_range) for name in schema.names]
    all_rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    return all_rows if rows is None else all_rows.take(to_arrow(rows))


def spark_column(name: str, batch: pa.RecordBatch, source_range: Range) -> pa.Array:
    """Return the column `name` of the source for the records in `batch`."""
    rows = batch.num_rows
    if name == "topic":
        return _constant_column(source_range.topic, rows)
    if name == "partition":
        return _constant_column(source_range.partition, rows)
    if name == "timestamp":
        return _timestamps(batch, source_range)
    return batch.column(_DECODED[name])


def _timestamps(batch: pa.RecordBatch, source_range: Range) -> pa.Array:
    column = batch.column("timestamp_ms")
    try:
        return column.view(_MILLIS).cast(_MICROS)
    except pa.ArrowInvalid as error:
        milliseconds = to_numpy(column)
        out_of_range = milliseconds[(milliseconds > _MAX_MILLIS) | (milliseconds < -_MAX_MILLIS)][0]
        raise UsageError(
            with_error_class(
                MALFORMED_RECORD_TIMESTAMP,
                f"a record of {source_range.topic}-{source_range.partition} in offsets {source_range.from_offset} to "
                f"{source_range.until_offset} has the timestamp {out_of_range}, too large for Spark's microseconds. "
                "Kafka's timestamps are milliseconds: its producer probably wrote others. To read the other columns, "
                "leave timestamp out of the option columns",
            )
        ) from error


def _constant_column(value: str | int, rows: int) -> pa.Array:
    """Return the value, repeated. Chunks share a cached column of a power of two rows, unless it is too large."""
    rounded = 1 << max(rows - 1, 1).bit_length()
    if rounded * (len(value) if isinstance(value, str) else _INT32_BYTES) > _MAX_CACHED_BYTES:
        return _repeated(value, rows)
    return _cached_column(value, rounded).slice(0, rows)


def _repeated(value: str | int, rows: int) -> pa.Array:
    if isinstance(value, int):
        return to_arrow(np.full(rows, value, np.int32))
    text = value.encode()
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text * rows)])


_cached_column = lru_cache(maxsize=16)(_repeated)


def resolve_client_rack(config: ConsumerConfig) -> ConsumerConfig:
    """Return the configuration with this machine's rack; without one, and with a warning, if the variable is unset."""
    if not config.client_rack.startswith(_RACK_FROM_ENVIRONMENT):
        return config
    variable = config.client_rack[len(_RACK_FROM_ENVIRONMENT) :]
    rack = os.environ.get(variable, "")
    if not rack:
        warn_once(f"kafka.client.rack is env:{variable}, which is not set here: records are read from their leaders")
    return replace(config, client_rack=rack)
