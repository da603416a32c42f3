"""Columns written as Protobuf: the protobuf package and Confluent's deserialiser read what a query has written."""

from __future__ import annotations

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.spark.sink.conftest import EncodedSink
from tests.support.protobuf_messages import Field, message_type
from tests.support.spark_frames import write

ORDER = message_type(
    {"id": (1, Field.TYPE_INT64), "lines": (2, Field.TYPE_STRING, 3), "n": (3, Field.TYPE_INT32)}, before=["First"]
)
TEXT = """
syntax = "proto3"; package shop; message First { int32 x = 1; }
message Order {
  int64 id = 1; repeated string lines = 2; int32 n = 3; enum State { NEW = 0; PAID = 1; } State state = 4;
}
"""


@pytest.fixture
def sink(kafka1: LocalKafka, topic1: TopicFactory, registry: FakeSchemaRegistry) -> EncodedSink:
    return EncodedSink(kafka1, topic1, registry, "confluent-protobuf")


def orders(spark: SparkSession, *more: str) -> DataFrame:
    fields = ", ".join(("id", "array('a', concat('b', id)) AS lines", *more))
    return spark.sql(f"SELECT struct({fields}) AS value FROM (SELECT explode(sequence(0L, 2L)) AS id)")


def test_batch_is_written_with_the_message_of_the_subject(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.topic_of(TEXT, "PROTOBUF")
    sink.write(orders(spark, "'PAID' AS state"), topic, valueMessageName="Order")
    raw = sink.raw_values(topic, 3)
    read = ProtobufDeserializer(ORDER, {"use.deprecated.format": False})
    records = [read(value, SerializationContext(topic, MessageField.VALUE)) for value in raw]
    assert [(record.id, list(record.lines), record.n) for record in records] == [
        (n, ["a", f"b{n}"], 0) for n in range(3)
    ]
    # The id, the numbers of the second message, and no field for the zero.
    assert raw[0] == b"\0\0\0\0\1\x02\x02" + b"\x12\1a\x12\2b0\x20\1"


def test_written_values_are_read_by_the_source_as_they_were(spark: SparkSession, sink: EncodedSink) -> None:
    frame = spark.sql(
        "SELECT struct(0L AS a, -1 AS b, map(1, struct('x' AS s), 0, struct(CAST(NULL AS STRING) AS s)) AS c, "
        "INTERVAL '1 02:03:04.000005' DAY TO SECOND AS d, TIMESTAMP'1969-12-31 06:00:00.123456' AS e, "
        "array(0D, 1.5D) AS f, X'00FF' AS g, CAST(NULL AS STRING) AS h, true AS i, "
        "named_struct('j', CAST(0.5 AS FLOAT), 'k', array(TIMESTAMP'2026-01-31 06:00:00')) AS l, '' AS m) AS value"
    )
    sink.assert_read_as_written(frame)


def test_fixed_schema_is_written_without_a_prefix_and_null_stays_null(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.new_topic()
    frame = spark.sql("SELECT if(id = 1, null, struct(id)) AS value FROM (SELECT explode(sequence(0L, 2L)) AS id)")
    text = 'syntax = "proto3"; message Order { optional sint64 id = 7; }'
    write(frame.coalesce(1), sink.kafka, topic=topic, valueFormat="protobuf", valueSchema=text)
    assert sink.raw_values(topic, 3) == [b"\x38\0", None, b"\x38\4"]


def test_text_that_is_no_symbol_of_the_enum_is_refused(spark: SparkSession, sink: EncodedSink) -> None:
    topic = sink.topic_of(TEXT, "PROTOBUF")
    with pytest.raises(Exception, match="row 0 has a text that is no symbol of the enum State"):
        sink.write(orders(spark, "'OLD' AS state"), topic, valueMessageName="Order")
