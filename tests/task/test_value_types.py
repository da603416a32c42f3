"""Topics with several types of values, as Confluent's serialisers write them by subjects of records or a union."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from protocol.errors import ConfigurationError, DecodeFailed
from protocol.testing import FakeKafka
from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import require_same_versions, with_schemas
from spark_kafka_source.driver.stream_reader import KafkaStreamReader
from spark_kafka_source.options.parsing import parse_source_options
from spark_kafka_source.options.table import SourceOptions
from spark_kafka_source.task.row_schema import declared_versions, spark_schema
from tests.support import value_types
from tests.support.value_types import (
    FIRST,
    LOGIN,
    NEWER_ORDER,
    NOTE,
    ORDER,
    REFUND,
    SECOND,
    Write,
    write_events,
)

TYPES = "shop.Order,shop.Refund"
UNION = {"valueTypes": "", "valueUnionNames": "types"}
VERSION = "schema.registry.reader.version"
registry, fake, write = value_types.registry, value_types.fake, value_types.write
Parsed = Callable[..., SourceOptions]
Read = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def events(fake: FakeKafka, registry: FakeSchemaRegistry) -> dict[str, str]:
    """Return options for the topic with two types."""
    return {
        "kafka.bootstrap.servers": fake.bootstrap_servers,
        "subscribe": "events",
        "valueFormat": "confluent-avro",
        "valueTypes": TYPES,
        "schema.registry.url": registry.url,
    }


@pytest.fixture
def parsed(events: dict[str, str]) -> Parsed:
    """Return `parsed(**options)`: the options of a query, with its schemas; "" removes an option."""

    def parse(streaming: bool = True, **more: str) -> SourceOptions:
        chosen = {name: text for name, text in {**events, **more}.items() if text}
        return with_schemas(parse_source_options(chosen, streaming=streaming))

    return parse


@pytest.fixture
def read(parsed: Parsed) -> Read:
    """Return `read(**options)`: the rows of a batch, with their values unless an option differs."""

    def rows(**more: str) -> list[dict[str, Any]]:
        reader = KafkaBatchReader(parsed(streaming=False, **{"columns": "value", **more}))
        return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]

    return rows


EXPECTED = [{"value": FIRST}, {"value": SECOND}]


def test_tombstones_are_null_and_types_have_their_names(fake: FakeKafka, write: Write, read: Read) -> None:
    write(ORDER, {"id": 1})
    write(LOGIN, {"user": "ann"})
    fake.produce("events", None, key="k", partition=0)
    write(REFUND, {"reason": "late"})
    assert [row["valueType"] for row in read(columns="valueType")] == ["Order", "shop.Login", None, "Refund"]
    rows = read(columns="value,valueType", onUnknownType="null")
    assert [row["value"] for row in rows] == [EXPECTED[0]["value"], None, None, EXPECTED[1]["value"]]
    only = read(valueFields="Refund", onUnknownType="null")
    assert only == [{"value": None}, {"value": None}, {"value": None}, {"value": {"Refund": {"reason": "late"}}}]


@pytest.mark.parametrize("action", ["fail", "null", "skip", "dead-letter"])
def test_records_of_other_types_are_told_from_invalid_ones(
    fake: FakeKafka, write: Write, read: Read, action: str
) -> None:
    write_events(write)
    options = {"onUnknownType": action, "deadLetterTopic": "dead"}
    if action == "fail":
        with pytest.raises(DecodeFailed, match=r"type shop\.Login is none of Order, Refund.*onUnknownType=skip"):
            read(**options, onDecodeError="null")
        return
    rows = read(**options)
    assert rows == (EXPECTED if action != "null" else [EXPECTED[0], {"value": None}, EXPECTED[1]])
    letters = fake.records("dead")
    assert len(letters) == (action == "dead-letter")
    fake.produce("events", b"no schema", partition=0)
    with pytest.raises(DecodeFailed, match="offset 3"):
        read(**options)


def test_filter_on_the_type_decodes_no_other(write: Write, read: Read) -> None:
    write(ORDER, {"id": 1})
    write({**REFUND, "fields": [{"name": "reason", "type": {"type": "map", "values": "long"}}]}, {"reason": {"a": 1}})
    write(REFUND, {"reason": "late"})
    with pytest.raises(DecodeFailed, match="offset 1"):
        read()
    assert read(filter="valueType = 'Order'") == EXPECTED[:1]
    assert read(filter="valueType = 'Refund' AND offset > 1 AND value.Refund.reason LIKE 'l%'") == EXPECTED[1:]
    assert read(filter="value.Order.id IS NOT NULL AND offset <> 1") == EXPECTED[:1]


UNKNOWN_ID = b"\0\0\0\x03\xe7\2"  # a valid order, whose schema the registry does not have yet
TYPE_CONDITIONS = ("valueType = 'Order'", "valueType <> 'Refund'", "valueType = 'Order' AND value.Order.id > 0")


@pytest.mark.parametrize("condition", TYPE_CONDITIONS)
@pytest.mark.parametrize("value", [UNKNOWN_ID, b"no schema"])
def test_filter_on_a_type_that_cannot_be_determined_leaves_the_record_to_on_decode_error(
    fake: FakeKafka, write: Write, read: Read, caplog: pytest.LogCaptureFixture, value: bytes, condition: str
) -> None:
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    fake.produce("events", value, partition=0)
    with pytest.raises(DecodeFailed, match=r"offset 2: .*onDecodeError=null"):
        read(filter=condition)
    assert read(filter=condition, onDecodeError="dead-letter", deadLetterTopic="dead") == EXPECTED[:1]
    assert [letter.value for letter in fake.records("dead")] == [value]
    assert read(filter=condition, onDecodeError="null") == EXPECTED[:1]  # as with where: the type is null
    assert "offset 2: the value does not decode" in caplog.text
    assert read(filter="valueType IS NULL", onDecodeError="null") == [{"value": None}]
    assert read(filter=f"offset < 2 AND {condition}") == EXPECTED[:1]


@pytest.mark.parametrize("condition", ["", "valueType IS NULL OR offset >= 0"])
def test_column_of_a_type_that_cannot_be_determined_is_left_to_on_decode_error(
    fake: FakeKafka, write: Write, read: Read, condition: str
) -> None:
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    fake.produce("events", UNKNOWN_ID, partition=0)
    options = {"columns": "offset,valueType", "filter": condition}
    with pytest.raises(DecodeFailed, match=r"offset 2: .*schema id 999: the registry does not have it"):
        read(**options)
    told = [{"offset": 0, "valueType": "Order"}, {"offset": 1, "valueType": "Refund"}]
    assert read(**options, onDecodeError="dead-letter", deadLetterTopic="dead") == told
    assert [letter.value for letter in fake.records("dead")] == [UNKNOWN_ID]
    options["columns"] += ",_error,_raw"
    row = read(**options, onDecodeError="null")[2]
    assert (row["valueType"], row["_raw"]) == (None, UNKNOWN_ID)
    assert row["_error"] == "value: schema id 999: the registry does not have it"


def test_newer_versions_are_resolved_and_each_is_pinned(parsed: Parsed, write: Write, read: Read) -> None:
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    write(NEWER_ORDER, {"id": 2, "note": "fragile"})
    assert [row["value"]["Order"] for row in read()] == [{"id": 1, "note": None}, None, {"id": 2, "note": "fragile"}]
    assert [row["value"]["Order"] for row in read(**{VERSION: "events-shop.Order=1"})] == [{"id": 1}, None, {"id": 2}]
    # One version suffices if the other column is not read.
    options = {VERSION: "1", "valueTypes": "shop.Order", "keyFormat": "confluent-avro", "columns": "value"}
    assert parsed(**options).schema_versions == {"value.Order": 1}
    with_latest = parsed()
    assert with_latest.schema_versions == {"value.Order": 2, "value.Refund": 1}
    with pytest.raises(ConfigurationError, match=r"reader\.version to events-shop\.Order=1"):
        require_same_versions(with_latest, {"value.Order": 1, "value.Refund": 1})


def test_subject_without_a_version_of_its_own_stays_pinned(parsed: Parsed, write: Write) -> None:
    """Any version in the option took the newest version of the other subjects, after a restart, too."""
    for schema, value in ((ORDER, {"id": 1}), (REFUND, {"reason": "late"})):
        write(schema, value)
        write({**schema, "fields": [*schema["fields"], NOTE]}, {**value, "note": None})
    checkpoint = {"value.Order": 1, "value.Refund": 1}
    for pinned in ({VERSION: "events-shop.Order=1"}, {}):
        with pytest.raises(ConfigurationError, match=r"to events-shop\.Order=1,events-shop\.Refund=1 to keep"):
            require_same_versions(parsed(**pinned), checkpoint)
    for accepted in ("events-shop.Order=1,events-shop.Refund=2", "latest"):
        require_same_versions(parsed(**{VERSION: accepted}), checkpoint)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({VERSION: "events-Order=1"}, r"names events-Order, .* subjects events-shop\.Order, events-shop\.Refund"),
        ({VERSION: "1"}, r"is 1, but the query reads with 2 subjects, .*Set it to SUBJECT=1 for one of them"),
        ({VERSION: "events-shop.Order=1,events-shop.Order=2"}, "a subject is there twice"),
        (
            {VERSION: "1", "valueTypes": "shop.Order", "keyFormat": "confluent-avro", "columns": "key,value"},
            "2 subjects, .*: events-key, events-shop.Order",
        ),
    ],
)
def test_version_of_another_subject_or_of_several_is_refused(
    parsed: Parsed, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        parsed(**options)


def test_latest_version_is_asked_for_once(registry: FakeSchemaRegistry, parsed: Parsed, write: Write) -> None:
    """Two requests may have different answers: the filter would read with other fields than the rows."""
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    registry.requests.clear()
    assert parsed(filter="valueType = 'Order' AND value.Order.id > 0").condition_schemas
    latest = [request for request in registry.requests if request.endswith("/latest")]
    assert sorted(latest) == [f"GET /subjects/events-shop.{name}/versions/latest" for name in ("Order", "Refund")]


def test_batch_is_replayed_with_the_pinned_version_only(parsed: Parsed, write: Write) -> None:
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    first = KafkaStreamReader(parsed(startingOffsets="earliest"))
    start, end = first.initialOffset(), first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    first.stop()
    write(NEWER_ORDER, {"id": 2, "note": "fragile"})
    with pytest.raises(ConfigurationError, match=r"reader\.version to events-shop\.Order=1"):
        KafkaStreamReader(parsed()).partitions(start, end)
    for version in ("latest", "events-shop.Order=1"):
        assert KafkaStreamReader(parsed(**{VERSION: version})).partitions(start, end)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"valueSubject": "a,b"}, "valueTypes and valueSubject both say"),
        ({"subscribe": "a,b"}, "valueTypes has subjects by topic"),
        ({"valueTypes": "", "columns": "valueType"}, "columns names valueType"),
        ({"onUnknownType": "dead-letter"}, "onUnknownType is dead-letter, but there is no deadLetterTopic"),
        ({"valueFields": "Login"}, "valueFields"),
        ({"valueUnionNames": "types"}, "valueUnionNames reads the types of one schema"),
        (UNION, "valueUnionNames: the schema of the subject events-value is record shop.Order, no union of records"),
        (
            {**UNION, "valueFormat": "avro", "valueSchema": '["null", "long"]'},
            "valueUnionNames: the schema is union of null, long, no union of records",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(
    registry: FakeSchemaRegistry, write: Write, read: Read, options: dict[str, str], problem: str
) -> None:
    registry.register("events-value", json.dumps(ORDER))
    write(ORDER, {"id": 1})
    write(REFUND, {"reason": "late"})
    with pytest.raises(ConfigurationError, match=problem):
        read(**options)


def test_type_of_the_same_local_name_is_another_type(write: Write, read: Read) -> None:
    """Its fields might fit: here the default of `note` would be read, without an error."""
    write(NEWER_ORDER, {"id": 1, "note": "a"})
    write({**ORDER, "namespace": "billing"}, {"id": 2})
    write({**NEWER_ORDER, "aliases": ["billing.Order"]}, {"id": 3, "note": "b"})
    with pytest.raises(DecodeFailed, match=r"its type billing\.Order is none of shop\.Order\. .*onUnknownType=skip"):
        read(valueTypes="shop.Order", **{VERSION: "1"})
    rows = read(valueTypes="shop.Order", columns="value,valueType")
    assert [row["value"]["Order"]["id"] for row in rows] == [1, 2, 3]
    assert [row["valueType"] for row in rows] == ["Order"] * 3


@pytest.fixture
def write_union(fake: FakeKafka, registry: FakeSchemaRegistry) -> Write:
    """Return `write(schemas, *values)`, which registers a union of references to `schemas`, and writes its values."""
    context = SerializationContext("events", MessageField.VALUE)

    def send(schemas: list[dict[str, Any]], *values: tuple[str, dict[str, Any]]) -> None:
        client = SchemaRegistryClient({"url": registry.url})  # it caches the latest versions
        names = [f"{schema['namespace']}.{schema['name']}" for schema in schemas]
        for name, schema in zip(names, schemas, strict=True):
            client.register_schema(name, Schema(json.dumps(schema), "AVRO"))
        latest = [(name, name, client.get_latest_version(name).version) for name in names]
        union = Schema(json.dumps(names), "AVRO", [SchemaReference(*reference) for reference in latest])
        client.register_schema("events-value", union)
        conf = {"auto.register.schemas": False, "use.latest.version": True}
        serialize, deserialize = AvroSerializer(client, union, conf=conf), AvroDeserializer(client)
        for value in values:
            raw = serialize(value, context)
            assert len(raw) < 6 or deserialize(raw, context) == value[1]
            fake.produce("events", raw, partition=0)

    return send


ORDERED, REFUNDED = ("shop.Order", {"id": 1}), ("shop.Refund", {"reason": "late"})


def test_records_of_a_union_of_references_have_fields_of_their_names(
    fake: FakeKafka, write_union: Write, read: Read
) -> None:
    write_union([ORDER, REFUND], ORDERED, REFUNDED)
    fake.produce("events", None, key="k", partition=0)
    assert read(**UNION) == [*EXPECTED, {"value": None}]
    rows = read(**UNION, columns="value,valueType", valueFields="Refund")
    assert [row["valueType"] for row in rows] == ["Order", "Refund", None]
    assert [row["value"] for row in rows] == [None, {"Refund": {"reason": "late"}}, None]
    assert read(**UNION, filter="valueType = 'Refund' AND value.Refund.reason LIKE 'l%'") == EXPECTED[1:]
    members = read(valueTypes="")
    assert [list(row["value"] or ()) for row in members] == [["member0", "member1"]] * 2 + [[]]


def test_union_is_read_as_the_types_of_subjects_are(write: Write, write_union: Write, read: Read) -> None:
    write_union([ORDER, REFUND], ORDERED)
    write(REFUND, {"reason": "late"}, "RecordNameStrategy")
    both = "value,valueType"
    by_subjects = read(columns=both, valueSubjectNameStrategy="RecordNameStrategy")
    assert read(**UNION, columns=both) == by_subjects
    assert [row["value"] for row in by_subjects] == [row["value"] for row in EXPECTED]


def test_branches_of_a_newer_union_are_unknown_types_until_it_is_read(
    parsed: Parsed, write_union: Write, read: Read
) -> None:
    write_union([ORDER, REFUND], ORDERED)
    write_union([LOGIN, NEWER_ORDER, REFUND], ("shop.Login", {"user": "ann"}), REFUNDED)
    rows = read(**UNION)
    assert [row["value"]["Order"] for row in rows] == [{"id": 1, "note": None}, None, None]
    assert [row["value"]["Login"] for row in rows] == [None, {"user": "ann"}, None]
    pinned = {**UNION, VERSION: "1"}
    with pytest.raises(DecodeFailed, match=r"type shop\.Login is none of Order, Refund.*onUnknownType=skip"):
        read(**pinned)
    assert read(**pinned, onUnknownType="skip") == EXPECTED
    latest = parsed(**UNION)
    assert latest.schema_versions == {"value": 2}
    assert declared_versions(spark_schema(("value",), latest.schemas)) == {"events-value": 2}
    with pytest.raises(ConfigurationError, match=r"reader\.version to 1 to keep"):
        require_same_versions(latest, {"value": 1})


def test_union_without_a_registry_is_read(fake: FakeKafka, parsed: Parsed, read: Read) -> None:
    schema = [*({**ORDER, "namespace": place} for place in ("shop", "depot")), "null"]
    union = fastavro.parse_schema(schema)
    for value in (("depot.Order", {"id": 2}), None, ("shop.Order", {"id": 1})):
        raw = BytesIO()
        fastavro.schemaless_writer(raw, union, value)
        fake.produce("events", raw.getvalue(), partition=0)
    options = {**UNION, "valueFormat": "avro", "valueSchema": json.dumps(schema), "columns": "value,valueType"}
    expected = [
        {"value": {"shop.Order": None, "depot.Order": {"id": 2}}, "valueType": "depot.Order"},
        {"value": None, "valueType": None},
        {"value": {"shop.Order": {"id": 1}, "depot.Order": None}, "valueType": "shop.Order"},
    ]
    assert read(**options) == expected
    without_registry = parsed(**options, **{"schema.registry.url": ""})
    assert declared_versions(spark_schema(("value",), without_registry.schemas)) == {}
    for wrong in (b"", b"\x06", b"\x04\0", b"\x00"):
        fake.produce("events", wrong, partition=0)
    rows = read(**options, onDecodeError="null")
    assert [row["value"] for row in rows] == [row["value"] for row in expected] + [None] * 4
    with pytest.raises(DecodeFailed, match=r"offset 3: .*branch is truncated, or not in its schema"):
        read(**options)
