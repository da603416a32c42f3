"""`protocol.read` of topics with several types of values, as Confluent's serialisers write them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import protocol
from protocol import tables
from protocol.cluster.client import Client
from protocol.errors import ConfigurationError, DecodeFailed, KafkaError, UsageError
from protocol.schemas.decoding import RecordNames, fields_of_types
from protocol.schemas.formats import FORMATS, Format, language_of
from protocol.schemas.protobuf_settings import ProtobufSettings
from protocol.testing import FakeKafka
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import with_schemas
from spark_kafka_source.options.parsing import parse_source_options
from tests.support import value_types
from tests.support.value_types import (
    FIRST,
    ORDER,
    REFUND,
    SECOND,
    STRATEGIES,
    Write,
    write_events,
    write_json_and_protobuf,
)

TYPES = ["shop.Order", "shop.Refund"]
ONE_TYPE: dict[str, Any] = {"value_types": ()}
Read = Callable[..., pa.Table]
registry, fake, write = value_types.registry, value_types.fake, value_types.write


@pytest.fixture
def read(fake: FakeKafka, registry: FakeSchemaRegistry) -> Read:
    """Return `read(**arguments)`: the table of the topic with two types, with its values unless an argument differs."""

    def table(topic: Any = "events", **more: Any) -> pa.Table:
        properties = {"bootstrap.servers": fake.bootstrap_servers, "schema.registry.url": registry.url}
        arguments = {"columns": ["value"], "value_format": "confluent-avro", "value_types": TYPES, **more}
        return protocol.read(properties, topic, **arguments).read_all()

    return table


def values(table: pa.Table) -> list[Any]:
    column: list[Any] = table.column("value").to_pylist()
    return column


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rows_are_those_of_the_source(
    fake: FakeKafka, registry: FakeSchemaRegistry, write: Write, read: Read, strategy: str
) -> None:
    write(ORDER, {"id": 1}, strategy)
    fake.produce("events", None, key="k", partition=0)
    write(REFUND, {"reason": "late"}, strategy)
    options = {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "subscribe": "events",
        "valueFormat": "confluent-avro",
        "valueTypes": ",".join(TYPES),
        "valueSubjectNameStrategy": strategy,
        "schema.registry.url": registry.url,
        "columns": "value,valueType",
    }
    source = KafkaBatchReader(with_schemas(parse_source_options(options, streaming=False)))
    rows = [row for task in source.partitions() for batch in source.read(task) for row in batch.to_pylist()]
    table = read(columns=["value", "value_type"], value_subject_name_strategy=strategy)
    assert table.rename_columns(["value", "valueType"]).to_pylist() == rows
    assert values(table) == [FIRST, None, SECOND]
    prefix = "events-" if strategy.startswith("Topic") else ""
    assert read(value_types=(), value_subject=[f"{prefix}{name}" for name in TYPES]) == table.select(["value"])


def test_type_is_a_column_only_if_asked_for(fake: FakeKafka, write: Write, read: Read) -> None:
    write_events(write)
    table = read(columns=["value_type", "offset"])
    assert table.to_pydict() == {"offset": [0, 1, 2], "value_type": ["Order", "shop.Login", "Refund"]}
    assert read(columns=None, on_unknown_type="null").column_names == tables.READ_SCHEMA.names
    assert values(read(value_types="shop.Order", on_unknown_type="skip")) == [{"Order": {"id": 1}}]
    assert [len(read(topics, value_format="string", **ONE_TYPE)) for topics in ("events", [])] == [3, 0]
    assert values(read(value_fields="Refund", on_unknown_type="skip")) == [None, {"Refund": {"reason": "late"}}]
    fake.produce("events", b"no schema", partition=0)
    with pytest.raises(DecodeFailed, match="offset 3"):
        read(columns=["value_type", "offset"])


def test_filter_on_a_type_that_cannot_be_determined_fails(fake: FakeKafka, write: Write, read: Read) -> None:
    write_events(write)
    fake.produce("events", b"\0\0\0\x03\xe7\2", partition=0)
    for condition in ("valueType = 'Order'", "valueType <> 'Refund'", pc.field("value_type") == "Order"):
        with pytest.raises(DecodeFailed, match=r"events-0, offset 3: .*schema id 999: the registry does not have it"):
            read(filter=condition, on_unknown_type="skip")
    assert values(read(filter="offset < 3 AND valueType = 'Order'")) == [FIRST]


def test_records_of_other_types_fail_are_null_or_are_skipped(
    fake: FakeKafka, write: Write, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[Client] = []
    monkeypatch.setattr(tables, "Client", lambda config: clients.append(Client(config)) or clients[-1])
    write_events(write)
    problem = r"events-0, offset 1: .*type shop\.Login is none of Order, Refund.*give on_unknown_type=\"skip\""
    with pytest.raises(DecodeFailed, match=problem):
        read()
    assert values(read(on_unknown_type="null")) == [FIRST, None, SECOND]
    assert values(read(on_unknown_type="skip")) == [FIRST, SECOND]
    totals = {metric.name: metric.value for metric in clients[-1].metrics() if not metric.tags.get("topic")}
    assert totals["records-filtered-total"] == 1
    fake.produce("events", b"no schema", partition=0)
    with pytest.raises(DecodeFailed, match=r"offset 3: .*zero byte"):
        read(on_unknown_type="skip")


def test_filter_on_the_type_decodes_no_other(write: Write, read: Read) -> None:
    write(ORDER, {"id": 1})
    write({**REFUND, "fields": [{"name": "reason", "type": {"type": "map", "values": "long"}}]}, {"reason": {"a": 1}})
    write(REFUND, {"reason": "late"})
    with pytest.raises(DecodeFailed, match="offset 1"):
        read()
    assert values(read(filter="valueType = 'Order'")) == [FIRST]
    assert read(filter="valueType = 'Order'", columns=["offset"]).to_pylist() == [{"offset": 0}]
    condition = "valueType = 'Refund' AND offset > 1 AND value.Refund.reason LIKE 'l%'"
    assert values(read(filter=condition)) == [SECOND]
    refunds = {"value_types": TYPES[1:], "on_unknown_type": "skip", "start": {("events", 0): 2}}
    assert values(read(filter=pc.field("value_type") == "Refund", **refunds)) == [{"Refund": {"reason": "late"}}]


def test_failed_record_behind_dropped_ones_has_its_own_offset(write: Write, read: Read) -> None:
    write(REFUND, {"reason": "late"})
    write(ORDER, {"id": 1})
    write({**ORDER, "fields": [{"name": "id", "type": "string"}]}, {"id": "x"})
    with pytest.raises(DecodeFailed, match="events-0, offset 1"):
        read(filter="valueType = 'Order'")


def test_json_and_protobuf_have_types_too(fake: FakeKafka, registry: FakeSchemaRegistry, read: Read) -> None:
    write_json_and_protobuf(fake, registry)
    by_record = {"value_subject_name_strategy": "RecordNameStrategy"}
    assert values(read(value_format="confluent-json", **by_record)) == [FIRST, SECOND]
    types = ["shop.Invoice", "shop.Reminder"]
    table = read("messages", value_format="confluent-protobuf", value_types=types, **by_record)
    assert values(table) == [
        {"Invoice": {"id": 1}, "Reminder": None},
        {"Invoice": None, "Reminder": {"reason": "late"}},
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ({"value_subject": "a"}, UsageError, "value_types and value_subject both say"),
        ({"topic": ["events", "others"]}, UsageError, "value_types has subjects by topic, and 2 topics are read"),
        ({"value_schema": '"long"'}, UsageError, "value_schema is one schema"),
        ({"value_format": "binary"}, UsageError, "value_format is binary; use one with a registry"),
        ({"value_types": ["a", "a"]}, UsageError, "value_types: a name is empty, or there twice"),
        ({"value_types": ["a", ""]}, UsageError, "value_types: a name is empty, or there twice"),
        ({"value_types": (), "value_subject": ["a", ""]}, UsageError, "value_subject: a name is empty, or there twice"),
        ({**ONE_TYPE, "value_format": "avr"}, UsageError, "value_format is 'avr'; use one of binary, string, json,"),
        ({"key_format": "avr"}, UsageError, "key_format is 'avr'; use one of binary, string, json,"),
        ({**ONE_TYPE, "value_subject": ["a", "b"], "value_format": "binary"}, UsageError, "names several types, but"),
        *(
            ({**ONE_TYPE, "value_format": "binary", name: value}, UsageError, f"{name} has no effect: value_format is ")
            for name, value in (
                ("value_schema", "id BIGINT"),
                ("value_fields", "id"),
                ("value_subject", "a"),
                ("protobuf", ProtobufSettings("shop.Order")),
            )
        ),
        ({**ONE_TYPE, "on_unknown_type": "skip"}, UsageError, "on_unknown_type has no effect: values have one type"),
        ({**ONE_TYPE, "topic": []}, UsageError, "0 topics are read: read one, or give value_subject"),
        ({"on_unknown_type": "dead-letter"}, UsageError, "on_unknown_type is 'dead-letter'; use fail, null or skip"),
        ({"value_subject_name_strategy": "x"}, UsageError, "use TopicRecordNameStrategy or RecordNameStrategy"),
        (
            {"value_types": (), "value_subject": "events-shop.Order", "columns": ["value_type"]},
            UsageError,
            "columns names value_type, but values have one type",
        ),
        ({"value_types": ["shop.Order", "x"]}, KafkaError, "subject events-x with the status 404"),
        ({"value_fields": ["Login"]}, ConfigurationError, "no field Login; it has Order, Refund"),
        (
            {"value_types": (), "value_subject": "events-shop.Order", "filter": "valueType = 'x'"},
            ConfigurationError,
            "valueType is not one of",
        ),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    write: Write, read: Read, arguments: dict[str, Any], error: type[KafkaError], problem: str
) -> None:
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    with pytest.raises(error, match=problem):
        read(**arguments)


@pytest.mark.parametrize(("format", "problem"), [("glue-json", "title"), ("glue-avro", "record at its top")])
def test_schema_without_a_name_is_refused_in_the_terms_of_its_language(format: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the schema of the subject a has no {problem}, and so no name"):
        fields_of_types(format, {"a": RecordNames("")})


SURROGATE = '{"type": "enum", "name": "E", "symbols": ["\\ud800"]}'
SYNTAX = base64.b64encode(b"\x62\x06proto9").decode()  # a FileDescriptorProto


@pytest.mark.parametrize(
    ("format", "text", "message"),
    [
        ("json", "{", "the JSON Schema is not JSON"),
        ("json", "{" + f'"minimum": {"9" * 10_000}' + "}", "the JSON Schema is not JSON"),
        ("avro", SURROGATE, ""),
        ("avro", '{"type": "int", "logicalType": []}', ""),
        ("protobuf", SYNTAX, "the Protobuf schema has the unknown syntax 'proto9'"),
        ("protobuf", "message M { optional int32 a = 1 [default = 2147483648]; }", "M.a has a default that is no int"),
        ("protobuf", 'message M { optional string a = 1 [default = "\ud800"]; }', ""),
    ],
)  # fmt: skip
def test_invalid_schema_of_a_writer_is_an_error_of_its_values(format: str, text: str, message: str) -> None:
    """Any other exception would fail the task, at each try."""
    with pytest.raises(ConfigurationError, match=message) if message else contextlib.nullcontext():
        language_of(format).writer_names(text, {}, None)


def test_each_format_is_in_the_table() -> None:
    assert tuple(FORMATS) == get_args(Format)
    assert all(language_of(format) for format, spec in FORMATS.items() if spec.language is not None)


def test_registered_keys_of_several_topics_are_refused_with_a_remedy_for_keys(read: Read) -> None:
    with pytest.raises(UsageError, match=r'2 topics are read: read one, or leave out key_format="confluent-avro"'):
        read(["events", "others"], value_format="binary", value_types=(), key_format="confluent-avro")
