"""Wrong options of values with a schema: one line of the package with the option's name and the remedy."""

from __future__ import annotations

import re
import socket
import traceback
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import StructType

from protocol.errors import ConfigurationError, KafkaError
from protocol.schemas.reader_schema import Part
from protocol.testing import FakeSchemaRegistry
from spark_kafka_source import from_registry, to_registry
from spark_kafka_source.driver.reader_schemas import require_same_versions, with_schemas
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.sink.value_schemas import writer_schemas
from spark_kafka_source.source import KafkaGroupDataSource

LONG = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
MESSAGE = 'syntax = "proto3"; message M { int64 id = 1; }'
OBJECT = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
ENCRYPTING = {"domainRules": [{"name": "hidePII", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}]}
WITH_NAME = '{"type": "record", "name": "R", "fields": [{"name": "name", "type": "string"}]}'
DEEP = 'syntax = "proto3"; ' + " ".join(f"message M{n} {{ M{n + 1} x = 1; }}" for n in range(300)) + " message M300 { }"


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        for subject, text, kind in (("a", LONG, "AVRO"), ("p", MESSAGE, "PROTOBUF"), ("j", OBJECT, "JSON")):
            running.register(subject, text, kind)
        running.register("secret", LONG)
        running.register("secret", WITH_NAME)
        running.register("secret", WITH_NAME, rule_set=ENCRYPTING)
        yield running


def refusal(url: str, **more: str) -> str:
    """Return the message of `load()`, which is one line without traceback and causes."""
    options = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "orders", "valueFormat": "confluent-avro"}
    options |= {"schema.registry.url": url, "schema.registry.max.retries": "0"}
    options |= {name.replace("__", "."): text for name, text in more.items()}
    if not options["valueFormat"].startswith("confluent-"):
        options = {name: text for name, text in options.items() if not name.startswith("schema.registry.")}
    with pytest.raises(KafkaError) as refused:
        KafkaGroupDataSource(options).schema()
    assert refused.value.__suppress_context__
    assert len(traceback.extract_tb(refused.tb)) < 4
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert "hunter2" not in message
    return message


def protobuf(schema: str, **more: str) -> dict[str, str]:
    return {"valueFormat": "protobuf", "valueSchema": schema, **more}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "subject orders-value with the status 404 .*not found; set valueSubject if its name is another one"),
        ({"schema__registry__reader__version": "9", "valueSubject": "a"}, "set schema.registry.reader.version to one"),
        ({"valueSubject": "p"}, "subject p has a schema of the type PROTOBUF, which confluent-avro cannot read; use "),
        ({"valueSubject": "secret"}, "version 3 of the subject secret has rules .*: hidePII .* Disable the rule"),
        ({"valueSubject": "a", "valueFormat": "confluent-json"}, "type AVRO, .* use confluent-avro"),
        ({"valueSubject": "a", "valueFields": "id, nope"}, "valueFields: the subject a: the schema has no field nope;"),
        ({"valueSubject": "j", "valueFormat": "confluent-json", "valueFields": "x"}, "valueFields: the subject j: "),
        (
            {"valueSubject": "p", "valueFormat": "confluent-protobuf", "valueMessageName": "N"},
            "valueMessageName: the subject p: the Protobuf schema has no message N; it has M",
        ),
        (protobuf(MESSAGE, valueFields="x"), "valueFields: the schema has no "),
        (protobuf(DEEP), "valueSchema: the Protobuf schema is nested deeper than 64"),
        (protobuf("message Größe { }"), "valueSchema: .* the character 'ö', .*line 1"),
        (protobuf("message M { map<double, M> m = 1; }"), "keys of the type double"),
        ({"valueFormat": "avro", "valueSchema": "schemas/order.avsc"}, "a file is given as file:schemas/order.avsc"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "valueSchema: the Avro schema is not JSON"),
        ({"valueFormat": "avro"}, "valueFormat is avro, but there is no valueSchema"),
        ({"valueFormat": "avr"}, "valueFormat is 'avr' .*did you mean avro"),
        ({"columns": "_raw"}, "columns names _raw, but onDecodeError is fail; set onDecodeError to null"),
        ({"subscribe": "a,b"}, "reads 2 topics: set valueSubject"),
        ({"schema__registry__urls": "http://r:1"}, "schema.registry.urls is unknown; did you mean schema.registry.url"),
        (protobuf("message A {"), "valueSchema: the Protobuf schema has .* in line 1"),
        (protobuf("message A { A a = 1; }"), "a is recursive: A contains itself. Set recursive.fields.max.depth"),
        ({"valueFormat": "json", "valueSchema": "id BIGNT"}, "valueSchema: the schema, field id, has the type bignt"),
        ({"valueFormat": "json", "valueSchema": "id BIGINT,"}, "valueSchema: the schema is no DDL at 'its end'"),
        ({"valueFormat": "json", "valueSchema": "i INT", "valueFields": "x"}, "the schema has no field x; it has i"),
        (
            {"valueSubject": "a", "schema__registry__basic__auth__user__info": "${env:NOT_THERE}"},
            r"schema\.registry\.basic\.auth\.user\.info: \$\{env:NOT_THERE\} cannot be resolved",
        ),
        (
            protobuf(MESSAGE, convert__any__fields__to__json="true"),
            r"convert\.any\.fields\.to\.json is 'true' \(a field of google\.protobuf\.Any is a struct .*leave this out",
        ),
    ],
)
def test_wrong_option_is_one_line_with_its_name_and_remedy(
    registry: FakeSchemaRegistry, more: dict[str, str], message: str
) -> None:
    shown = refusal(registry.url, **more)
    assert re.search(message, shown), shown


def test_registry_that_cannot_be_reached_is_one_line_with_the_option(registry: FakeSchemaRegistry) -> None:
    check = "Check schema.registry.url; a registry that is slow may need a higher schema.registry.request.timeout.ms"
    secret = {"schema__registry__basic__auth__user__info": "me:hunter2"}
    message = refusal("http://127.0.0.1:1", **secret)
    assert "subject orders-value: 127.0.0.1:1: cannot connect" in message
    assert check in message
    message = refusal(registry.url.replace("http:", "https:"))
    assert "the server did not respond with TLS; an address without TLS begins with http://" in message
    assert "check the address in schema.registry.url" in refusal(f"{registry.url}/api")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        message = refusal(url, schema__registry__request__timeout__ms="100", **secret)
    assert "no complete response in time" in message
    assert "which is 100" in message


def test_registry_that_is_asked_again_is_a_warning(
    registry: FakeSchemaRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.fail_next(503)
    properties = {"schema__registry__max__retries": "1", "schema__registry__retries__wait__ms": "0"}
    refusal(registry.url, **properties)
    assert "the schema registry does not respond, the request will be repeated: " in caplog.text


@pytest.mark.parametrize(
    "topics", [{"subscribe": "orders,dead"}, {"assign": '{"dead": [0]}'}, {"subscribePattern": "d.*"}]
)
def test_dead_letter_topic_that_the_query_reads_is_refused(topics: dict[str, str]) -> None:
    options = {"kafka.bootstrap.servers": "unused:9092", "valueFormat": "json", "valueSchema": "id INT"}
    options |= {"onDecodeError": "dead-letter", "deadLetterTopic": "dead"}
    with pytest.raises(ConfigurationError, match="deadLetterTopic is dead, which this query reads: each dead letter"):
        parse_source_options({**options, **topics}, streaming=True)
    assert parse_source_options({**options, "subscribe": "orders"}, streaming=True).dead_letter_topic == "dead"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "subject orders-value .* not found; to register the schema of the column, set schema.registry.auto.reg"),
        ({"valueSchema": LONG}, "subject orders-value .* not found; to register it, set schema.registry.auto.register"),
        ({"valueSubject": "p"}, "subject p has a schema of the type PROTOBUF, not AVRO; set valueFormat to confluent-"),
        ({"valueSubject": "a"}, "the column value cannot be written: the schema has no field name; it has id"),
        ({"valueFormat": "string"}, "valueFormat is 'string'; allowed: binary, json, "),
        ({"valueFormat": "avro"}, "valueFormat is avro, but there is no valueSchema"),
        ({"valueFormat": "confluent-protobuf", "valueSubject": "p"}, "the schema has no field name; it has id"),
        (protobuf("message M { int32 name = 1; }"), "name is string, which the schema's int32 cannot take"),
        ({"valueSubject": "secret"}, "version 3 of the subject secret has rules that are not applied here, and that "),
        # The contract of the subject holds for an older version that has no rules, too.
        ({"valueSubject": "secret", "valueSchema": WITH_NAME}, "version 3 of the subject secret has rules .*hidePII"),
        ({"valueSubject": "secret", "schema.registry.auto.register.schemas": "true"}, "version 3 of .* hidePII"),
    ],
)
def test_wrong_option_of_a_sink_is_one_line_with_its_remedy(
    registry: FakeSchemaRegistry, more: dict[str, str], message: str
) -> None:
    options = {"kafka.bootstrap.servers": "unused:9092", "topic": "orders", "valueFormat": "confluent-avro"}
    column = StructType().add("value", StructType().add("name", "string"))
    with pytest.raises(KafkaError) as refused:
        writer_schemas(parse_sink_options({**options, "schema.registry.url": registry.url, **more}), column)
    assert re.search(message, str(refused.value)), refused.value


AVRO_LONG = {"valueFormat": "avro", "valueSchema": LONG}
MISSPELT = {
    "keyFromat": "keyFormat",
    "valueFeilds": "valueFields",
    "topc": "topic",
    "startingOfsets": "startingOffsets",
    "kafka.comprssion.type": "kafka.compression.type",
    "kafka.auto.ofset.reset": "kafka.auto.offset.reset",
}


@pytest.mark.parametrize("function", [from_registry, to_registry])
@pytest.mark.parametrize(
    ("part", "options", "message"),
    [
        ("key", {**AVRO_LONG, "keyFormat": "avro", "valueSchema": "file:missing"}, "there is no keySchema"),
        ("value", {"keyFormat": "avro", "valueFormat": "avro", "keySchema": "file:missing"}, "there is no valueSchema"),
        *(
            ("value", {**AVRO_LONG, name: "x"}, f"{name} is not .*; did you mean {nearest}?")
            for name, nearest in MISSPELT.items()
        ),
    ],
)
def test_wrong_options_of_functions_for_columns_are_refused(
    function: Callable[..., object], part: Part, options: dict[str, str], message: str
) -> None:
    """An application has one dict for keys and values: the schema of the other part is not read."""
    with pytest.raises(ConfigurationError, match=message):
        function(part, options, part=part)


def test_functions_for_columns_suggest_options_of_their_own_side() -> None:
    options = {"valueFormat": "avro", "valueSchema": LONG, "topicName": "orders"}
    for function, nearest in ((from_registry, "subscribe"), (to_registry, "topic")):
        with pytest.raises(ConfigurationError, match=rf"did you mean {nearest}\?$"):
            function("value", options)


def test_subject_with_rules_gets_no_new_version(registry: FakeSchemaRegistry) -> None:
    """A registry would pass the rules on to the version that a refused query leaves behind."""
    options = {"kafka.bootstrap.servers": "unused:9092", "topic": "orders", "valueFormat": "confluent-avro"}
    options |= {"schema.registry.url": registry.url, "valueSubject": "secret", "valueSchema": LONG.replace("R", "S")}
    column = StructType().add("value", StructType().add("id", "long"))
    registry.requests.clear()
    with pytest.raises(ConfigurationError, match="hidePII"):
        writer_schemas(parse_sink_options({**options, "schema.registry.auto.register.schemas": "true"}), column)
    assert registry.requests == ["GET /subjects/secret/versions/latest"]


def test_functions_for_columns_refuse_a_subject_with_rules(registry: FakeSchemaRegistry) -> None:
    options = {"schema.registry.url": registry.url, "valueFormat": "confluent-avro", "valueSubject": "secret"}
    for function in (from_registry, to_registry):
        with pytest.raises(ConfigurationError, match=r"version 3 of the subject secret has rules .*: hidePII"):
            function("value", options)


@pytest.mark.parametrize(
    "more",
    [
        {"valueFormat": "string"},
        {"valueFormat": "avro", "valueSchema": LONG},
        {"valueFormat": "confluent-avro", "valueSchema": LONG},
        {"valueFormat": "confluent-avro", "valueSubject": "a"},
        {"keyFormat": "confluent-avro", "keySubject": "a"},
    ],
)
def test_pattern_of_topics_has_no_default_subject(registry: FakeSchemaRegistry, more: dict[str, str]) -> None:
    url = {"schema.registry.url": registry.url} if "confluent" in str(more) else {}
    options = {"kafka.bootstrap.servers": "unused:9092", "subscribePattern": "orders.*", **url, **more}
    assert {"key", "value"} < set(KafkaGroupDataSource(options).schema().names)


def test_version_of_a_checkpoint_is_not_called_one_of_another_subject(registry: FakeSchemaRegistry) -> None:
    """The checkpoint has no names of subjects; here valueSubject has changed since."""
    options = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "valueFormat": "confluent-avro"}
    options |= {"valueSubject": "a", "schema.registry.url": registry.url}
    parsed = with_schemas(parse_source_options(options, streaming=True))
    message = "read with version 3 of their subject, and load.. has taken version 1 of the subject a.*set latest"
    with pytest.raises(ConfigurationError, match=message):
        require_same_versions(parsed, {"value": 3})


def test_filter_asks_for_the_schemas_of_its_columns_only(registry: FakeSchemaRegistry) -> None:
    """The registry has no subject payments-key, and the query no column of keys."""
    registry.register("payments-value", LONG.replace('"id"', '"key_id"'))
    options = {"kafka.bootstrap.servers": "unused:9092", "subscribe": "payments", "schema.registry.url": registry.url}
    options |= {"keyFormat": "confluent-avro", "valueFormat": "confluent-avro", "columns": "value"}
    assert KafkaGroupDataSource({**options, "filter": "value.key_id > 5"}).schema().names == ["value"]
