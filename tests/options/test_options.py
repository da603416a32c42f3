"""Spark's dict of options is parsed into one frozen object, or the error names the user's option."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from protocol.errors import ConfigurationError
from protocol.properties import PROPERTIES
from protocol.settings.property_kinds import Effect, one_of
from protocol.settings.secret import Secret
from spark_kafka_source.options import markdown, parsing
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.options.table import OPTIONS, READ, Option, SinkOptions, SourceOptions, _read, entries
from tests.options.parsed import BROKERS, ORDERS, refusal, sink, sink_refusal, stream
from tests.support.documents import block, listed_names

ROOT = Path(__file__).parents[2]


def test_minimal_options_have_the_defaults_of_sparks_connector() -> None:
    options = stream()
    assert options.client.bootstrap_servers == (("localhost", 9092),)
    assert (options.subscribe, options.subscribe_pattern, options.assign) == (("orders",), None, None)
    assert (options.max_offsets_per_trigger, options.max_bytes_per_trigger, options.min_partitions) == (None,) * 3
    assert options.fail_on_data_loss is True
    assert options.row_columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (None, 900_000)
    assert (options.max_records_per_partition, options.max_input_partitions) == (None, None)
    assert (options.starting_offsets_by_timestamp_strategy, options.fail_on_topic_recreated) == ("error", True)
    assert (options.fetch_offset_num_retries, options.fetch_offset_retry_interval_ms) == (3, 1_000)
    assert options.poll_timeout_ms == 120_000


def test_names_are_case_insensitive() -> None:
    properties = {
        "KAFKA.Bootstrap.Servers": "a:1",
        "SUBSCRIBE": "t",
        "MaxOffsetsPerTRIGGER": "5",
        "Kafka.Group.ID": "Etl",
    }
    options = parse_source_options(properties, streaming=True)
    assert (options.subscribe, options.max_offsets_per_trigger, options.consumer.group_id) == (("t",), 5, "Etl")


def test_driver_timeout_includes_the_retries() -> None:
    options = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "7", "kafka.default.api.timeout.ms": "100"}
    assert parse_source_options({**ORDERS, **options}, streaming=True).offsets_timeout_ms == 100 + 2 * 107


def test_topics_are_a_list_a_pattern_within_names_or_sorted_partitions() -> None:
    assert stream(subscribe=" b, a,,b ").subscribe == ("b", "a")
    pattern = parse_source_options({**BROKERS, "subscribePattern": r"ord[a-z]+s"}, streaming=True).subscribe_pattern
    assert [bool(pattern.search(name)) for name in ("my-orders-eu", "Orders")] == [True, False]
    assign = parse_source_options({**BROKERS, "assign": '{"b": [2, 0], "a": [1]}'}, streaming=True).assign
    assert list(assign.items()) == [("a", (1,)), ("b", (0, 2))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "There is no subscribe, subscribePattern or assign; give exactly one of them"),
        ({"topic": "orders"}, "to say what to read. The option topic is for writes"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe and assign exclude each other; give exactly one"),
        ({"subscribe": " , "}, "subscribe is ' , ' (names no topic)"),
        ({"subscribe": "a b"}, "'a b' is no topic name"),
        ({"subscribePattern": ""}, "subscribePattern is '' (the pattern is empty)"),
        (
            {"subscribePattern": "a["},
            "subscribePattern is 'a[' (from character 2 on, '[', Java and Python may not read the same); allowed: a ",
        ),
        ({"assign": "orders"}, "assign is 'orders' (not a JSON object of topics)"),
        ({"assign": "{}"}, "assign is '{}' (names no topic)"),
        ({"assign": "[]"}, "not a JSON object"),
        ({"assign": '{"a": []}'}, "a has no list of partitions"),
        ({"assign": '{"a": 0}'}, "a has no list of partitions"),
        ({"assign": '{"a": [0, 0]}'}, "a-0 is there twice"),
        ({"assign": '{"a": [0], "a": [1]}'}, "'a' is there twice"),
        ({"assign": '{"a": ["0"]}'}, "a partition of a is '0', not a whole number"),
        ({"assign": '{"a": [-1]}'}, "a partition of a is -1"),
        ({"assign": '{"a": [true]}'}, "a partition of a is True"),
        ({"assign": '{"a b": [0]}'}, "'a b' is no topic name"),
    ],
)
def test_invalid_topic_selection_is_refused(options: dict[str, str], message: str) -> None:
    assert message in refusal(options)


@pytest.mark.parametrize(
    ("low", "high"), [("minOffsetsPerTrigger", "maxOffsetsPerTrigger"), ("minPartitions", "maxInputPartitions")]
)
def test_minimum_above_maximum_is_refused(low: str, high: str) -> None:
    assert f"{low} is 6, more than {high} (5)" in refusal({"subscribe": "orders", low: "6", high: "5"})
    assert stream(**{low: "5", high: "5"})


def test_recreated_topic_fails_unless_allowed_by_options() -> None:
    assert stream(failOnDataLoss="false").fail_on_topic_recreated is False
    assert stream(failOnDataLoss="false", onTopicRecreated="fail").fail_on_topic_recreated is True
    assert stream(onTopicRecreated="earliest").fail_on_topic_recreated is False


def test_jaas_config_of_another_mechanism_is_refused() -> None:
    jaas = 'PlainLoginModule required username="me" password="hunter2";'
    options = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    for streaming in (True, False):
        message = refusal({"subscribe": "orders", **options}, streaming=streaming)
        assert "jaas.config is [hidden], whose login module does not support kafka.sasl.mechanism PLAIN" in message


def test_options_for_managed_clusters_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    names: dict[str, dict[str, str]] = {}
    exec(block("security.md", "confluent_cloud").text, {}, names)
    assert len(names) == 8
    for options in names.values():
        assert parse_source_options({**options, "subscribe": "orders"}, streaming=True)
        assert parse_sink_options({**options, "topic": "orders"})
    assert caplog.messages == []


def test_options_of_glue_are_accepted() -> None:
    names: dict[str, dict[str, str]] = {}
    exec(block("schemas.md", "glue_orders = {").text, {}, names)
    (options,) = names.values()
    for parsed in (
        parse_source_options({**options, "subscribe": "orders"}, streaming=True),
        parse_sink_options({**options, "topic": "orders"}),
    ):
        assert parsed.registry.glue_region == "eu-central-1"


def test_private_key_visible_in_spark_ui_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    key = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.certificate.chain": "PEM"}
    stream(**key, **{"kafka.ssl.keystore.key": "${dir:/run/secrets:key}"})
    assert caplog.messages == []
    stream(**key, **{"kafka.ssl.keystore.key": "hunter2"})
    assert "kafka.ssl.keystore.key is shown by Spark in plans and its UI" in caplog.text
    assert "hunter2" not in caplog.text


def test_references_are_resolved_on_the_driver_except_tls_and_sasl_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS_OF_A_TEST", "a:1,b:2")
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2")
    monkeypatch.setenv("MECHANISM_OF_A_TEST", "PLAIN")
    how = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "${env:MECHANISM_OF_A_TEST}"}
    sasl = {**how, "kafka.sasl.username": "me"}
    secret = "${env:PASSWORD_OF_A_TEST}"
    options = stream(**sasl, **{"kafka.bootstrap.servers": "${env:BROKERS_OF_A_TEST}", "kafka.sasl.password": secret})
    assert options.client.bootstrap_servers == (("a", 1), ("b", 2))
    assert options.client.sasl.mechanism == "PLAIN"
    assert options.client.sasl.password == Secret(secret)
    assert b"hunter2" not in pickle.dumps(options)
    assert options.client.sasl.resolved().password == Secret("hunter2")


def test_brokers_are_required() -> None:
    with pytest.raises(ConfigurationError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source_options({"subscribe": "orders"}, streaming=True)


def test_sink_requires_acknowledgements_by_default() -> None:
    options = sink(topic=" orders ")
    assert options.topic == "orders"
    assert options.delivery_guarantee == "at-least-once"
    assert (options.producer.acks, options.producer.enable_idempotence) == (-1, True)


@pytest.mark.parametrize(
    ("java", "name"), [("internals.DefaultPartitioner", "murmur2"), ("RoundRobinPartitioner", "round_robin")]
)
def test_partitioner_may_be_a_class_of_java(java: str, name: str) -> None:
    assert sink(**{"kafka.partitioner.class": f"org.apache.kafka.clients.producer.{java}"}).producer.partitioner == name


def test_delivery_guarantee_none_means_acks_0(caplog: pytest.LogCaptureFixture) -> None:
    options = sink(deliveryGuarantee="none")
    assert (options.producer.acks, options.producer.enable_idempotence) == (0, False)
    assert not caplog.records


def test_acks_alone_determines_the_delivery_guarantee(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(kafka_acks="0").delivery_guarantee == "none"
    assert sink(kafka_acks="1").producer.acks == 1
    assert "records that only the leader has are lost if it fails" in caplog.text


EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}


def test_transaction_timeout_defaults_to_15_minutes(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(**EXACTLY_ONCE).producer.transaction_timeout_ms == 900_000
    assert sink(**EXACTLY_ONCE, kafka_transaction_timeout_ms="5000").producer.transaction_timeout_ms == 5_000
    sink(transactionalIdPrefix="p", kafka_transaction_timeout_ms="5000")
    for name in ("transactionalIdPrefix", "kafka.transaction.timeout.ms"):
        assert f"{name} has no effect without deliveryGuarantee exactly-once" in caplog.text


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            {"valueSubjectNameStrategy": "RecordNameStrategy"},
            "valueSubjectNameStrategy has no effect without valueTypes",
        ),
        (
            {"valueSubject": "a,b", "valueMessageName": "M", "valueFormat": "confluent-protobuf"},
            "valueMessageName has no effect: values have several types",
        ),
    ],
)
def test_option_without_effect_on_types_is_a_warning(
    options: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = {"valueFormat": "confluent-avro", "schema_registry_url": "http://registry:8081"}
    sink(topic="orders", **registry | options)
    assert warning in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "there is no transactionalIdPrefix; set one"),
        ({**EXACTLY_ONCE, "kafka.acks": "1"}, "deliveryGuarantee is exactly-once, but kafka.acks is 1"),
        ({**EXACTLY_ONCE, "kafka.enable.idempotence": "false"}, "exactly-once, but idempotence is off"),
        ({**EXACTLY_ONCE, "asyncProgressTrackingEnabled": " True"}, "but asyncProgressTrackingEnabled is true: after"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a b"}, "transactionalIdPrefix is 'a b'"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a" * 201}, "at most 200"),
        ({"deliveryGuarantee": "some"}, "allowed: at-least-once, exactly-once, none"),
        ({"deliveryGuarantee": "at-least-once", "kafka.acks": "1"}, "but kafka.acks is 1"),
        ({"deliveryGuarantee": "none", "kafka.acks": "all"}, "deliveryGuarantee is none, but kafka.acks is -1"),
        ({"deliveryGuarantee": "none", "kafka.enable.idempotence": "true"}, "kafka.acks is 0, not all"),
        ({"topic": "a b"}, "topic is 'a b' ('a b' is no topic name"),
        ({"topic": ""}, "topic is ''"),
        ({"kafka.transactional.id": "x"}, "use deliveryGuarantee=exactly-once and transactionalIdPrefix"),
        ({"valueUnionNames": "types"}, "is an option of streaming reads and batch reads, not of writes"),
    ],
)
def test_unsupported_sink_options_are_refused(options: dict[str, str], message: str) -> None:
    assert message in sink_refusal(options)


def test_docs_page_of_options_is_current() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == markdown.markdown() + "\n", "run: python -m spark_kafka_source.options > docs/options.md"


def test_docs_page_has_every_option_and_property() -> None:
    names = [*(row.name for row in OPTIONS), *(row.name for row in PROPERTIES)]
    assert set(names) - set(listed_names(markdown.markdown())) == set()


def test_module_prints_the_docs_page() -> None:
    command = [sys.executable, "-m", "spark_kafka_source.options"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout == markdown.markdown() + "\n"


def test_option_parsing_does_not_import_spark() -> None:
    code = (
        "import sys, spark_kafka_source.options.parsing; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


# Set by Kafka's properties and by the kind of query.
NOT_OPTIONS = {"client", "consumer", "producer", "streaming", "auto_offset_reset"}
# Set by `schema.registry.*`, and by the registry.
NOT_OPTIONS |= {"registry", "reader_version", "schemas", "type_schema", "auto_register_schemas", "normalize_schemas"}
# The parsed `filter`.
NOT_OPTIONS |= {"condition", "condition_schemas"}


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_option_fields_have_entries(options: type) -> None:
    fields = {field.name for field in dataclasses.fields(options)}
    assert fields - NOT_OPTIONS == {row.field for row in entries(options)}


def test_applied_entries_have_fields() -> None:
    applying = [row for row in OPTIONS if row.effect is Effect.APPLIES]
    assert applying == [*entries(SourceOptions), *entries(SinkOptions)]
    for use in (READ, ~READ):
        names = [row.name.lower() for row in OPTIONS if row.use & use]
        assert len(names) == len(set(names))


@dataclass(frozen=True, kw_only=True)
class More(SourceOptions):
    colour: str = _read("theColour", one_of("red", "blue"), "how it looks", default="red")


def test_new_option_needs_only_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: tuple[Option, ...] = entries(More, SinkOptions)
    everywhere: tuple[ModuleType, ...] = (parsing, markdown)
    for module in everywhere:
        monkeypatch.setattr(module, "OPTIONS", rows)
    monkeypatch.setattr(parsing, "SourceOptions", More)

    def colour(**arguments: str) -> str:
        parsed = parsing.parse_source_options({**ORDERS, **arguments}, streaming=True)
        assert isinstance(parsed, More)
        return parsed.colour

    assert (colour(), colour(THECOLOUR="Blue")) == ("red", "blue")
    with pytest.raises(ConfigurationError, match="theColour is 'green'; allowed: red, blue"):
        colour(theColour="green")
    with pytest.raises(ConfigurationError, match="did you mean theColour"):
        colour(theColor="red")
    assert "| `theColour` | how it looks | red, blue | red | streaming, batch |" in markdown.markdown()
