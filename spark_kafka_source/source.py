"""The data source "pykafka-group": name, schema, and who reads and writes. No logic.

Spark makes one in the driver's planning processes; importing it must stay cheap, so the parts are imported when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)

from protocol.errors import ConfigurationError
from protocol.once import deferred_warnings
from spark_kafka_source.options.parsing import (
    check_read_options,
    parse_sink_options,
    parse_source_options,
    row_columns,
)
from spark_kafka_source.spark_api import activate
from spark_kafka_source.task.row_schema import require_own_schema, spark_schema
from spark_kafka_source.task.shipped import Shipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "pykafka-group"

# Spark puts it among the options of a table of SQL.
_TABLE = "provider"


class KafkaGroupDataSource(Shipped, DataSource):
    """Kafka as a source and a sink of Spark, streaming and batch: `format("pykafka-group")`.

    Options: docs/options.md, or `python -m spark_kafka_source.options`.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """Spark asks in `load()`, unless the user gives a schema, and in `CREATE TABLE` without columns."""
        # A table may be one to write to.
        if _TABLE not in self.options:
            check_read_options(self.options)
        return spark_schema(row_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_kafka_source.driver.batch_reader import KafkaBatchReader

        require_own_schema(schema, row_columns(self.options))
        return KafkaBatchReader(parse_source_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_kafka_source.driver.refused_reader import RefusedStreamReader

        try:
            from spark_kafka_source.driver.stream_reader import KafkaStreamReader

            require_own_schema(schema, row_columns(self.options))
            # Spark also makes a reader to plan with, in another process; the reader that runs the query warns.
            with deferred_warnings() as warnings:
                options = parse_source_options(self.options, streaming=True)
        except (ConfigurationError, ImportError) as error:
            return RefusedStreamReader(error)
        return KafkaStreamReader(options, warnings)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from spark_kafka_source.sink.batch_writer import KafkaBatchWriter

        return KafkaBatchWriter(parse_sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_kafka_source.sink.stream_writer import KafkaStreamWriter

        # Here, too, one is made to plan with; the one that is told how a batch ended says the warnings.
        with deferred_warnings() as warnings:
            options = parse_sink_options(self.options)
        return KafkaStreamWriter(options, schema, warnings)


def register(spark: SparkSession) -> None:
    """Make `format("pykafka-group")` known to a session, and the session the active one of the calling thread.

    Needed where Spark does not find the format by itself, and once in each new thread that writes; harmless elsewhere.
    A query that is loaded afterwards shares nothing with those loaded before, which first queries at the same time
    need: docs/tuning.md.
    """
    activate(spark)
    try:
        spark.dataSource.register(KafkaGroupDataSource)
    except AnalysisException as error:
        # PySpark 4.0 refuses a name that it has found by itself; later ones replace it.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
