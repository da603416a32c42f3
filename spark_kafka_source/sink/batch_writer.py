"""The batch sink: `df.write`. Checks the DataFrame on the driver; tasks write; the driver logs one line.

At least once by default: rows of a task that failed, or that Spark ran twice, may be in Kafka more than once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from protocol.errors import ConfigurationError
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.sink import guarantee
from spark_kafka_source.sink.columns import plan_sink
from spark_kafka_source.sink.task_writer import TaskWritten, summary
from spark_kafka_source.sink.value_schemas import writer_schemas
from spark_kafka_source.task.pickling import PickledForExecutors

log = logging.getLogger(__name__)


class KafkaBatchWriter(PickledForExecutors, DataSourceArrowWriter):
    """The writer of one batch write.

    Raises `ConfigurationError` or `UsageError`: the DataFrame cannot be written (see `plan_sink`).
    """

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigurationError(
                'save mode "overwrite" is not possible: records are only ever added to a topic. Use .mode("append"); '
                "to empty a topic first, delete it or its records with Kafka's tools."
            )
        self._options = options
        plan = plan_sink(schema, options.topic, writer_schemas(options, schema))
        self._task = guarantee.task_writer(options, plan, streaming=False)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        """Write the rows of one task. Runs on an executor."""
        return self._task.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Complete the write after all tasks. Runs on the driver."""
        guarantee.commit(self._options, messages)
        log.info("%s", summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort transactions after a failure. Runs on the driver."""
        guarantee.abort(self._options, self._task, messages)
        if self._options.delivery_guarantee != "exactly-once":
            log.warning("the write is not complete. The rows written so far stay in Kafka (%s)", summary(messages))
