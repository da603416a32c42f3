"""The streaming sink: `df.writeStream`. Checks the DataFrame on the driver; tasks write; one log line per batch.

Spark creates two writers per batch, in different processes: tasks use copies of one, the other one commits or aborts.
At least once by default: a batch that Spark repeats is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, datasource
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from protocol.base.once import log_once
from protocol.errors import ConfigurationError
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import plan_sink
from spark_kafka_source.sink.rows import arrow_batches
from spark_kafka_source.sink.task_writer import TaskWritten, summary
from spark_kafka_source.sink.value_schemas import writer_schemas
from spark_kafka_source.task.pickling import PickledForExecutors

log = logging.getLogger(__name__)


class RowStreamWriter(PickledForExecutors, DataSourceStreamWriter):
    """The writer of a micro-batch of rows: for PySpark 4.0, which cannot pass Arrow batches to a streaming sink.

    `warnings`: warnings about the options, logged when a query's first batch has ended.
    Raises `ConfigurationError` or `UsageError`: the DataFrame cannot be written (see `plan_sink`).
    """

    def __init__(self, options: SinkOptions, schema: StructType, warnings: Sequence[str] = ()) -> None:
        self._options = options
        if options.encoded and type(self) is RowStreamWriter:
            part = options.encoded[0]
            raise ConfigurationError(
                f"{part}Format needs PySpark 4.1 or newer in a stream: PySpark 4.0 passes rows, not columns.",
                name=f"{part}Format",
            )
        plan = plan_sink(schema, options.topic, writer_schemas(options, schema))
        self._task = guarantee.task_writer(options, plan, streaming=True)
        self._schema = schema
        self._warnings = warnings

    def write(self, iterator: Iterator[Row]) -> TaskWritten:
        """Write the rows of one task. Runs on an executor."""
        return self._task.write(arrow_batches(iterator, self._schema, self._task.plan))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Complete a batch after all tasks. Runs on the driver."""
        self._log_warnings()
        guarantee.commit(self._options, messages)
        log.info("batch %d: %s", batchId, summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort transactions after a failure or a stop. Runs on the driver."""
        self._log_warnings()
        # Spark calls this for a stopped query as for a failed one. A failure is not logged here: the query's error has
        # the rows that the failed task had written.
        guarantee.abort(self._options, self._task, messages)
        log.info(
            "batch %d is not complete, and is written again when the query resumes: %s", batchId, summary(messages)
        )

    def _log_warnings(self) -> None:
        for warning in self._warnings:
            log_once(warning)


if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class KafkaStreamWriter(RowStreamWriter, datasource.DataSourceStreamArrowWriter):
        """The writer of a micro-batch of Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
            """Write the rows of one task. Runs on an executor."""
            return self._task.write(iterator)

else:
    KafkaStreamWriter: Any = RowStreamWriter  # type: ignore[no-redef]
