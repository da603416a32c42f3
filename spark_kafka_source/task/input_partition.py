"""What Spark carries from the driver to a task: the ranges to read. Pickled by Spark, so it stays small."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from protocol.consumer.range import Range


class RangePartition(InputPartition):
    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges

    def __repr__(self) -> str:
        return f"RangePartition({self.ranges!r})"
