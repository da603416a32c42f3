"""This project's source without its decoder: it fetches every record, decodes none, and returns constant rows.

Compared with `constant_source`, it adds fetching and the brokers' share of the machine; this project's source adds
decoding. A separate module, since Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from benchmarks.constant_source import BATCH_ROWS, constant_batch
from protocol.fetch.bounded_reader import BoundedReader
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.source import KafkaGroupDataSource
from spark_kafka_source.task.range_reader import RangePartition

NAME = "undecoded"


class UndecodedDataSource(KafkaGroupDataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(parse_source_options(self.options, streaming=True))


class _Reader(KafkaStreamReader):
    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        options = self._options
        consumer = BoundedReader(PROCESS.client(options.client), options.consumer, partition.ranges)
        batch = constant_batch(options.row_columns, BATCH_ROWS)
        while fetched_together := consumer._next_fetched():
            for reading, fetched in fetched_together:
                remaining = min(fetched.next_offset, reading.until_offset) - fetched.start.offset
                while remaining > 0:
                    yield batch.slice(0, min(remaining, BATCH_ROWS))
                    remaining -= BATCH_ROWS
