"""Rows of several types, written to one topic: Confluent's deserialisers read what its serialisers had written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.types import StringType, StructType

from protocol.errors import ConfigurationError, KafkaError, UsageError
from protocol.schemas.encoding import encode_types
from protocol.schemas.formats import language_of
from protocol.testing import FakeKafka
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import with_schemas
from spark_kafka_source.functions import encode_values
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.options.table import SinkOptions
from spark_kafka_source.sink.batch_writer import KafkaBatchWriter
from spark_kafka_source.sink.columns import plan_sink, topic_columns
from spark_kafka_source.sink.value_schemas import writer_schema
from spark_kafka_source.task.row_schema import spark_schema, spark_type
from tests.support import value_types
from tests.support.spark_task import spark_task
from tests.support.value_types import (
    ID,
    INVOICE,
    NOTE,
    REFUND,
    REMINDER,
    STRATEGIES,
    avro_value,
    json_value,
    protobuf_value,
    record,
)

LINES = {"name": "lines", "type": {"type": "array", "items": "string"}}
ORDER, NEWER_ORDER = record("Order", ID, LINES), record("Order", ID, LINES, NOTE)
DEPOT_ORDER = {**REFUND, "name": "Order", "namespace": "depot"}
ORDER_TYPE = pa.struct([("id", pa.int64()), ("lines", pa.list_(pa.string()))])
REASON = pa.struct([("reason", pa.string())])
# The column `value` in tests that make rows themselves.
VALUE = pa.struct([("Order", ORDER_TYPE), ("Refund", REASON)])
BY_SUBJECT = {"valueTypes": "", "valueSubject": "shop.Order,shop.Refund"}
Rows = Sequence[tuple[Any, str | None]]
registry = value_types.registry


def sink_options(registry: FakeSchemaRegistry, options: Mapping[str, str]) -> SinkOptions:
    """Return the options of a sink of orders and refunds, with these; an empty text leaves one out."""
    complete = {
        "kafka.bootstrap.servers": "unused:9092",
        "topic": "copies",
        "valueFormat": "confluent-avro",
        "valueTypes": "shop.Order,shop.Refund",
        "schema.registry.url": registry.url,
        **options,
    }
    return parse_sink_options({name: text for name, text in complete.items() if text})


def spark_struct(kind: pa.DataType) -> StructType:
    return StructType.fromJson(spark_type(kind))  # type: ignore[arg-type]


@pytest.fixture
def client(registry: FakeSchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})


@pytest.fixture
def fake(kafka_fake: FakeKafka) -> FakeKafka:
    for topic in ("events", "copies"):
        kafka_fake.create_topic(topic, 1)
    return kafka_fake


Copy = Callable[..., list[bytes | None]]


@pytest.fixture
def copy(fake: FakeKafka, registry: FakeSchemaRegistry) -> Copy:
    """Return `copy(reading, **options)`, which writes the rows of `events` to `copies`: the values in order."""

    def run(reading: dict[str, str] | None = None, **more: str) -> list[bytes | None]:
        own = {"valueTypes": "shop.Order,shop.Refund", "valueFormat": "confluent-avro", **more}
        common = {"kafka.bootstrap.servers": fake.bootstrap_servers, "schema.registry.url": registry.url}
        read = {"subscribe": "events", "columns": "key,value,valueType", **own, **(reading or {})}
        options = with_schemas(parse_source_options(common | {k: v for k, v in read.items() if v}, streaming=False))
        reader = KafkaBatchReader(options)
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        sink = common | {"topic": "copies"} | {name.replace("__", "."): text for name, text in own.items() if text}
        schema = spark_schema(options.row_columns, options.schemas)
        writer = KafkaBatchWriter(parse_sink_options(sink), schema, overwrite=False)
        with spark_task():
            writer.commit([writer.write(iter(batches))])
        return [record.value for record in fake.records("copies")]

    return run


Serialize = Callable[..., bytes]


@pytest.fixture
def avro(client: SchemaRegistryClient) -> Serialize:
    return partial(avro_value, client)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("named", ["by types", "by subjects"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_values_are_those_of_confluents_serialiser_in_the_same_order(
    fake: FakeKafka,
    client: SchemaRegistryClient,
    avro: Serialize,
    copy: Copy,
    strategy: str,
    named: str,
    guarantee: str,
) -> None:
    """Records of an older version are written with the latest one, as rows are resolved to it."""
    written: list[tuple[Any, Any]] = [
        (ORDER, {"id": 1, "lines": ["a"]}),
        (REFUND, {"reason": "late"}),
        (None, None),
        (NEWER_ORDER, {"id": 2, "lines": [], "note": "fragile"}),
        (REFUND, {"reason": ""}),
    ]
    for number, (schema, value) in enumerate(written):
        raw = None if schema is None else avro(schema, value, strategy)
        fake.produce("events", raw, key=f"k{number}", partition=0)
    expected = [value and {**value, **({"note": value.get("note")} if "id" in value else {})} for _, value in written]
    latest = {"id": NEWER_ORDER, "reason": REFUND}
    raw_expected = [value and avro(latest[next(iter(value))], value, strategy, "copies") for value in expected]
    more = {"deliveryGuarantee": guarantee, "transactionalIdPrefix": "copies", "valueSubjectNameStrategy": strategy}
    reading = {"valueTypes": "shop.Refund,shop.Order"}  # the fields of the column have another order
    if named == "by subjects":
        prefix = "{}-" if strategy.startswith("Topic") else ""
        subjects = f"{prefix}shop.Order,{prefix}shop.Refund"
        more |= {"valueTypes": "", "valueSubject": subjects.format("copies", "copies"), "valueSubjectNameStrategy": ""}
        subjects = f"{prefix}shop.Refund,{prefix}shop.Order"
        reading = {"valueSubject": subjects.format("events", "events")}
    values = copy(reading, **more)
    assert values == raw_expected
    read, context = AvroDeserializer(client), SerializationContext("copies", MessageField.VALUE)
    assert [read(value, context) for value in values] == expected
    assert [record.key for record in fake.records("copies")] == [b"k0", b"k1", b"k2", b"k3", b"k4"]


def test_json_values_are_read_as_they_were(fake: FakeKafka, client: SchemaRegistryClient, copy: Copy) -> None:
    context = SerializationContext("events", MessageField.VALUE)
    values: list[dict[str, Any]] = [{"id": 1}, {"reason": "late"}, {"id": 2}]
    fake.produce("events", *(json_value(client, value) for value in values), partition=0)
    read = JSONDeserializer(None, schema_registry_client=client)
    copies = copy(valueFormat="confluent-json", valueSubjectNameStrategy="RecordNameStrategy")
    assert [read(value, context) for value in copies] == values


def test_protobuf_messages_are_read_as_they_were(fake: FakeKafka, client: SchemaRegistryClient, copy: Copy) -> None:
    context = SerializationContext("events", MessageField.VALUE)
    messages = [INVOICE(id=1), REMINDER(reason="late"), INVOICE(id=2)]
    written = [protobuf_value(client, message) for message in messages]
    fake.produce("events", *written, partition=0)
    names = {"valueTypes": "shop.Invoice,shop.Reminder", "valueSubjectNameStrategy": "RecordNameStrategy"}
    copies = copy(valueFormat="confluent-protobuf", **names)
    assert copies == written
    readers = [ProtobufDeserializer(type(message), {"use.deprecated.format": False}, client) for message in messages]
    assert [read(value, context) for read, value in zip(readers, copies, strict=True)] == messages


def test_local_names_that_collide_are_written_out(fake: FakeKafka, avro: Serialize, copy: Copy) -> None:
    strategy = "RecordNameStrategy"
    values = [avro(ORDER, {"id": 1, "lines": []}, strategy), avro(DEPOT_ORDER, {"reason": "late"}, strategy)]
    fake.produce("events", *values, partition=0)
    assert copy(valueTypes="shop.Order,depot.Order", valueSubjectNameStrategy=strategy) == values


@pytest.mark.parametrize("format", ["confluent-avro", "confluent-json", "confluent-protobuf"])
def test_schemas_of_fields_are_registered_with_the_names_of_their_types(
    registry: FakeSchemaRegistry, client: SchemaRegistryClient, fake: FakeKafka, format: str
) -> None:
    common = {"kafka.bootstrap.servers": fake.bootstrap_servers, "schema.registry.url": registry.url}
    types = {"valueFormat": format, "valueTypes": "com.shop.Order,com.shop.Refund"}
    options = sink_options(registry, {**common, **types, "schema.registry.auto.register.schemas": "true"})
    schema = StructType().add("value", spark_struct(VALUE))
    for _ in range(2):  # the second time with the registered schemas
        writer = KafkaBatchWriter(options, schema, overwrite=False)
    value = pa.array([{"Order": {"id": 1, "lines": ["a"]}, "Refund": None}, None], VALUE)
    with spark_task():
        writer.write(iter([pa.record_batch({"value": value})]))
    assert client.get_subjects() == ["copies-com.shop.Order", "copies-com.shop.Refund"]
    assert [len(client.get_versions(subject)) for subject in client.get_subjects()] == [1, 1]
    reading = {**common, **types, "subscribe": "copies", "columns": "value,valueType"}
    reader = KafkaBatchReader(with_schemas(parse_source_options(reading, streaming=False)))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert rows == [
        {"value": {"Order": {"id": 1, "lines": ["a"]}, "Refund": None}, "valueType": "Order"},
        {"value": None, "valueType": None},
    ]


ONE = {"Order": {"id": 1, "lines": []}, "Refund": None}
BOTH = {"Order": {"id": 1, "lines": []}, "Refund": {"reason": "late"}}
NONE = {"Order": None, "Refund": None}


@pytest.fixture
def encode(registry: FakeSchemaRegistry) -> Callable[..., list[bytes | None]]:
    """Return `encode(rows, with_types)`: the values of rows of `value` and `valueType`, of a batch that is a slice."""
    for schema in (ORDER, REFUND):
        registry.register(f"{schema['namespace']}.{schema['name']}", json.dumps(schema))
    options = sink_options(registry, {"valueSubjectNameStrategy": "RecordNameStrategy"})

    def values(rows: Rows, with_types: bool = True) -> list[bytes | None]:
        frame = StructType().add("value", spark_struct(VALUE))
        frame = frame.add("valueType", "string") if with_types else frame
        plan = plan_sink(frame, "copies", (writer_schema(options, "value", spark_struct(VALUE)),))
        first: Rows = [(BOTH, "Login")]
        columns = {
            "value": pa.array([value for value, _ in [*first, *rows]], VALUE),
            "valueType": pa.array([name for _, name in [*first, *rows]], pa.large_string()),
        }
        (written,) = topic_columns(plan, pa.record_batch(columns).slice(1))
        encoded: list[bytes | None] = written.columns.column("value").to_pylist()
        return encoded

    return values


@pytest.mark.parametrize(
    ("value", "value_type", "problem"),
    [
        (BOTH, "no column", "row 1 has values in the fields Order, Refund"),
        (BOTH, "Order", "row 1 has values in the fields Order, Refund; all but one of them must be null"),
        (ONE, "Refund", "row 1 has a value in the field Order, and valueType Refund; set valueType to Order, or drop"),
        (ONE, "Login", "row 1 has a value in the field Order, and valueType Login"),
        (ONE, None, "row 1 has a value in the field Order, and valueType null"),
        (NONE, "Order", "row 1 has no value in any field, and valueType Order; filter such rows out"),
        (None, "shop.Login", r"row 1 has no value in any field, and valueType shop\.Login"),
        ({**NONE, "Refund": {"reason": None}}, "Refund", r"field Refund\.reason: row 1 has null"),
    ],
)
def test_row_without_exactly_the_value_of_its_type_is_refused(
    encode: Callable[..., Any], value: Any, value_type: str | None, problem: str
) -> None:
    with pytest.raises(UsageError, match=f"the column value cannot be written: {problem}"):
        encode([(None, None), (value, value_type), (ONE, "Order")], with_types=value_type != "no column")


def test_rows_need_no_column_with_the_type_and_null_in_all_fields_is_a_tombstone(encode: Callable[..., Any]) -> None:
    refund = {"Order": None, "Refund": {"reason": "late"}}
    rows: Rows = [(refund, "Refund"), (NONE, None), (ONE, "Order"), (None, None), (refund, "Refund")]
    first, *others = encode(rows)
    assert [first, *others] == [b"\0\0\0\0\2\x08late", None, b"\0\0\0\0\1\2\0", None, first]
    assert encode(rows, with_types=False) == [first, *others]
    assert encode([(NONE, None)]) == [None]


def test_values_below_a_null_are_not_written() -> None:
    """Arrow keeps the fields of a struct that is null."""
    writer, _ = language_of("avro").writer(json.dumps(REFUND), {}, None, REASON)
    fields = [pa.array([{"reason": "late"}, {"reason": "late"}], REASON)]
    column = pa.StructArray.from_arrays(fields, ["Refund"], mask=pa.array([True, False]))
    assert encode_types({"Refund": (writer, b"")}, column).to_pylist() == [None, b"\x08late"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"valueSubject": "a,b"}, "valueTypes and valueSubject both say"),
        ({"topic": ""}, "valueTypes has subjects by topic, and rows have their own topics: name the subjects in"),
        ({"valueFormat": ""}, "valueTypes is set, and valueFormat is binary; set valueFormat to confluent-avro"),
        ({"valueFormat": "avro"}, "valueTypes is set, and valueFormat is avro; set valueFormat to confluent-avro"),
        ({"schema.registry.url": ""}, r"there is no schema\.registry\.url"),
        ({}, r"subject copies-shop\.Order .* not found; to register the schema of the column, set schema\.registry"),
        (
            {"valueTypes": "", "valueSubject": "a,b"},
            r"subject a .* not found; .* set schema\.registry\.auto\.register\.schemas=true, and name the types in",
        ),
        (
            {"valueTypes": "", "valueSubject": "a,b", "schema.registry.auto.register.schemas": "true"},
            "valueSubject does not name the types that would be registered",
        ),
        ({"valueTypes": "", "valueSubject": "shop.Order,nameless"}, "subject nameless has no record at its top"),
        ({"valueTypes": "", "valueSubject": "shop.Order,again"}, "several subjects have a schema of the type shop"),
    ],
)
def test_wrong_options_are_refused_by_name(registry: FakeSchemaRegistry, options: dict[str, str], problem: str) -> None:
    for subject, text in (("shop.Order", json.dumps(ORDER)), ("again", json.dumps(ORDER)), ("nameless", '"long"')):
        registry.register(subject, text)
    with pytest.raises(KafkaError, match=problem):
        writer_schema(sink_options(registry, options), "value", spark_struct(VALUE))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([], "several types of values need a struct with the fields Order, Refund; the column is string"),
        ([("Order", ORDER_TYPE)], "need a struct with the fields Order, Refund; the column has Order"),
        ([("Refund", REASON), ("Order", REASON)], "the field Order: the schema has no field reason; it has id, lines"),
    ],
)
def test_columns_that_are_no_struct_of_the_types_are_refused(
    registry: FakeSchemaRegistry, fields: list[tuple[str, pa.DataType]], problem: str
) -> None:
    registry.register("shop.Order", json.dumps(ORDER))
    registry.register("shop.Refund", json.dumps(REFUND))
    column = spark_struct(pa.struct(fields)) if fields else StringType()
    with pytest.raises(ConfigurationError, match=f"the column value cannot be written: .*{problem}"):
        writer_schema(sink_options(registry, BY_SUBJECT), "value", column)


def test_encoded_columns_of_other_sinks_are_those_of_the_sink(
    registry: FakeSchemaRegistry, encode: Callable[..., Any]
) -> None:
    options = sink_options(registry, {**BY_SUBJECT, "topic": ""})
    rows = [(ONE, "Order"), (None, None), ({**NONE, "Refund": {"reason": "late"}}, "Refund")]
    column = pa.array([value for value, _ in rows], VALUE)
    assert encode_values(writer_schema(options, "value", None), column).to_pylist() == encode(rows)
