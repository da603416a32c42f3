"""The input partition of a task: the ranges to read. Spark pickles it on the driver for the executor."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from protocol.consumer.log_offsets import Range


@dataclass
class RangePartition(InputPartition):
    """Ranges that one task reads."""

    ranges: tuple[Range, ...]
