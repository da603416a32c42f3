"""The sink's plan, columns and rows: which DataFrame columns are written, and the errors for the others."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from protocol.base import once
from protocol.errors import ConfigurationError, UsageError
from spark_kafka_source.sink import rows as sink_rows
from spark_kafka_source.sink.columns import HEADERS, TopicColumns, plan_sink, topic_columns
from spark_kafka_source.spark_api import arrow_type

SPARK_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
TEXT_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", StringType()))


TO_JSON = 'Convert it to JSON: selectExpr("to_json(key) AS key").'
CAST_OR_DROP = "Cast it, or drop or rename the column."


def schema(**columns: Any) -> StructType:
    struct = StructType()
    for name, kind in columns.items():
        struct.add(name, kind)
    return struct


def split(batch: pa.RecordBatch, spark: StructType, topic: str | None = None) -> list[TopicColumns]:
    return list(topic_columns(plan_sink(spark, topic), batch))


UTC = pa.timestamp("us", tz="UTC")
A_HEADER = {"key": "a", "value": b""}
TYPES = {"timestamp": TimestampType(), "partition": IntegerType(), "headers": SPARK_HEADERS}


def written_with(name: str, values: pa.Array) -> TopicColumns:
    """Return the columns of rows that have a value, and this column of `TYPES`."""
    batch = pa.record_batch({"value": ["x"] * len(values), name: values})
    (written,) = split(batch, schema(value=StringType(), **{name: TYPES[name]}), "t")
    return written


class TestPlan:
    def test_columns_of_sparks_connector_are_taken_and_others_ignored(self) -> None:
        text, number = StringType(), IntegerType()
        taken = schema(value=BinaryType(), key=text, headers=SPARK_HEADERS, topic=text, partition=number)
        every = taken.add("timestamp", TimestampType()).add("offset", LongType()).add("timestampType", number)
        plan = plan_sink(every, None)
        assert plan.names == {"value", "key", "headers", "topic", "partition", "timestamp"}
        assert pickle.loads(pickle.dumps(plan)) == plan

    def test_topic_option_overrides_topic_column_of_any_type(self) -> None:
        plan = plan_sink(schema(value=StringType(), topic=IntegerType()), "orders")
        assert plan.topic == "orders"
        assert "topic" not in plan.names

    def test_missing_topic_error_names_topic_option(self) -> None:
        with pytest.raises(ConfigurationError) as error:
            plan_sink(schema(value=StringType(), key=StringType()), None)
        assert str(error.value) == (
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic: "
            '.option("topic", "..."). The columns are value, key.'
        )

    def test_missing_value_column_error_shows_how_to_make_one(self) -> None:
        with pytest.raises(UsageError) as error:
            plan_sink(schema(id=LongType(), Value=StringType()), "orders")
        assert str(error.value) == (
            "Required attribute 'value' not found; the columns are id, Value. Convert the row to one "
            'column named value, of type string or binary, for example with selectExpr("to_json(struct(*)) AS value").'
        )

    @pytest.mark.parametrize(
        ("name", "kind", "allowed", "remedy"),
        [
            ("value", LongType(), "string or binary", "Cast it."),
            ("key", ArrayType(IntegerType()), "string or binary", TO_JSON),
            ("topic", BinaryType(), "string", "Cast it."),
            ("partition", LongType(), "int", CAST_OR_DROP),
            ("timestamp", TimestampNTZType(), "timestamp", CAST_OR_DROP),
            ("headers", TEXT_HEADERS, "array<struct<key:string,value:binary>>", CAST_OR_DROP),
            ("headers", StringType(), "array<struct<key:string,value:binary>>", CAST_OR_DROP),
        ],
        ids=["value", "key", "topic", "partition", "timestamp", "headers of texts", "headers as a text"],
    )
    def test_wrong_type_error_names_column_type_and_allowed_types(
        self, name: str, kind: Any, allowed: str, remedy: str
    ) -> None:
        with pytest.raises(UsageError) as error:
            plan_sink(schema(**{"value": StringType(), "topic": StringType(), name: kind}), None)
        problem = f"{name} attribute unsupported type {kind.simpleString()}"
        assert str(error.value) == f"{problem}. {name} must be a(n) {allowed}. {remedy}"

    @pytest.mark.parametrize("name", ["value", "key"])
    def test_second_column_of_a_name_is_refused_if_it_would_be_written(self, name: str) -> None:
        twice = schema(value=StringType(), key=StringType(), topic=StringType()).add(name, StringType())
        with pytest.raises(UsageError, match=f"^2 columns are named {name}, .* Rename or leave out the others"):
            plan_sink(twice, "orders")
        unused = schema(value=StringType(), topic=StringType(), id=LongType()).add("topic", StringType())
        assert plan_sink(unused.add("id", LongType()), "orders").names == {"value"}

    def test_error_about_headers_as_a_map_shows_how_to_convert_it(self) -> None:
        headers = MapType(StringType(), StringType())
        remedy = r"Convert it: transform\(map_entries\(headers\), e -> struct\(e.key AS key, "
        with pytest.raises(UsageError, match=remedy):
            plan_sink(schema(value=StringType(), headers=headers), "orders")


class TestColumns:
    def test_strings_become_bytes_without_copy(self) -> None:
        batch = pa.record_batch({"value": ["grün", None, ""], "key": pa.array([b"\x00\xff", None, b""])})
        (written,) = split(batch, schema(value=StringType(), key=BinaryType()), "orders")
        assert written.topic == "orders"
        assert written.partitions is None
        assert written.columns.to_pydict() == {"value": ["grün".encode(), None, b""], "key": [b"\x00\xff", None, b""]}
        assert written.columns.column("value").buffers()[2].address == batch.column("value").buffers()[2].address

    def test_large_types_and_non_null_fields_are_accepted(self) -> None:
        kind = pa.struct([pa.field("key", pa.large_string(), nullable=False), ("value", pa.large_binary())])
        batch = pa.record_batch(
            {
                "value": pa.array(["a"], pa.large_string()),
                "topic": pa.array(["t"], pa.large_string()),
                "headers": pa.array([[{"key": "h", "value": b"1"}]], pa.list_(pa.field("element", kind, False))),
            }
        )
        (written,) = split(batch, schema(value=StringType(), topic=StringType(), headers=SPARK_HEADERS))
        assert written.topic == "t"
        assert written.columns.schema.types == [pa.binary(), HEADERS]
        assert written.columns.to_pylist() == [{"value": b"a", "headers": [{"key": "h", "value": b"1"}]}]

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
    def test_timestamps_become_milliseconds_and_null_stays_null(self, zone: str) -> None:
        times = pa.array([1_709_209_815_123_999, 0, None], pa.timestamp("us", tz=zone))
        assert written_with("timestamp", times).columns["timestamp_ms"].to_pylist() == [1_709_209_815_123, 0, None]

    def test_partition_column_is_used_and_null_leaves_row_to_partitioner(self) -> None:
        partitions = written_with("partition", pa.array([3, None], pa.int32())).partitions
        assert partitions.to_pylist() == [3, None]

    def test_null_and_empty_header_lists_and_null_header_values_are_kept(self) -> None:
        headers = [None, [], [{"key": "a", "value": None}, {"key": "a", "value": b""}]]
        assert written_with("headers", pa.array(headers, HEADERS)).columns["headers"].to_pylist() == headers

    @pytest.mark.parametrize(
        ("name", "values", "problem"),
        [
            ("timestamp", pa.array([-1_500], UTC), r"is before 1970 \(-2 ms\): Kafka takes 0 or later"),
            ("partition", pa.array([-1], pa.int32()), "is -1: Kafka's partitions are numbered from 0"),
            ("headers", pa.array([[A_HEADER, {"key": None, "value": b"1"}]], HEADERS), "hold a null key"),
            ("headers", pa.array([[A_HEADER, None]], HEADERS), "hold a null key"),
        ],
        ids=["timestamp before 1970", "negative partition", "header without key", "null header"],
    )
    def test_value_that_kafka_does_not_take_is_refused(self, name: str, values: pa.Array, problem: str) -> None:
        with pytest.raises(UsageError, match=f"{name} of a row {problem}"):
            written_with(name, values)

    def test_batch_without_rows_has_no_topics(self) -> None:
        batch = pa.record_batch({"value": pa.array([], pa.string()), "topic": pa.array([], pa.string())})
        assert split(batch, schema(value=StringType(), topic=StringType())) == []


class TestTopics:
    def test_rows_of_a_batch_or_slice_are_split_by_topic_and_keep_their_order(self) -> None:
        topics = ["b", "a", "b", "c", "a", "b"]
        values = [f"{topic}{i}" for i, topic in enumerate(topics)]
        partitions = pa.array([0, None, 2, 3, 4, 5], pa.int32())
        batch = pa.record_batch({"topic": topics, "value": values, "partition": partitions})
        by_topic = {
            "b": ([b"b0", b"b2", b"b5"], [0, 2, 5]),
            "a": ([b"a1", b"a4"], [None, 4]),
            "c": ([b"c3"], [3]),
        }
        for rows, expected in ((batch, by_topic), (batch.slice(1), {**by_topic, "b": ([b"b2", b"b5"], [2, 5])})):
            assert {
                written.topic: (written.columns.column("value").to_pylist(), written.partitions.to_pylist())
                for written in split(rows, schema(topic=StringType(), value=StringType(), partition=IntegerType()))
            } == expected

    def test_rows_of_single_topic_are_not_copied(self) -> None:
        batch = pa.record_batch({"topic": ["t"] * 3, "value": pa.array([b"1", b"2", b"3"])})
        (written,) = split(batch, schema(topic=StringType(), value=BinaryType()))
        assert written.columns.column("value").equals(batch.column("value"))
        assert written.columns.column("value").buffers()[2].address == batch.column("value").buffers()[2].address

    def test_null_topic_raises_sparks_named_error_before_any_row(self) -> None:
        batch = pa.record_batch({"topic": ["a", None, "b", None], "value": ["1", "2", "3", "4"]})
        rows = topic_columns(plan_sink(schema(topic=StringType(), value=StringType()), None), batch)
        with pytest.raises(UsageError) as error:
            next(rows)
        assert str(error.value) == (
            "[KAFKA_NULL_TOPIC_IN_DATA] The Kafka message data sent to the producer contains a null topic "
            "(2 of 4 rows of this Arrow batch, the first of them row 1). Use the topic option for setting a topic "
            'for all rows, .option("topic", "..."), or give every row one.'
        )


def test_arrow_type_of_a_column_is_found_with_older_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pa.timestamp("us", tz="UTC")
    assert arrow_type(TimestampType()) == expected
    # PySpark 4.1 has no parameter `timezone`.
    monkeypatch.setattr("pyspark.sql.pandas.types.to_arrow_type", lambda dt, timestamp_utc=True: expected)
    assert arrow_type(TimestampType()) == expected


# -- rows, which PySpark 4.0 passes to a streaming sink instead of Arrow batches ---------------------

EVERY_COLUMN = schema(
    extra=StringType(),
    value=StringType(),
    key=BinaryType(),
    headers=SPARK_HEADERS,
    topic=StringType(),
    partition=IntegerType(),
    timestamp=TimestampType(),
)


def test_rows_give_same_columns_as_arrow_batches() -> None:
    moment = datetime(2024, 2, 29, 12, 30, 15, 123_456)
    headers = [Row(key="h", value=bytearray(b"1")), Row(key="h", value=None)]
    rows = [
        Row("x", "a", bytearray(b"\xff"), headers, "t", 2, moment),
        Row("y", None, None, None, "t", None, None),
    ]
    plan = plan_sink(EVERY_COLUMN, None)
    (batch,) = sink_rows.arrow_batches(rows, EVERY_COLUMN, plan)
    (written,) = topic_columns(plan, batch)
    assert written.topic == "t"
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
    value, count = schema(value=StringType()), 10_001
    batches = list(sink_rows.arrow_batches((Row(str(i)) for i in range(count)), value, plan_sink(value, "t")))
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
    columns = schema(value=StringType(), timestamp=TimestampType())
    (batch,) = sink_rows.arrow_batches([Row("", value) for value in values], columns, plan_sink(columns, "t"))
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
