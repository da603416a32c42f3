"""What Spark carries from the driver to a task: the ranges to read. Pickled by Spark, so it stays small."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from protocol.consumer.log_offsets import Range


@dataclass
class RangePartition(InputPartition):
    ranges: tuple[Range, ...]
