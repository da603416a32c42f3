"""`from_registry` and `to_registry`: columns of other sources, compared with this source, fastavro and Confluent's."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from protocol.errors import ConfigurationError
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source import from_registry, functions, to_registry
from spark_kafka_source.local_kafka import LocalKafka
from spark_kafka_source.options.parsing import parse_read_options
from tests.conftest import TopicFactory
from tests.support.documents import block
from tests.support.librdkafka import produce
from tests.support.spark_frames import JVM, await_end, batch

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
        {"name": "paid", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
NEWER: dict[str, Any] = {**ORDER, "fields": [*ORDER["fields"], NOTE]}
PAID_US = 1_700_000_000_000_001
SUBJECT = "orders-value"


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "lines": ["a", f"b{number}"], "paid": PAID_US, **more}


def avro(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + avro(schema, value)


@pytest.fixture
def registry(registry: FakeSchemaRegistry) -> FakeSchemaRegistry:
    for schema in (ORDER, NEWER):
        registry.register(SUBJECT, json.dumps(schema))
    return registry


def options(registry: FakeSchemaRegistry, **more: str) -> dict[str, str]:
    return {
        "valueFormat": "confluent-avro",
        "valueSubject": SUBJECT,
        "schema.registry.url": registry.url,
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def in_utc(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return record and {**record, "paid": record["paid"].timestamp()}


def frame(spark: SparkSession, *values: bytes | None) -> DataFrame:
    return spark.createDataFrame(list(enumerate(values)), "n int, value binary").coalesce(1)


def test_values_of_sparks_own_connector_decode_as_those_of_the_source(
    spark: SparkSession,
    kafka1: LocalKafka,
    topic1: TopicFactory,
    registry: FakeSchemaRegistry,
    registry_client: SchemaRegistryClient,
) -> None:
    topic = topic1(2)
    for number in range(4):
        conf = {"schema.id.serializer": header_schema_id_serializer} if number == 3 else {}
        serializer = AvroSerializer(registry_client, json.dumps(NEWER if number % 2 else ORDER), conf=conf)
        headers: list[Any] = []
        value = serializer(order(number), SerializationContext(topic, MessageField.VALUE, headers))
        produce(kafka1, topic, value, headers=headers)
    produce(kafka1, topic, None)
    inputs = options(registry, valueSubject=f"{topic}-value", schemaIdLocation="header")
    kafka = {"kafka.bootstrap.servers": kafka1.bootstrap_servers, "subscribe": topic, "includeHeaders": "true"}
    source = batch(spark, kafka1, **kafka, **inputs).select("offset", "partition", "value")
    second = batch(spark, kafka1, JVM, **kafka)
    column = from_registry("value", {**kafka, **inputs}, headers="headers").alias("value")
    decoded = second.select("offset", "partition", column)
    assert decoded.schema["value"].dataType == source.schema["value"].dataType
    assert "note:string" in decoded.schema["value"].dataType.simpleString()
    assert decoded.orderBy("partition", "offset").collect() == source.orderBy("partition", "offset").collect()
    assert {row.value and row.value.id for row in decoded.collect()} == {0, 1, 2, 3, None}


def test_values_decode_as_with_fastavro(spark: SparkSession, registry: FakeSchemaRegistry) -> None:
    values = [framed(1, ORDER, order(1)), None, framed(2, NEWER, order(2, note="x"))]
    read = frame(spark, *values).withColumn("value", from_registry("value", options(registry))).orderBy("n")
    reference = [
        value and fastavro.schemaless_reader(io.BytesIO(value[5:]), [ORDER, NEWER][value[4] - 1], NEWER)
        for value in values
    ]
    collected = [row.value and row.value.asDict() for row in read.collect()]
    assert [in_utc(record) for record in collected] == [in_utc(record) for record in reference]


def test_fixed_schema_of_a_key_needs_no_registry_and_fields_are_pruned(spark: SparkSession) -> None:
    properties = {"keyFormat": "avro", "keySchema": json.dumps(ORDER), "keyFields": "id"}
    properties["valueFormat"] = "confluent-avro"
    read = frame(spark, avro(ORDER, order(7))).select(from_registry("value", properties, part="key").alias("key"))
    assert read.schema["key"].dataType.simpleString() == "struct<id:bigint>"
    assert read.collect()[0].key.id == 7


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (
            "protobuf",
            'syntax = "proto3"; message Order { int64 id = 1; repeated string lines = 2; }',
            b"\0\x08\x07\x12\x01a\x12\x01b",  # the number of the message, and the message
        ),
        (
            "json",
            '{"type": "object", "properties": {"id": {"type": "integer"}, "lines": {"type": "array", '
            '"items": {"type": "string"}}}}',
            b'{"id": 7, "lines": ["a", "b"]}',
        ),
    ],
    ids=["protobuf", "json"],
)
def test_protobuf_and_json_of_a_registry_are_read_and_written(
    spark: SparkSession, registry: FakeSchemaRegistry, kind: str, text: str, value: bytes
) -> None:
    schema_id = registry.register("other", text, kind.upper())
    inputs = options(registry, valueSubject="other", valueFormat=f"confluent-{kind}")
    raw = b"\0" + schema_id.to_bytes(4, "big") + value
    read = frame(spark, raw, None).select("n", from_registry("value", inputs).alias("v")).orderBy("n")
    assert read.schema["v"].dataType.simpleString() == "struct<id:bigint,lines:array<string>>"
    written = read.withColumn("raw", to_registry("v", inputs, type=read.schema["v"].dataType))
    again = written.select("n", "v", from_registry("raw", inputs).alias("again")).collect()
    assert [row.v and row.v.asDict() for row in again] == [{"id": 7, "lines": ["a", "b"]}, None]
    assert [row.again for row in again] == [row.v for row in again]


def test_invalid_value_fails_the_task_with_reason_and_remedy(spark: SparkSession, registry: FakeSchemaRegistry) -> None:
    read = frame(spark, b"not framed").select(from_registry("value", options(registry)))
    with pytest.raises(Exception, match="from_registry: a value does not decode: it does not begin") as failed:
        read.collect()
    assert "set onDecodeError=null" in str(failed.value)


def test_record_of_another_type_is_left_to_on_unknown_type(spark: SparkSession, registry: FakeSchemaRegistry) -> None:
    login = {"type": "record", "name": "Login", "fields": [{"name": "user", "type": "string"}]}
    ids = [registry.register(f"events-{schema['name']}", json.dumps(schema)) for schema in (ORDER, login)]
    rows = frame(spark, framed(ids[0], ORDER, order(1)), framed(ids[1], login, {"user": "ann"}))
    inputs = {**options(registry, valueTypes="Order"), "subscribe": "events"}
    del inputs["valueSubject"]
    read = rows.select("n", from_registry("value", {**inputs, "onUnknownType": "null"}).alias("v")).orderBy("n")
    assert [row.v and row.v.Order.id for row in read.collect()] == [1, None]
    read = rows.select(from_registry("value", {**inputs, "onDecodeError": "null"}))
    with pytest.raises(Exception, match="set onUnknownType=null"):
        read.collect()


def test_written_values_are_read_by_confluents_deserializer(
    spark: SparkSession, registry: FakeSchemaRegistry, registry_client: SchemaRegistryClient
) -> None:
    rows = frame(spark, framed(1, ORDER, order(1)), None)
    read = rows.select("n", from_registry("value", options(registry)).alias("value"))
    written = read.withColumn("value", to_registry("value", options(registry))).orderBy("n").collect()
    deserializer = AvroDeserializer(registry_client)
    result = deserializer(bytes(written[0].value), SerializationContext("orders", MessageField.VALUE))
    assert (result["id"], result["lines"], result["note"]) == (1, ["a", "b1"], None)
    assert written[1].value is None


def test_schema_of_a_column_with_a_given_type_is_registered(spark: SparkSession, registry: FakeSchemaRegistry) -> None:
    rows = spark.sql("SELECT struct(1L AS id, 'x' AS text) AS value")
    inputs = options(registry, valueSubject="new", schema_registry_auto_register_schemas="true")
    with pytest.raises(ConfigurationError, match="a column of unknown type cannot be registered; give its type"):
        to_registry("value", inputs)
    written = rows.select(to_registry("value", inputs, type=rows.schema["value"].dataType).alias("value"))
    again = written.select(from_registry("value", options(registry, valueSubject="new")).alias("value"))
    assert again.collect() == rows.collect()


def test_column_that_the_schema_cannot_take_is_refused(spark: SparkSession, registry: FakeSchemaRegistry) -> None:
    rows = spark.sql("SELECT struct('x' AS id) AS value")
    with pytest.raises(ConfigurationError, match=r"the column value cannot be written: .*id"):
        to_registry("value", options(registry), type=rows.schema["value"].dataType)
    with pytest.raises(Exception, match=r"to_registry: .*id"):
        rows.select(to_registry("value", options(registry))).collect()


def test_secret_behind_a_reference_is_in_neither_plan_nor_function(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "user").write_text("alice:hunter2")
    user = f"${{dir:{tmp_path}:user}}"
    with FakeSchemaRegistry(user_info="alice:hunter2") as registry:
        registry.register(SUBJECT, json.dumps(ORDER))
        inputs = options(registry, schema_registry_basic_auth_user_info=user)
        read = frame(spark, framed(1, ORDER, order(1))).select(from_registry("value", inputs).alias("v"))
        again = read.select(to_registry("v", inputs).alias("value"))
        assert bytes(again.collect()[0].value) == framed(1, ORDER, order(1))
        again.explain(True)
        assert "hunter2" not in capsys.readouterr().out
        parsed = parse_read_options({"kafka.bootstrap.servers": "unused:1", "subscribe": "unused", **inputs}).registry
        assert parsed is not None
        pickled = cloudpickle.dumps(functions._decoding(None, parsed, "value", {}))  # type: ignore[arg-type]
        assert user.encode() in pickled
        assert b"hunter2" not in pickled


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schema_registry_basic_auth_user_info": "alice:hunter2"}, r"user\.info has its value as plain text"),
        ({"schema_registry_ssl_key_password": "hunter2"}, r"ssl\.key\.password has its value as plain text"),
        ({"onDecodeError": "dead-letter", "deadLetterTopic": "d"}, "onDecodeError .* from_registry does not support"),
        ({"onUnknownType": "dead-letter", "deadLetterTopic": "d"}, "onUnknownType .* from_registry does not support"),
        ({"onUnknownType": "skip"}, "onUnknownType is skip, which from_registry does not support"),
        ({"onDecodeErrors": "null", "valueFormat": "avr"}, "onDecodeErrors is not .*; did you mean onDecodeError?"),
        ({"valueFormat": "avr"}, "valueFormat is 'avr'"),
    ],
)
def test_wrong_option_is_refused_at_the_call(
    spark: SparkSession, registry: FakeSchemaRegistry, more: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        from_registry("value", options(registry, **more))
    assert "hunter2" not in str(refused.value)


def test_old_pyspark_is_refused_with_the_alternative(
    spark: SparkSession, registry: FakeSchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("pyspark.sql.functions.arrow_udf")
    with pytest.raises(ConfigurationError, match=r"from_registry needs PySpark 4\.1"):
        from_registry("value", options(registry))


def test_example_of_the_page_decodes_columns_and_writes_from_foreach_batch(
    spark: SparkSession, kafka1: LocalKafka, topic1: TopicFactory, registry: FakeSchemaRegistry, tmp_path: Path
) -> None:
    orders, totals = topic1(), topic1()
    produce(kafka1, orders, *(framed(1, ORDER, order(number)) for number in (1, 2, 2)))
    names = {
        "broker-1:9092": kafka1.bootstrap_servers,
        '"orders")': f'"{orders}").option("startingOffsets", "earliest")',
        '"totals"': f'"{totals}"',
        "http://registry:8081": registry.url,
        "/checkpoints/totals": str(tmp_path),
        ".start()": ".trigger(availableNow=True).start()",
    }
    result: dict[str, Any] = {"spark": spark}
    exec(block("schemas.md", "from_registry(").with_names(names), result)
    await_end(result["query"])
    read = batch(spark, kafka1, subscribe=totals, **options(registry, valueSubject=f"{totals}-value")).select("value.*")
    assert sorted(tuple(row) for row in read.collect()) == [(1, 1), (2, 2)]
