"""A Python source that returns one constant Arrow batch repeatedly: Spark's limit for such sources.

Without records it is the floor: the cost of a streaming query over any Python source. The batch has the columns of
this project's source and values like `values.event_values`. A separate module, since Spark's workers import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.job import Topic
from benchmarks.values import event_keys, event_values
from spark_kafka_source.options.parsing import row_columns
from spark_kafka_source.spark_api import ReadLimit, SupportsTriggerAvailableNow
from spark_kafka_source.task.row_schema import arrow_schema, spark_schema

NAME = "constant"
BATCH_ROWS = 8_000


def constant_options(topic: Topic, micro_batches: int, records: int) -> dict[str, str]:
    """Return the options for a query like one over `topic`, with `records` records in all micro-batches."""
    per_batch = records // micro_batches
    return {"records": str(per_batch), "microBatches": str(micro_batches), "tasks": str(topic.partitions)}


class ConstantDataSource(DataSource):
    """Options: `records` of each micro-batch, `microBatches`, `tasks`, `rows` of an Arrow batch, and `columns`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(row_columns({"columns": self.options["columns"]} if "columns" in self.options else {}))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Reader(self.options, tuple(schema.fieldNames()))


@dataclass(frozen=True)
class _Task(InputPartition):
    records: int


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are the numbers of the micro-batches."""

    def __init__(self, options: dict[str, str], columns: tuple[str, ...]) -> None:
        self._records = int(options.get("records", "0"))
        self._micro_batches = int(options.get("microBatches", "1"))
        self._tasks = int(options.get("tasks", "6"))
        self._rows = int(options.get("rows", BATCH_ROWS))
        self._columns = columns

    def initialOffset(self) -> dict[str, int]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"batch": min(start["batch"] + 1, self._micro_batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [_Task(self._records // self._tasks) for _ in range(self._tasks)]

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(task, _Task)
        remaining = task.records
        batch = constant_batch(self._columns, self._rows) if remaining else None
        while batch is not None and remaining:
            rows = min(remaining, self._rows)
            yield batch if rows == self._rows else batch.slice(0, rows)
            remaining -= rows


@lru_cache(maxsize=8)
def constant_batch(columns: tuple[str, ...], rows: int) -> pa.RecordBatch:
    keys, values = event_keys(), event_values(110)
    made = {
        "key": pa.array([keys[row % len(keys)] for row in range(rows)], pa.binary()),
        "value": pa.array([values[row % len(values)] for row in range(rows)], pa.binary()),
        "topic": pa.array(["events"] * rows),
        "partition": pa.array([3] * rows, pa.int32()),
        "offset": pa.array(range(1_000_000, 1_000_000 + rows), pa.int64()),
        "timestamp": pa.array([1_767_225_600_000_000] * rows, pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_arrays([made[name] for name in columns], schema=arrow_schema(columns))
