"""Options for values of AWS Glue's schema registry, in the source, the sink and the functions for columns."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from protocol.errors import ConfigurationError, KafkaError
from protocol.schemas.formats import Format
from protocol.schemas.values import ColumnDecoder, choose_schema
from protocol.testing import FakeKafka
from spark_kafka_source.driver.batch_reader import KafkaBatchReader
from spark_kafka_source.driver.reader_schemas import with_schemas
from spark_kafka_source.functions import from_registry
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.process_state import PROCESS
from spark_kafka_source.sink.batch_writer import KafkaBatchWriter
from spark_kafka_source.sink.value_schemas import encode_column, writer_schemas
from tests.support.glue_endpoint import GlueEndpoint
from tests.support.spark_task import spark_task

ID = "ab000000-0000-0000-0000-000000000001"
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
PROTO = 'syntax = "proto3"; message R { message B { int64 id = 1; } map<string, int64> a = 1; }'
OBJECT = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
COLUMN = StructType().add("value", StructType().add("id", "long"))
SCHEMAS: dict[Format, tuple[str, str]] = {
    "glue-avro": (AVRO, "AVRO"),
    "glue-json": (OBJECT, "JSON"),
    "glue-protobuf": (PROTO, "PROTOBUF"),
}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[GlueEndpoint]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    with GlueEndpoint() as running:
        yield running
    PROCESS.reset()


READ = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "orders"}


def options(endpoint: GlueEndpoint, **more: str) -> dict[str, str]:
    glue = {"schema.registry.glue.region": "eu-central-1", "schema.registry.glue.endpoint": endpoint.url}
    return {"kafka.bootstrap.servers": "unused:9092", "valueFormat": "glue-avro", **glue, **more}


def by_id(text: object) -> dict[str, str]:
    """Return the option with a schema by version id."""
    return {"schema.registry.glue.schemas": json.dumps({ID: text})}


@pytest.mark.parametrize("format", SCHEMAS)
def test_values_that_the_sink_writes_are_read_by_the_source(format: Format, endpoint: GlueEndpoint) -> None:
    text, kind = SCHEMAS[format]
    endpoint.add("orders", text, kind)
    message = {"valueMessageName": "R.B"} if kind == "PROTOBUF" else {}
    written = options(endpoint, topic="orders", valueFormat=format, **message)
    with FakeKafka() as kafka:
        kafka.create_topic("orders", 1)
        servers = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
        writer = KafkaBatchWriter(parse_sink_options({**written, **servers}), COLUMN, overwrite=False)
        values = pa.array([{"id": 7}, None], pa.struct([("id", pa.int64())]))
        with spark_task():
            writer.commit([writer.write(iter([pa.record_batch({"value": values})]))])
        read = options(endpoint, subscribe="orders", valueFormat=format, **message, **servers)
        parsed = with_schemas(parse_source_options(read, streaming=False))
        filtered = with_schemas(
            parse_source_options({**read, "columns": "offset", "filter": "value IS NULL"}, streaming=False)
        )
        assert parsed.schema_versions == filtered.schema_versions == {"value": 1}
        reader = KafkaBatchReader(parsed)
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert pa.Table.from_batches(batches)["value"].to_pylist() == [{"id": 7}, None]


def test_sink_writes_with_the_version_that_has_the_text_of_its_schema(endpoint: GlueEndpoint) -> None:
    first = endpoint.add("a", AVRO)
    endpoint.add("a", AVRO.replace("}]", '}, {"name": "note", "type": "string", "default": ""}]'))
    sink = parse_sink_options(options(endpoint, topic="orders", valueSubject="a", valueSchema=AVRO))
    (schema,) = writer_schemas(sink, COLUMN)
    encoded = encode_column(schema, pa.array([{"id": 1}]))
    registry = PROCESS.registry(sink.registry)  # type: ignore[arg-type]
    decoder = ColumnDecoder(choose_schema("glue-avro", registry, "a", version=1), registry)
    assert decoder.decode(encoded)[0].to_pylist() == [{"id": 1}]
    assert schema.prefix[2:].hex() == first.version_id.replace("-", "")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "schema orders: EntityNotFoundException.*; set valueSubject if its name is another one"),
        ({"valueSubject": "a", "schema.registry.reader.version": "9"}, "set schema.registry.reader.version to one"),
        ({"valueSubject": "p"}, "type PROTOBUF, which glue-avro cannot read; use glue-protobuf"),
        ({"subscribe": "a,b"}, "the query reads 2 topics: set valueSubject"),
        (
            {"keyFormat": "confluent-avro"},
            r"keyFormat is confluent-avro, but schema\.registry\.glue\.region is set, .* Set schema\.registry\.url "
            r"instead; or, .* needs schema\.registry\.glue\.region, set keyFormat to binary, and decode the column",
        ),
        ({"schema.registry.url": "http://r:1"}, "schema.registry.url has no effect with schema.registry.glue.region"),
    ],
)
def test_wrong_option_of_a_source_is_refused(more: dict[str, str], message: str, endpoint: GlueEndpoint) -> None:
    endpoint.add("a", AVRO)
    endpoint.add("p", PROTO, "PROTOBUF")
    with pytest.raises(KafkaError, match=message):
        with_schemas(parse_source_options(options(endpoint, **{"subscribe": "orders", **more}), streaming=True))


def test_registry_is_missing_without_a_region_or_schemas() -> None:
    missing = {**READ, "valueFormat": "glue-json"}
    with pytest.raises(ConfigurationError, match=r"there is no schema\.registry\.glue\.region; set it"):
        parse_source_options(missing, streaming=True)
    schemas = by_id({})
    parsed = parse_source_options({**missing, **schemas, "valueSchema": "id INT"}, streaming=True)
    assert parsed.registry.glue_schemas == ((ID, "{}"),)
    sink = {"kafka.bootstrap.servers": "unused:9092", "topic": "orders", "valueFormat": "glue-json", **schemas}
    with pytest.raises(
        ConfigurationError, match=r"schemas for reading only; set schema\.registry\.glue\.region instead"
    ):
        parse_sink_options(sink)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "valueFormat is glue-avro, and .* by version id only; set valueSchema to the schema to read with"),
        ({"valueSchema": AVRO, "keyFormat": "glue-json"}, "keyFormat is glue-json, and .*; set keySchema to"),
        ({"valueTypes": "R,S"}, r"several types, .* Set schema\.registry\.glue\.region instead. .* valueUnionNames to"),
        ({"valueTypes": "R,S", "valueSchema": AVRO}, r"several types, .* Set schema\.registry\.glue\.region instead"),
        ({"valueSubject": "R,S"}, r"several types, .* Set schema\.registry\.glue\.region instead"),
        (
            {"valueFormat": "confluent-avro"},
            r"but schema\.registry\.glue\.schemas is set, .* Set schema\.registry\.url",
        ),
    ],
)
def test_option_that_schemas_by_id_do_not_fit_is_refused_with_one_that_does(more: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_source_options({**READ, "valueFormat": "glue-avro", **more, **by_id(AVRO)}, streaming=True)


@pytest.mark.parametrize(
    "text", [PROTO, '{"type": "recrod"}', "{", "[5]", '{"type": "record", "name": "R", "fields": 5}']
)
def test_schema_by_id_that_is_none_of_the_language_is_refused_with_its_id(text: str) -> None:
    texts = {**READ, "valueSchema": AVRO, **by_id(text)}
    with pytest.raises(ConfigurationError, match=f"schemas: the schema {ID} cannot be that of a value. glue-avro: "):
        parse_source_options({**texts, "valueFormat": "glue-avro"}, streaming=True)
    if text == PROTO:
        parse_source_options({**texts, "valueFormat": "glue-protobuf", "valueSchema": PROTO}, streaming=True)
        both = {"valueFormat": "glue-avro", "keyFormat": "glue-protobuf", "keySchema": PROTO}
        parse_source_options({**texts, **both}, streaming=True)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schema.registry.auto.register.schemas": "true"}, "schemas are not registered in AWS Glue: leave the option"),
        ({"valueSubject": "b"}, r"check schema\.registry\.glue\.registry\.name, which is default-registry$"),
        ({"valueSubject": "a", "valueSchema": OBJECT}, "the version with this text of the schema a: EntityNotFound"),
    ],
)
def test_wrong_option_of_a_sink_is_refused(more: dict[str, str], message: str, endpoint: GlueEndpoint) -> None:
    endpoint.add("a", AVRO)
    with pytest.raises(KafkaError, match=message):
        writer_schemas(parse_sink_options(options(endpoint, **{"topic": "orders", **more})), COLUMN)


def test_function_for_columns_needs_the_name_of_the_schema(endpoint: GlueEndpoint) -> None:
    with pytest.raises(ConfigurationError, match="valueSubject is missing"):
        from_registry("value", options(endpoint))
