"""The sink's plan and columns: which DataFrame columns are written, and the errors for the others."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
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

from protocol.errors import ConfigurationError, UsageError
from spark_kafka_source.sink.columns import HEADERS, TopicColumns, plan_sink, topic_columns
from spark_kafka_source.spark_api import arrow_type

SPARK_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
TEXT_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", StringType()))


def schema(**columns: Any) -> StructType:
    struct = StructType()
    for name, kind in columns.items():
        struct.add(name, kind)
    return struct


def split(batch: pa.RecordBatch, spark: StructType, topic: str | None = None) -> list[TopicColumns]:
    return list(topic_columns(plan_sink(spark, topic), batch))


class TestPlan:
    def test_columns_of_sparks_connector_are_taken_and_others_ignored(self) -> None:
        plan = plan_sink(
            schema(
                value=BinaryType(),
                key=StringType(),
                headers=SPARK_HEADERS,
                topic=StringType(),
                partition=IntegerType(),
                timestamp=TimestampType(),
                offset=LongType(),
                timestampType=IntegerType(),
            ),
            None,
        )
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
        ("name", "kind", "result", "allowed"),
        [
            ("value", LongType(), "bigint", "string or binary"),
            ("key", ArrayType(IntegerType()), "array<int>", "string or binary"),
            ("topic", BinaryType(), "binary", "string"),
            ("partition", LongType(), "bigint", "int"),
            ("timestamp", TimestampNTZType(), "timestamp_ntz", "timestamp"),
            (
                "headers",
                TEXT_HEADERS,
                "array<struct<key:string,value:string>>",
                "array<struct<key:string,value:binary>>",
            ),
            ("headers", StringType(), "string", "array<struct<key:string,value:binary>>"),
        ],
    )
    def test_wrong_type_error_names_column_type_and_allowed_types(
        self, name: str, kind: Any, result: str, allowed: str
    ) -> None:
        with pytest.raises(UsageError) as error:
            plan_sink(schema(**{"value": StringType(), "topic": StringType(), name: kind}), None)
        if name in ("partition", "timestamp", "headers"):
            remedy = "Cast it, or drop or rename the column."
        elif result.startswith(("array", "map", "struct")):
            remedy = f'Convert it to JSON: selectExpr("to_json({name}) AS {name}").'
        else:
            remedy = "Cast it."
        assert (
            str(error.value) == f"{name} attribute unsupported type {result}. {name} must be a(n) {allowed}. {remedy}"
        )

    def test_error_about_headers_as_a_map_shows_how_to_convert_it(self) -> None:
        headers = MapType(StringType(), StringType())
        with pytest.raises(
            UsageError, match=r"Convert it: transform\(map_entries\(headers\), e -> struct\(e.key AS key, "
        ):
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

    def test_timestamps_become_milliseconds_and_null_stays_null(self) -> None:
        micros = 1_709_209_815_123_999
        batch = pa.record_batch(
            {"value": ["a", "b"], "timestamp": pa.array([micros, None], pa.timestamp("us", tz="Europe/Berlin"))}
        )
        (written,) = split(batch, schema(value=StringType(), timestamp=TimestampType()), "t")
        assert written.columns.column("timestamp_ms").to_pylist() == [1_709_209_815_123, None]

    def test_first_timestamp_of_1970_is_accepted(self) -> None:
        batch = pa.record_batch({"value": ["a"], "timestamp": pa.array([0], pa.timestamp("us", tz="UTC"))})
        (written,) = split(batch, schema(value=StringType(), timestamp=TimestampType()), "t")
        assert written.columns.column("timestamp_ms").to_pylist() == [0]

    def test_timestamp_before_1970_is_refused(self) -> None:
        batch = pa.record_batch({"value": ["a"], "timestamp": pa.array([-1_500], pa.timestamp("us", tz="UTC"))})
        with pytest.raises(UsageError, match=r"timestamp of a row is before 1970 \(-2 ms\): Kafka takes 0 or later"):
            split(batch, schema(value=StringType(), timestamp=TimestampType()), "t")

    def test_partition_column_is_used_and_null_leaves_row_to_partitioner(self) -> None:
        batch = pa.record_batch({"value": ["a", "b"], "partition": pa.array([3, None], pa.int32())})
        (written,) = split(batch, schema(value=StringType(), partition=IntegerType()), "t")
        assert written.partitions is not None
        assert written.partitions.to_pylist() == [3, None]

    def test_negative_partition_is_refused(self) -> None:
        batch = pa.record_batch({"value": ["a"], "partition": pa.array([-1], pa.int32())})
        with pytest.raises(UsageError, match="partition of a row is -1: Kafka's partitions are numbered from 0"):
            split(batch, schema(value=StringType(), partition=IntegerType()), "t")

    def test_null_and_empty_header_lists_and_null_header_values_are_kept(self) -> None:
        headers = [None, [], [{"key": "a", "value": None}, {"key": "a", "value": b""}]]
        batch = pa.record_batch({"value": ["x"] * 3, "headers": pa.array(headers, HEADERS)})
        (written,) = split(batch, schema(value=StringType(), headers=SPARK_HEADERS), "t")
        assert written.columns.column("headers").to_pylist() == headers

    @pytest.mark.parametrize("bad", [{"key": None, "value": b"1"}, None])
    def test_header_without_key_is_refused(self, bad: Any) -> None:
        batch = pa.record_batch({"value": ["x"], "headers": pa.array([[{"key": "a", "value": b""}, bad]], HEADERS)})
        with pytest.raises(UsageError, match="headers of a row hold a null key"):
            split(batch, schema(value=StringType(), headers=SPARK_HEADERS), "t")

    def test_batch_without_rows_has_no_topics(self) -> None:
        batch = pa.record_batch({"value": pa.array([], pa.string()), "topic": pa.array([], pa.string())})
        assert split(batch, schema(value=StringType(), topic=StringType())) == []


class TestTopics:
    def test_rows_are_split_by_topic_and_keep_their_order(self) -> None:
        topics = ["b", "a", "b", "c", "a", "b"]
        batch = pa.record_batch(
            {
                "topic": topics,
                "value": [f"{topic}{i}" for i, topic in enumerate(topics)],
                "partition": pa.array([0, None, 2, 3, 4, 5], pa.int32()),
            }
        )
        by_topic = split(batch, schema(topic=StringType(), value=StringType(), partition=IntegerType()))
        rows = {
            written.topic: (written.columns.column("value").to_pylist(), written.partitions.to_pylist())
            for written in by_topic
            if written.partitions is not None
        }
        assert rows == {
            "b": ([b"b0", b"b2", b"b5"], [0, 2, 5]),
            "a": ([b"a1", b"a4"], [None, 4]),
            "c": ([b"c3"], [3]),
        }

    def test_sliced_batch_is_split_like_whole_batch(self) -> None:
        batch = pa.record_batch({"topic": ["x", "a", "b", "a"], "value": ["0", "1", "2", "3"]}).slice(1)
        by_topic = split(batch, schema(topic=StringType(), value=StringType()))
        assert {written.topic: written.columns.column("value").to_pylist() for written in by_topic} == {
            "a": [b"1", b"3"],
            "b": [b"2"],
        }

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

    def test_null_topic_is_ignored_if_topic_option_is_set(self) -> None:
        batch = pa.record_batch({"topic": pa.array([None], pa.string()), "value": ["1"]})
        (written,) = split(batch, schema(topic=StringType(), value=StringType()), "orders")
        assert written.topic == "orders"


def test_arrow_type_of_a_column_is_found_with_older_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = pa.timestamp("us", tz="UTC")
    assert arrow_type(TimestampType()) == expected
    # PySpark 4.1 has no parameter `timezone`.
    monkeypatch.setattr("pyspark.sql.pandas.types.to_arrow_type", lambda dt, timestamp_utc=True: expected)
    assert arrow_type(TimestampType()) == expected
