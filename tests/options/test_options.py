"""Source options: Spark's dict is parsed into one frozen object, or the error names the user's option."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigurationError
from protocol.properties import PROPERTIES
from protocol.settings.secret import Secret
from spark_kafka_source.options.markdown import markdown
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.options.table import OPTIONS
from tests.options.parsed import BROKERS, ORDERS, refusal, sink, sink_refusal, stream
from tests.support.documents import block, listed_names

ROOT = Path(__file__).parents[2]


# -- the source -----------------------------------------------------------------------------------


def test_minimal_options_have_the_defaults_of_sparks_connector() -> None:
    options = stream()
    assert options.client.bootstrap_servers == (("localhost", 9092),)
    assert (options.subscribe, options.subscribe_pattern, options.assign) == (("orders",), None, None)
    assert options.max_offsets_per_trigger is None
    assert options.min_partitions is None
    assert options.fail_on_data_loss is True
    assert options.row_columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert (options.min_offsets_per_trigger, options.max_trigger_delay_ms) == (None, 900_000)
    assert (options.max_records_per_partition, options.max_input_partitions) == (None, None)
    assert (options.starting_offsets_by_timestamp_strategy, options.fail_on_topic_recreated) == ("error", True)
    assert options.fetch_offset_num_retries == 3
    assert options.fetch_offset_retry_interval_ms == 1_000
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


def test_options_pickle_and_are_compared_by_value() -> None:
    settings = {**BROKERS, "subscribePattern": "o.*", "startingOffsets": '{"orders": {"0": 1}}'}
    options = parse_source_options(settings, streaming=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(sink(topic="t"))) == sink(topic="t")


def test_driver_timeout_includes_the_retries() -> None:
    options = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "7", "kafka.default.api.timeout.ms": "100"}
    assert parse_source_options({**ORDERS, **options}, streaming=True).offsets_timeout_ms == 100 + 2 * 107


def test_subscribe_is_a_comma_separated_list() -> None:
    assert stream(subscribe=" b, a,,b ").subscribe == ("b", "a")


def test_subscribe_pattern_is_searched_within_topic_names() -> None:
    pattern = parse_source_options({**BROKERS, "subscribePattern": r"ord[a-z]+s"}, streaming=True).subscribe_pattern
    assert pattern is not None
    assert pattern.search("my-orders-eu")
    assert not pattern.search("Orders")


def test_assigned_partitions_are_sorted() -> None:
    options = parse_source_options({**BROKERS, "assign": '{"b": [2, 0], "a": [1]}'}, streaming=True)
    assert options.assign == {"a": (1,), "b": (0, 2)}
    assert list(options.assign) == ["a", "b"]


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


# -- limits ---------------------------------------------------------------------------------------


def test_byte_limit_is_a_size() -> None:
    assert stream(maxBytesPerTrigger="64m").max_bytes_per_trigger == 64 << 20
    assert stream().max_bytes_per_trigger is None


def test_max_trigger_delay_is_a_duration(caplog: pytest.LogCaptureFixture) -> None:
    assert stream(minOffsetsPerTrigger="9", maxTriggerDelay="2h").max_trigger_delay_ms == 7_200_000
    assert "maxTriggerDelay is '1 minute'" in refusal({"subscribe": "orders", "maxTriggerDelay": "1 minute"})
    with caplog.at_level(logging.WARNING):
        stream(maxTriggerDelay="2h")
    assert "maxTriggerDelay has no effect without minOffsetsPerTrigger" in caplog.text


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
    assert "allowed: fail, earliest" in refusal({"subscribe": "orders", "onTopicRecreated": "skip"})


def test_secrets_are_not_shown_or_kept() -> None:
    jaas = 'PlainLoginModule required username="me" password="hunter2";'
    options = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    for streaming in (True, False):
        message = refusal({"subscribe": "orders", **options}, streaming=streaming)
        assert (
            "kafka.sasl.jaas.config is [hidden], whose login module does not support kafka.sasl.mechanism PLAIN"
            in message
        )
        assert "hunter2" not in message
    assert "hunter2" not in sink_refusal(options)


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
        assert parsed.registry is not None
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


# -- the page -------------------------------------------------------------------------------------


def test_docs_page_of_options_is_current() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == markdown() + "\n", "run: python -m spark_kafka_source.options > docs/options.md"


def test_docs_page_has_every_option_and_property() -> None:
    names = [*(row.name for row in OPTIONS), *(row.name for row in PROPERTIES)]
    assert set(names) - set(listed_names(markdown())) == set()


def test_module_prints_the_docs_page() -> None:
    command = [sys.executable, "-m", "spark_kafka_source.options"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout == markdown() + "\n"


def test_option_parsing_does_not_import_spark() -> None:
    code = (
        "import sys, spark_kafka_source.options.parsing; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
