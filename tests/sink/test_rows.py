"""Rows instead of Arrow batches, as PySpark 4.0 gives them to a streaming sink: the same columns come out."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType, TimestampType

from spark_kafka_source.sink import rows as sink_rows
from spark_kafka_source.sink.columns import plan_sink, topic_columns

SCHEMA = (
    StructType()
    .add("extra", StringType())
    .add("value", StringType())
    .add("key", BinaryType())
    .add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("timestamp", TimestampType())
)


def test_rows_become_the_columns_that_arrow_batches_would_have_become() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, 123_456)
    rows = [
        Row(
            "x",
            "a",
            bytearray(b"\xff"),
            [Row(key="h", value=bytearray(b"1")), Row(key="h", value=None)],
            "t",
            2,
            moment,
        ),
        Row("y", None, None, None, "t", None, None),
    ]
    plan = plan_sink(SCHEMA, None)
    (batch,) = sink_rows.arrow_batches(rows, SCHEMA, plan)
    (written,) = topic_columns(plan, batch)
    assert written.topic == "t"
    assert written.partitions is not None
    assert written.partitions.to_pylist() == [2, None]
    assert written.columns.to_pylist() == [
        {
            "value": b"a",
            "key": b"\xff",
            "timestamp_ms": int(moment.timestamp() * 1000),
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {"value": None, "key": None, "timestamp_ms": None, "headers": None},
    ]


def test_many_rows_come_in_several_batches_in_their_order() -> None:
    schema = StructType().add("value", StringType())
    count = sink_rows._ROWS_PER_BATCH + 1
    batches = sink_rows.arrow_batches((Row(str(i)) for i in range(count)), schema, plan_sink(schema, "t"))
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [str(i) for i in range(count)]
