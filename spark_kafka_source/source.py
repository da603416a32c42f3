"""The data source "pykafka-group": name, schema, readers and writers.

Spark creates the data source in several processes on the driver. Modules of readers and writers are imported when used,
so that importing this module is quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)

from protocol.base.once import deferred_warnings
from protocol.errors import KafkaError
from spark_kafka_source.options.parsing import (
    has_formats,
    parse_read_options,
    parse_sink_options,
    parse_source_options,
    row_columns,
)
from spark_kafka_source.spark_api import SupportsTriggerAvailableNow, activate, streaming_environment
from spark_kafka_source.task.pickling import PickledForExecutors
from spark_kafka_source.task.row_schema import require_source_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_kafka_source.options.table import SourceOptions

NAME = "pykafka-group"

# Spark adds this option for SQL tables.
_TABLE_OPTION = "provider"


Returned = TypeVar("Returned")


def _without_traceback(method: Callable[..., Returned]) -> Callable[..., Returned]:
    """Raise errors of this package without traceback and causes: Spark shows both, and the message says it all."""

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Returned:
        try:
            return method(*arguments, **named)
        except KafkaError as error:
            raise error.with_traceback(None) from None

    return call


class KafkaGroupDataSource(PickledForExecutors, DataSource):
    """Kafka as a source and a sink of Spark, streaming and batch: `format("pykafka-group")`.

    Options: docs/options.md, or `python -m spark_kafka_source.options`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    @_without_traceback
    def schema(self) -> StructType:
        """Return the schema of rows, as `task.row_schema.spark_schema`.

        Spark calls this in `load()` without a user's schema, and in `CREATE TABLE` without columns.
        """
        # A table may be used for writes only, so reads check its options later.
        if _TABLE_OPTION in self.options and not has_formats(self.options):
            return spark_schema(row_columns(self.options))
        options = parse_read_options(self.options)
        if options.needs_schemas:
            from spark_kafka_source.driver.reader_schemas import with_schemas

            with deferred_warnings():  # the reader warns
                options = with_schemas(options)
        return spark_schema(options.row_columns, options.schemas)

    @_without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query.

        Raises `ConfigurationError`: an option is wrong, or the user has set another schema.
        """
        from spark_kafka_source.driver.batch_reader import KafkaBatchReader

        return KafkaBatchReader(_source_options(self.options, schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. If an option is wrong, it raises the error at its first call."""
        try:
            from spark_kafka_source.driver.stream_reader import KafkaStreamReader

            # Spark also creates a reader for planning, in another process; only the reader that runs the query warns.
            with deferred_warnings() as warnings:
                options = _source_options(self.options, schema, streaming=True)
        except (KafkaError, ImportError) as error:
            return RefusedStreamReader(error)
        return KafkaStreamReader(options, warnings)

    @_without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch write. Raises `ConfigurationError` if an option is wrong."""
        from spark_kafka_source.sink.batch_writer import KafkaBatchWriter

        return KafkaBatchWriter(parse_sink_options(self.options), schema, overwrite)

    @_without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query. Raises `ConfigurationError` if an option is wrong."""
        from spark_kafka_source.sink.stream_writer import KafkaStreamWriter

        # Spark also creates a writer for planning; only the one that commits or aborts logs the warnings.
        with deferred_warnings() as warnings:
            options = parse_sink_options(self.options)
        return KafkaStreamWriter(options, schema, warnings)


def _source_options(texts: Mapping[str, str], schema: StructType, *, streaming: bool) -> SourceOptions:
    """Parse the options, with the schemas that `load()` has declared; raise `ConfigurationError` for another one."""
    if not has_formats(texts):
        require_source_schema(schema, row_columns(texts))
        options = parse_source_options(texts, streaming=streaming)
        if not options.needs_schemas:
            return options
    from spark_kafka_source.driver.reader_schemas import with_schemas

    options = with_schemas(parse_source_options(texts, streaming=streaming), schema)
    require_source_schema(schema, options.row_columns, options.schemas)
    return options


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a query with wrong options or a missing package: raises `error` at Spark's first call.

    If `DataSource.streamReader` raised the error itself, PySpark's runner would call `stop` of a reader that does not
    exist, and the query would report that `UnboundLocalError` instead.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise self._error.with_traceback(None) from None

    prepareForTriggerAvailableNow = initialOffset = getDefaultReadLimit = latestOffset = partitions = read = _refuse


def register(spark: SparkSession, name: str = NAME) -> None:
    """Register `format("pykafka-group")` in a session, and activate the session in the calling thread.

    Needed if Spark does not discover the format, once in each new thread that writes, and before streaming queries that
    start at the same time (docs/tuning.md); harmless otherwise. A query loaded afterwards shares nothing with queries
    loaded before.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    name : str
        Another name for the format. Databricks adds the options of a Unity Catalog connection to the format
        `lakeflow_connect` only: see docs/clouds.md.
    """
    activate(spark)
    alias = type("KafkaAlias", (KafkaGroupDataSource,), {"name": classmethod(lambda cls: name)})
    try:
        with streaming_environment(spark):
            spark.dataSource.register(KafkaGroupDataSource if name == NAME else alias)
    except AnalysisException as error:
        # PySpark 4.0 refuses a format that it has discovered itself; later versions replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
