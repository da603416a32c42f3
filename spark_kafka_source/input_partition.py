"""What Spark carries from the driver to a task: one range to read. Pickled by Spark, so it stays small."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from spark_kafka_source.ranges import OffsetRange


class RangePartition(InputPartition):
    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(wanted)
        self.range = wanted

    def __repr__(self) -> str:
        return f"RangePartition({self.range!r})"
