"""The streaming sink: `df.writeStream`. Checks on the driver, lets the tasks write, logs one line per batch.

Spark makes two writers for every batch, in different processes: one whose copies write, and one that is told how the
batch ended. At least once, unless `deliveryGuarantee` says more: a batch that Spark runs again is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from protocol.once import log_once
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.sink import delivery
from spark_kafka_source.sink.columns import plan_sink
from spark_kafka_source.sink.rows import arrow_batches
from spark_kafka_source.sink.task_writer import TaskWritten, summary
from spark_kafka_source.task.shipped import Shipped

log = logging.getLogger(__name__)


class RowStreamWriter(Shipped, DataSourceStreamWriter):
    """Takes rows, one Python object each: for PySpark 4.0, which cannot hand Arrow batches to a streaming sink."""

    def __init__(self, options: SinkOptions, schema: StructType, warnings: Sequence[str] = ()) -> None:
        """Raises `ConfigurationError` or `UsageError` for a DataFrame that cannot be written (see `plan_sink`).

        `warnings`: what there is to say about the options, when a query's first batch has ended.
        """
        self._options = options
        self._task = delivery.task_writer(options, plan_sink(schema, options.topic), streaming=True)
        self._schema = schema
        self._warnings = warnings

    def write(self, iterator: Iterator[Row]) -> TaskWritten:
        return self._task.write(arrow_batches(iterator, self._schema, self._task.plan))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._say_warnings()
        delivery.commit(self._options, messages)
        log.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._say_warnings()
        # Spark calls this for a query that was stopped exactly as for one that failed. A failure needs no words here:
        # it ends the query with an error, and a task of ours that fails says there what it had written.
        delivery.abort(self._options, self._task, messages)
        log.info(
            "batch %d is not complete, and is written again when the query goes on: %s", batchId, summary(messages)
        )

    def _say_warnings(self) -> None:
        for warning in self._warnings:
            log_once(warning)


if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class KafkaStreamWriter(RowStreamWriter, datasource.DataSourceStreamArrowWriter):
        """Takes Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
            return self._task.write(iterator)

else:
    KafkaStreamWriter: Any = RowStreamWriter  # type: ignore[no-redef]
