"""Conversion of rows, which PySpark 4.0 passes to a streaming sink instead of Arrow batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType, TimestampType

from protocol.base import once
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


def test_rows_give_same_columns_as_arrow_batches() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, 123_456)
    headers = [Row(key="h", value=bytearray(b"1")), Row(key="h", value=None)]
    rows = [
        Row("x", "a", bytearray(b"\xff"), headers, "t", 2, moment),
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


def test_many_rows_are_split_into_batches_in_order() -> None:
    schema = StructType().add("value", StringType())
    count = 10_001
    batches = list(sink_rows.arrow_batches((Row(str(i)) for i in range(count)), schema, plan_sink(schema, "t")))
    assert len(batches) > 1
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [str(i) for i in range(count)]


@pytest.fixture
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    once.reset()
    yield
    monkeypatch.undo()
    time.tzset()


# Summer time ended on 27 October 2024 at 01:00 UTC.
BEFORE_BOTH_HOURS = datetime(2024, 10, 26, 23, 0, tzinfo=timezone.utc)


def written_micros(values: list[datetime]) -> list[int]:
    schema = StructType().add("value", StringType()).add("timestamp", TimestampType())
    rows = [Row("", value) for value in values]
    (batch,) = sink_rows.arrow_batches(rows, schema, plan_sink(schema, "t"))
    return [round(value.timestamp() * 1e6) for value in batch["timestamp"].to_pylist()]


@pytest.mark.usefixtures("_in_berlin")
def test_timestamps_around_end_of_summer_time_are_kept_if_unambiguous(caplog: pytest.LogCaptureFixture) -> None:
    moments = [BEFORE_BOTH_HOURS + timedelta(minutes=30 * half, microseconds=7) for half in range(8)]
    values = [datetime.fromtimestamp(moment.timestamp()) for moment in moments]
    remembered = [value for value in values if value.hour != 2 or value.fold]
    assert len(remembered) == 6
    assert written_micros(remembered) == [round(value.timestamp() * 1e6) for value in remembered]
    assert caplog.messages == []


@pytest.mark.usefixtures("_in_berlin")
def test_timestamp_in_repeated_hour_warns_if_ambiguous(caplog: pytest.LogCaptureFixture) -> None:
    first, second = (BEFORE_BOTH_HOURS + timedelta(hours=hours) for hours in (1.5, 2.5))
    as_pyspark_4_0_does = [moment.astimezone().replace(tzinfo=None) for moment in (first, second)]
    assert written_micros(as_pyspark_4_0_does) == [round(first.timestamp() * 1e6)] * 2
    (warning,) = caplog.messages
    assert "in the hour that clocks repeat" in warning
    assert "spark.executorEnv.TZ" in warning
