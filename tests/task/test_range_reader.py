"""Columns that a task adds to the records of a range."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest

from protocol.consumer.log_offsets import Range
from spark_kafka_source.task import range_reader


def column(name: str, wanted: Range, rows: int) -> pa.Array:
    return range_reader.spark_column(name, pa.record_batch({"offset": pa.array(range(rows), pa.int64())}), wanted)


@pytest.mark.parametrize("length", [1, 60, 249])
@pytest.mark.parametrize("rows", [1, 5, 16_000])
def test_topic_and_partition_columns_repeat_for_each_row(length: int, rows: int) -> None:
    wanted = Range("t" * length, 7, from_offset=0, until_offset=rows)
    assert column("topic", wanted, rows).equals(pa.array([wanted.topic] * rows))
    assert column("partition", wanted, rows).equals(pa.array([7] * rows, pa.int32()))


def test_cached_columns_of_long_topic_names_need_little_memory() -> None:
    topics = [Range(f"{number:03}" + "t" * 246, number, from_offset=0, until_offset=1) for number in range(40)]
    tracemalloc.start()
    try:
        for wanted in topics:
            for rows in (100, 2_000, 8_000, 16_000):
                column("topic", wanted, rows)
                column("partition", wanted, rows)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 << 20
