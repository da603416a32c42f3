"""Spark's option dict becomes one frozen value, or an error in the words of the user."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import once
from protocol.errors import ConfigurationError
from protocol.properties import PROPERTIES
from protocol.property import Effect
from protocol.secret import Secret
from spark_kafka_source.options.markdown import markdown
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options, row_columns
from spark_kafka_source.options.start_positions import AtTime
from spark_kafka_source.options.table import OPTIONS, SinkOptions, SourceOptions
from tests.documents import block

ROOT = Path(__file__).parents[2]
BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
ORDERS = {**BROKERS, "subscribe": "orders"}


@pytest.fixture(autouse=True)
def _warnings_of_one_test_only() -> Iterator[None]:
    once.log_once.cache_clear()
    yield
    once.log_once.cache_clear()


def stream(**more: str) -> SourceOptions:
    return parse_source_options(with_dots(ORDERS, more), streaming=True)


def batch(**more: str) -> SourceOptions:
    return parse_source_options(with_dots(ORDERS, more), streaming=False)


def sink(**more: str) -> SinkOptions:
    return parse_sink_options(with_dots(BROKERS, more))


def with_dots(given: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """`kafka_group_id="g"` stands for the option kafka.group.id."""
    return {**given, **{key.replace("_", "."): value for key, value in more.items()}}


def refusal(given: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse_source_options({**BROKERS, **given}, streaming=streaming)
    return str(raised.value)


def sink_refusal(given: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse_sink_options({**BROKERS, **given})
    return str(raised.value)


# -- the source -----------------------------------------------------------------------------------


def test_the_least_options_give_the_defaults_of_spark_s_connector() -> None:
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
    given = {"KAFKA.Bootstrap.Servers": "a:1", "SUBSCRIBE": "t", "MaxOffsetsPerTRIGGER": "5", "Kafka.Group.ID": "Etl"}
    options = parse_source_options(given, streaming=True)
    assert (options.subscribe, options.max_offsets_per_trigger, options.consumer.group_id) == (("t",), 5, "Etl")


def test_kafka_s_properties_reach_client_and_consumer() -> None:
    options = stream(kafka_client_id="me", kafka_isolation_level="read_committed")
    assert options.client.client_id == "me"
    assert options.consumer.isolation_level == "read_committed"


def test_options_pickle_and_are_compared_by_value() -> None:
    given = {**BROKERS, "subscribePattern": "o.*", "startingOffsets": '{"orders": {"0": 1}}'}
    options = parse_source_options(given, streaming=True)
    assert pickle.loads(pickle.dumps(options)) == options
    assert pickle.loads(pickle.dumps(sink(topic="t"))) == sink(topic="t")


def test_the_driver_s_patience_counts_the_retries() -> None:
    given = {"fetchOffset.numRetries": "2", "fetchOffset.retryIntervalMs": "7", "kafka.default.api.timeout.ms": "100"}
    assert parse_source_options({**ORDERS, **given}, streaming=True).offsets_timeout_ms == 100 + 2 * 107


def test_topics_are_a_list_with_commas() -> None:
    assert stream(subscribe=" b, a,,b ").subscribe == ("b", "a")


def test_a_pattern_is_searched_for_in_names() -> None:
    pattern = parse_source_options({**BROKERS, "subscribePattern": r"ord[a-z]+s"}, streaming=True).subscribe_pattern
    assert pattern is not None
    assert pattern.search("my-orders-eu")
    assert not pattern.search("Orders")


def test_assigned_partitions_come_sorted() -> None:
    options = parse_source_options({**BROKERS, "assign": '{"b": [2, 0], "a": [1]}'}, streaming=True)
    assert options.assign == {"a": (1,), "b": (0, 2)}
    assert list(options.assign) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "None of subscribe, subscribePattern and assign is given"),
        (
            {"subscribe": "a", "assign": '{"a": [0]}'},
            "subscribe and assign of subscribe, subscribePattern and assign are",
        ),
        ({"subscribe": " , "}, "subscribe is ' , ' (names no topic)"),
        ({"subscribe": "a b"}, "'a b' is no topic name"),
        ({"subscribePattern": ""}, "subscribePattern is '' (the pattern is empty)"),
        (
            {"subscribePattern": "a["},
            "subscribePattern is 'a[' (from character 2 on, '[', Java and Python may not read the same); allowed: a ",
        ),
        ({"assign": "orders"}, "assign is 'orders' (Expecting value"),
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
def test_what_to_read_is_checked(given: dict[str, str], message: str) -> None:
    assert message in refusal(given)


# -- where a query begins and ends ----------------------------------------------------------------


def test_a_stream_without_a_group_begins_at_latest_and_commits_nothing() -> None:
    assert stream().start == "latest"
    assert stream().commits is False


def test_a_stream_with_a_group_begins_where_the_group_is_and_commits() -> None:
    options = stream(kafka_group_id="etl")
    assert options.start == "group"
    assert options.consumer.auto_offset_reset == "latest"
    assert options.commits is True


def test_a_batch_begins_at_earliest_and_ends_at_latest_with_a_group_too(caplog: pytest.LogCaptureFixture) -> None:
    assert (batch().start, batch().end) == ("earliest", "latest")
    with caplog.at_level(logging.WARNING):
        options = batch(kafka_group_id="etl")
    assert options.start == "earliest"
    assert options.commits is False
    assert "kafka.group.id has no effect" in caplog.text


def test_a_batch_can_begin_where_the_group_is_and_falls_back_to_earliest() -> None:
    options = batch(kafka_group_id="etl", startingOffsets="group")
    assert options.start == "group"
    assert options.consumer.auto_offset_reset == "earliest"
    none = batch(kafka_group_id="etl", startingOffsets="group", kafka_auto_offset_reset="none")
    assert none.consumer.auto_offset_reset == "none"


@pytest.mark.parametrize("word", ["earliest", "Latest", " GROUP "])
def test_words_are_taken_in_any_case(word: str) -> None:
    assert stream(kafka_group_id="etl", startingOffsets=word).start == word.strip().lower()


def test_json_gives_each_partition_its_place() -> None:
    options = stream(startingOffsets='{"orders": {"10": -1, "9": -2, "0": 23}}')
    assert options.start == {"orders": {0: 23, 9: -2, 10: -1}}
    assert batch(endingOffsets='{"orders": {"0": -1}}').end == {"orders": {0: -1}}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("oldest", "Expecting value"),
        ('{"orders"', "Expecting ':'"),
        ("{}", "names no topic"),
        ('{"orders": {}}', "orders names no partition"),
        ('{"orders": 5}', "orders has no JSON object of partitions"),
        ('{"orders": [0]}', "orders has no JSON object of partitions"),
        ('{"orders": {"0": -3}}', "orders-0 is -3, not a whole number from -2"),
        ('{"orders": {"0": "1"}}', "orders-0 is '1'"),
        ('{"orders": {"0": 1.5}}', "orders-0 is 1.5"),
        ('{"orders": {"0": null}}', "orders-0 is None"),
        ('{"orders": {"a": 1}}', "orders has the partition 'a'"),
        ('{"orders": {"0": 1, "0": 2}}', "'0' is there twice"),
        ('{"orders": {"0": 1}, "other": {"0": 1}}', "other is there, which subscribe does not have"),
        ('{"other": {"0": 1}}', "orders is missing, which subscribe has"),
    ],
)
@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_json_that_is_wrong_is_refused_by_the_name_of_the_option(option: str, value: str, message: str) -> None:
    found = refusal({"subscribe": "orders", option: value}, streaming=False)
    assert found.removeprefix("[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED] ").startswith(f"{option} is ")
    assert message in found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets is 'latest', which does not fit: a batch cannot start at the"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "orders-0 is -1: a batch cannot start at the latest offset"),
        ({"endingOffsets": "earliest"}, "endingOffsets is 'earliest'"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "orders-0 is -2: nothing can end at the earliest offset"),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "orders-0 ends at 4, before its start 5",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 9, "1": 9}}'},
            "orders-1 is there, which startingOffsets does not have",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5, "1": 5}}', "endingOffsets": '{"orders": {"0": 9}}'},
            "orders-1 is missing, which startingOffsets has",
        ),
    ],
)
def test_a_batch_s_ends_must_make_sense(given: dict[str, str], message: str) -> None:
    assert message in refusal({"subscribe": "orders", **given}, streaming=False)


def test_ends_that_are_not_known_yet_are_not_compared() -> None:
    options = batch(startingOffsets='{"orders": {"0": 5}}', endingOffsets='{"orders": {"0": -1}}')
    assert options.end == {"orders": {0: -1}}


def test_offsets_must_fit_the_assigned_partitions_both_ways() -> None:
    assigned = {"assign": '{"orders": [0, 1]}'}
    missing = refusal({**assigned, "startingOffsets": '{"orders": {"0": 1}}'})
    assert "orders-1 is missing, which assign has; -1 means latest, -2 earliest" in missing
    strange = refusal({**assigned, "startingOffsets": '{"orders": {"0": 1, "1": 1, "2": 1}}'})
    assert "orders-2 is there, which assign does not have" in strange


def test_offsets_must_fit_the_pattern() -> None:
    found = refusal({"subscribePattern": "^o", "startingOffsets": '{"orders": {"0": 1}, "bills": {"0": 1}}'})
    assert "bills does not match subscribePattern" in found


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({"startingOffsets": "group"}, True, "startingOffsets is group, but there is no group; set kafka.group.id."),
        ({"commitOffsets": "true"}, True, "commitOffsets is true, but there is no group"),
        ({"commitOffsets": "true", "kafka.group.id": "g"}, False, "a batch read cannot commit"),
        ({"kafka.group.id": ""}, True, "kafka.group.id is '' (empty)"),
        ({"kafka.auto.offset.reset": "earliest"}, True, "this query does not start from a group"),
        (
            {"kafka.auto.offset.reset": "earliest", "kafka.group.id": "g", "startingOffsets": "latest"},
            True,
            "this query does not start from a group",
        ),
        (
            {"kafka.auto.offset.reset": "latest", "kafka.group.id": "g", "startingOffsets": "group"},
            False,
            "a batch cannot start at the latest offset",
        ),
        ({"kafka.auto.offset.reset": "first", "kafka.group.id": "g"}, True, "allowed: earliest, latest, none"),
    ],
)
def test_the_group_must_make_sense(given: dict[str, str], streaming: bool, message: str) -> None:
    assert message in refusal({"subscribe": "orders", **given}, streaming=streaming)


def test_commits_can_be_switched_off() -> None:
    assert stream(kafka_group_id="etl", commitOffsets="false").commits is False
    assert batch(commitOffsets="false").commits is False


# -- places in time -------------------------------------------------------------------------------


def test_times_are_milliseconds_or_iso_text_for_all_or_each_partition() -> None:
    assert stream(startingTimestamp="5").start == AtTime(5, "startingTimestamp")
    both = batch(
        startingOffsetsByTimestamp='{"orders": {"1": "1970-01-01T00:00:01Z", "0": 7}}',
        endingTimestamp="1970-01-01T01:00:01+01:00",
    )
    assert both.start == AtTime({"orders": {0: 7, 1: 1_000}}, "startingOffsetsByTimestamp")
    assert both.end == AtTime(1_000, "endingTimestamp")
    ends = batch(endingOffsetsByTimestamp='{"orders": {"0": 7}}').end
    assert ends == AtTime({"orders": {0: 7}}, "endingOffsetsByTimestamp")


def test_one_time_comes_before_times_and_those_before_offsets(caplog: pytest.LogCaptureFixture) -> None:
    each = '{"orders": {"0": 7}}'
    with caplog.at_level(logging.WARNING):
        options = stream(startingOffsets="earliest", startingOffsetsByTimestamp=each, startingTimestamp="5")
    assert options.start == AtTime(5, "startingTimestamp")
    assert "startingOffsets has no effect: startingTimestamp is given, which comes before it" in caplog.text
    assert "startingOffsetsByTimestamp has no effect: startingTimestamp" in caplog.text
    options = batch(startingOffsets=each, startingOffsetsByTimestamp=each, endingOffsets=each, endingTimestamp="9")
    assert options.start == AtTime({"orders": {0: 7}}, "startingOffsetsByTimestamp")
    assert options.end == AtTime(9, "endingTimestamp")


def test_a_time_comes_before_the_group_too() -> None:
    options = stream(kafka_group_id="etl", startingTimestamp="5")
    assert options.start == AtTime(5, "startingTimestamp")
    assert options.commits is True
    found = refusal(
        {"subscribe": "o", "startingTimestamp": "5", "kafka.group.id": "g", "kafka.auto.offset.reset": "none"}
    )
    assert "does not start from a group" in found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp is '2026-01-01T00:00:00' (a time without a"),
        (
            {"startingTimestamp": "yesterday"},
            "allowed: milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z",
        ),
        ({"startingTimestamp": "-1"}, "startingTimestamp is '-1' (Kafka's timestamps begin with 1970)"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -2}}'}, "orders-0 is -2, not a whole number from 0"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": "noon"}}'}, "orders-0 is 'noon': Invalid isoformat"),
        ({"startingOffsetsByTimestamp": "5"}, "not a JSON object of topics"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "allowed: error, latest"),
        (
            {"startingOffsetsByTimestamp": '{"bills": {"0": 1}}'},
            "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] startingOffsetsByTimestamp is "
            '\'{"bills": {"0": 1}}\', which does not fit: orders is missing, which subscribe has.',
        ),
        (
            {"endingOffsetsByTimestamp": '{"bills": {"0": 1}}'},
            "[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED] endingOffsetsByTimestamp is ",
        ),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingTimestamp is '4', which does not fit: the end 4 "
            "is before the start 5.",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 4}}',
            },
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingOffsetsByTimestamp is ",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
                "endingOffsetsByTimestamp": '{"orders": {"0": 5, "1": 5}}',
            },
            "[MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET] endingOffsetsByTimestamp is ",
        ),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "[UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET] endingOffsets is ",
        ),
    ],
)
def test_times_are_checked(given: dict[str, str], message: str) -> None:
    assert message in refusal({"subscribe": "orders", **given}, streaming=False)


def test_a_time_and_offsets_are_not_compared() -> None:
    options = batch(startingTimestamp="5", endingOffsets='{"orders": {"0": 3}}')
    assert options.end == {"orders": {0: 3}}


# -- options that are wrong, forbidden, unknown or elsewhere --------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("maxOffsetsPerTrigger", "many", "1 to 9223372036854775807"),
        ("maxOffsetsPerTrigger", "0", "1 to 9223372036854775807"),
        ("maxBytesPerTrigger", "0", "a number with b, k, m, g or t"),
        ("maxBytesPerTrigger", "1 GB", "a number with b, k, m, g or t"),
        ("minPartitions", "-1", "1 to 2147483647"),
        ("includeHeaders", "1", "true, false"),
        ("failOnDataLoss", "no", "true, false"),
        ("commitOffsets", "", "true, false"),
        ("fetchOffset.numRetries", "-1", "0 to 2147483647"),
        ("kafkaConsumer.pollTimeoutMs", "2m", "1 to 2147483647"),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_what_is_allowed(name: str, value: str, allowed: str) -> None:
    message = refusal({"subscribe": "orders", name.upper(): value})
    assert message.startswith(f"{name} is {value!r}")
    assert f"allowed: {allowed}" in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("starting_offsets", "did you mean startingOffsets?"),
        ("subscibe", "did you mean subscribe?"),
        ("subscribe.pattern", "did you mean subscribePattern?"),
        ("failOnDataLos", "did you mean failOnDataLoss?"),
        ("maxOffsetperTrigger", "did you mean maxOffsetsPerTrigger?"),
        ("maxOffsetsPerTriger", "did you mean maxOffsetsPerTrigger?"),
        ("maxOffestsPerTirgger", "did you mean maxOffsetsPerTrigger?"),
        ("includeHeader", "did you mean includeHeaders?"),
        ("kafkaConsumer.pollTimeout", "did you mean kafkaConsumer.pollTimeoutMs?"),
        ("kafk.group.id", "did you mean kafka.group.id?"),
        ("kafka_group_id", "did you mean kafka.group.id?"),
        ("group.id", "Kafka's properties take a prefix: kafka.group.id"),
        ("groupId", "Kafka's properties take a prefix: kafka.group.id"),
        ("bootstrap_servers", "Kafka's properties take a prefix: kafka.bootstrap.servers"),
        ("session.timeout.ms", "Kafka's properties take a prefix: kafka.session.timeout.ms"),
        ("isolation.level", "Kafka's properties take a prefix: kafka.isolation.level"),
        ("security.protocol", "Kafka's properties take a prefix: kafka.security.protocol"),
        ("sasl.jaas.config", "Kafka's properties take a prefix: kafka.sasl.jaas.config"),
        (
            "auto.offset.reset",
            "Kafka's properties take a prefix: kafka.auto.offset.reset. Without a group, startingOffsets says where to",
        ),
    ],
)
def test_a_slip_and_a_missing_prefix_are_errors_with_what_was_meant(name: str, hint: str) -> None:
    message = refusal({"subscribe": "orders", name: "secret"})
    assert f"{name} is not an option of this source and sink; {hint}" in message
    assert "secret" not in message


def test_a_slip_is_one_where_the_option_applies(caplog: pytest.LogCaptureFixture) -> None:
    """What would be a warning when it is spelled right is no error when it is not."""
    assert "did you mean topic?" in sink_refusal({"topics": "orders"})
    assert "kafka.acks" in sink_refusal({"acks": "1"})
    with caplog.at_level(logging.WARNING):
        parse_source_options({**ORDERS, "topics": "a", "acks": "1", "linger.ms": "5"}, streaming=True)
        parse_source_options({**ORDERS, "maxOffsetsPerTriger": "5"}, streaming=False)
        parse_sink_options({**BROKERS, "startingOffset": "latest", "group.id": "g"})
    assert len(caplog.messages) == 6


def test_databricks_way_to_sign_in_is_not_left_out_in_silence() -> None:
    found = refusal({"subscribe": "orders", "databricks.serviceCredential": "mine"})
    assert "databricks.serviceCredential is not supported: Databricks gives such credentials to its own" in found
    assert "kafka.sasl.oauthbearer.token.provider" in found


@pytest.mark.parametrize("use", ["stream", "batch", "sink"])
def test_options_of_other_formats_are_one_warning_each(use: str, caplog: pytest.LogCaptureFixture) -> None:
    parse = {
        "stream": lambda more: parse_source_options({**ORDERS, **more}, streaming=True),
        "batch": lambda more: parse_source_options({**ORDERS, **more}, streaming=False),
        "sink": lambda more: parse_sink_options({**BROKERS, **more}),
    }[use]
    with caplog.at_level(logging.WARNING):
        for name in STRAYS.split():
            caplog.clear()
            assert parse({name: "secret"}) == parse({name: "secret"}) == parse({})
            assert len(caplog.messages) == 1, (name, caplog.messages)
            assert name in caplog.text
            assert "has no effect" in caplog.text
            assert "secret" not in caplog.text


# Of Spark's other sources and sinks, of other clients of Kafka, and what public notebooks give to the connector.
STRAYS = """
    mode header headers inferSchema multiLine multiline sep delimiter quote escape encoding charset nullValue dateFormat
    timestampFormat samplingRatio columnNameOfCorruptRecord mergeSchema pathGlobFilter recursiveFileLookup compression
    maxFilesPerTrigger maxFileAge latestFirst fileNameOnly cleanSource modifiedAfter ignoreChanges startingVersion
    truncate numRows rowsPerSecond numPartitions rampUpTime host port includeTimestamp url dbtable driver user password
    batchsize fetchsize isolationLevel partitionColumn lowerBound upperBound queryTimeout schema avroSchema
    schema.registry.url specific.avro.reader zookeeper.connect kafka_topic stopGracefullyOnShutdown maxRatePerPartition
    maxPartitions useDeprecatedOffsetFetching spark.default.parallelism spark.streaming.kafka.maxRatePerPartition
    spark.sql.shuffle.partitions offsets outputMode trigger key.deserializer value.deserializer key.serializer
    value.serializer enable.auto.commit max.poll.records auto.commit.interval.ms metric.reporters
    kafka.fetch.message.max.bytes kafka.poll.timeout.ms kafka.queue.buffering.max.messages kafka.zookeeper.connect
    kafka.timeout.ms kafka.metadata.fetch.timeout.ms kafka.max.poll.interval kafka.isolation.levle overwriteSchema
    triggerInterval window hi format name type key value timeZone
"""


def test_every_source_option_of_spark_s_connector_is_known() -> None:
    theirs = (
        "assign subscribe subscribePattern startingTimestamp startingOffsetsByTimestamp startingOffsets "
        "startingOffsetsByTimestampStrategy endingTimestamp endingOffsetsByTimestamp endingOffsets failOnDataLoss "
        "kafkaConsumer.pollTimeoutMs fetchOffset.numRetries fetchOffset.retryIntervalMs maxOffsetsPerTrigger "
        "minOffsetsPerTrigger maxTriggerDelay minPartitions maxRecordsPerPartition groupIdPrefix includeHeaders"
    )
    assert set(theirs.split()) - {row.name for row in OPTIONS if row.effect is not Effect.NOT_YET} == set()


def test_a_prefix_of_group_ids_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert stream(groupIdPrefix="me") == stream(groupIdPrefix="you")
    assert [message for message in caplog.messages if "groupIdPrefix has no effect" in message] == [caplog.messages[0]]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("enable.auto.commit", "commitOffsets"),
        ("key.deserializer", "key.cast"),
        ("value.deserializer", "from_json"),
        ("interceptor.classes", "in the query"),
    ],
)
def test_what_spark_s_connector_forbids_is_forbidden_and_says_what_to_use(name: str, instead: str) -> None:
    message = refusal({"subscribe": "orders", f"kafka.{name}": "false"})
    assert f"kafka.{name} is forbidden" in message
    assert instead in message


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer", "interceptor.classes"])
def test_the_sink_forbids_serializers_and_interceptors(name: str) -> None:
    assert f"kafka.{name} is forbidden" in sink_refusal({f"kafka.{name}": "x"})


def test_options_of_another_kind_of_query_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert stream(topic="orders", deliveryGuarantee="none") == stream()
        assert sink(subscribe="orders", startingOffsets="latest", failOnDataLoss="false") == sink()
    names = ("topic", "deliveryGuarantee", "subscribe", "startingOffsets", "failOnDataLoss")
    assert [message.split(": ")[0] for message in caplog.messages] == [f"{name} has no effect" for name in names]
    assert (
        "topic has no effect: it is an option of writes, this is one of streaming reads. A source takes" in caplog.text
    )
    assert "A sink takes topic" in caplog.text


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end_so_that_one_is_refused(name: str) -> None:
    found = refusal({"subscribe": "orders", name: "latest"})
    assert f"{name} is an option of batch reads, not of streaming reads; leave it out." in found


def test_what_is_forbidden_on_the_other_side_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert stream(kafka_key_serializer="x") == stream()
        assert sink(kafka_key_deserializer="x", kafka_enable_auto_commit="false") == sink()
    assert len(caplog.messages) == 3


def test_what_only_streams_have_is_a_warning_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = batch(
            maxOffsetsPerTrigger="5",
            maxBytesPerTrigger="5k",
            minOffsetsPerTrigger="9",
            maxTriggerDelay="1m",
            onTopicRecreated="earliest",
        )
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_bytes_per_trigger is None
    for name in (
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "onTopicRecreated",
    ):
        assert f"{name} has no effect" in caplog.text


def test_what_spark_adds_by_itself_is_let_through(caplog: pytest.LogCaptureFixture) -> None:
    added = {"checkpointlocation": "/tmp/c", "queryname": "q", "owner": "me", "provider": "pykafka-group"}
    repeated = {f"option.{key}": value for key, value in ORDERS.items()}
    with caplog.at_level(logging.WARNING):
        assert parse_source_options({**ORDERS, **added, **repeated}, streaming=True) == stream()
        assert parse_sink_options({**BROKERS, **added}) == sink()
    assert not caplog.records


def test_a_path_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_source_options({**ORDERS, "path": "/x"}, streaming=True)
        parse_sink_options({**BROKERS, "path": "/x"})
    assert ["subscribe says" in caplog.messages[0], "topic says" in caplog.messages[1]] == [True, True]


def test_columns_are_asked_for_before_it_is_known_what_the_query_does() -> None:
    usual = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert row_columns({"subscribe": "orders"}) == usual
    assert row_columns({"INCLUDEHEADERS": " True "}) == (*usual, "headers")
    assert row_columns({"Columns": "value, TIMESTAMPTYPE,headers"}) == ("value", "timestampType", "headers")
    assert stream(columns="offset,value").row_columns == ("offset", "value")
    with pytest.raises(ConfigurationError, match="includeHeaders is 'ture'"):
        row_columns({"includeheaders": "ture"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": "value,colour"}, "columns is 'value,colour' ('colour' is no column)"),
        ({"columns": ""}, "columns is '' ('' is no column)"),
        ({"columns": "value,,key"}, "'' is no column"),
        ({"columns": "key,Key"}, "Key is there twice"),
        ({"columns": "key", "includeHeaders": "true"}, "includeHeaders is true, but columns does not name headers"),
    ],
)
def test_columns_are_checked(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        row_columns(given)
    assert message in str(raised.value)
    assert message in refusal({"subscribe": "orders", **given})


# -- limits ---------------------------------------------------------------------------------------


def test_a_limit_of_bytes_is_a_size() -> None:
    assert stream(maxBytesPerTrigger="64m").max_bytes_per_trigger == 64 << 20
    assert stream().max_bytes_per_trigger is None


def test_a_trigger_s_delay_is_a_duration(caplog: pytest.LogCaptureFixture) -> None:
    assert stream(minOffsetsPerTrigger="9", maxTriggerDelay="2h").max_trigger_delay_ms == 7_200_000
    assert "maxTriggerDelay is '1 minute'" in refusal({"subscribe": "orders", "maxTriggerDelay": "1 minute"})
    with caplog.at_level(logging.WARNING):
        stream(maxTriggerDelay="2h")
    assert "maxTriggerDelay has no effect without minOffsetsPerTrigger" in caplog.text


@pytest.mark.parametrize(
    ("low", "high"), [("minOffsetsPerTrigger", "maxOffsetsPerTrigger"), ("minPartitions", "maxInputPartitions")]
)
def test_a_least_above_a_most_is_refused(low: str, high: str) -> None:
    assert f"{low} is 6, more than {high} (5)" in refusal({"subscribe": "orders", low: "6", high: "5"})
    assert stream(**{low: "5", high: "5"})


def test_a_topic_recreated_is_an_error_unless_data_may_be_lost_or_it_is_said() -> None:
    assert stream(failOnDataLoss="false").fail_on_topic_recreated is False
    assert stream(failOnDataLoss="false", onTopicRecreated="fail").fail_on_topic_recreated is True
    assert stream(onTopicRecreated="earliest").fail_on_topic_recreated is False
    assert "allowed: fail, earliest" in refusal({"subscribe": "orders", "onTopicRecreated": "skip"})


def test_no_secret_is_shown_or_kept() -> None:
    jaas = 'PlainLoginModule required username="me" password="hunter2";'
    given = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas}
    for streaming in (True, False):
        message = refusal({"subscribe": "orders", **given}, streaming=streaming)
        assert "kafka.sasl.jaas.config is [hidden], whose login module is not one for PLAIN" in message
        assert "hunter2" not in message
    assert "hunter2" not in sink_refusal(given)


def test_the_options_for_clusters_of_vendors_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    names: dict[str, dict[str, str]] = {}
    exec(block("security.md", "confluent_cloud").text, {}, names)
    assert len(names) == 8
    for options in names.values():
        assert parse_source_options({**options, "subscribe": "orders"}, streaming=True)
        assert parse_sink_options({**options, "topic": "orders"})
    assert caplog.messages == []


def test_a_key_that_spark_would_show_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    key = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.certificate.chain": "PEM"}
    stream(**key, **{"kafka.ssl.keystore.key": "${dir:/run/secrets:key}"})
    assert caplog.messages == []
    stream(**key, **{"kafka.ssl.keystore.key": "hunter2"})
    assert "kafka.ssl.keystore.key is shown by Spark in plans and its UI" in caplog.text
    assert "hunter2" not in caplog.text


def test_references_are_followed_on_the_driver_but_for_those_of_tls_and_sasl(monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- the sink -------------------------------------------------------------------------------------


def test_the_sink_confirms_every_write_by_default() -> None:
    options = sink(topic=" orders ")
    assert options.topic == "orders"
    assert options.delivery_guarantee == "at-least-once"
    assert (options.producer.acks, options.producer.enable_idempotence) == (-1, True)


def test_kafka_s_properties_reach_the_producer() -> None:
    options = sink(kafka_compression_type="zstd", kafka_linger_ms="5")
    assert (options.producer.compression_type, options.producer.linger_ms) == ("zstd", 5)


def test_no_guarantee_means_that_nobody_confirms(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        options = sink(deliveryGuarantee="none")
    assert (options.producer.acks, options.producer.enable_idempotence) == (0, False)
    assert not caplog.records


def test_acks_alone_says_what_is_guaranteed(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(kafka_acks="0").delivery_guarantee == "none"
    with caplog.at_level(logging.WARNING):
        assert sink(kafka_acks="1").producer.acks == 1
    assert "records that the leader alone has are lost when it fails" in caplog.text


EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p"}


def test_a_transaction_may_last_as_long_as_brokers_allow(caplog: pytest.LogCaptureFixture) -> None:
    assert sink(**EXACTLY_ONCE).producer.transaction_timeout_ms == 900_000
    assert sink(**EXACTLY_ONCE, kafka_transaction_timeout_ms="5000").producer.transaction_timeout_ms == 5_000
    with caplog.at_level(logging.WARNING):
        sink(transactionalIdPrefix="p", kafka_transaction_timeout_ms="5000")
    for name in ("transactionalIdPrefix", "kafka.transaction.timeout.ms"):
        assert f"{name} has no effect without deliveryGuarantee exactly-once" in caplog.text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "there is no transactionalIdPrefix; set one"),
        ({**EXACTLY_ONCE, "kafka.acks": "1"}, "deliveryGuarantee is exactly-once, but kafka.acks is 1"),
        ({**EXACTLY_ONCE, "kafka.enable.idempotence": "false"}, "exactly-once, but idempotence is off"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a b"}, "transactionalIdPrefix is 'a b'"),
        ({**EXACTLY_ONCE, "transactionalIdPrefix": "a" * 201}, "at most 200"),
        ({"deliveryGuarantee": "some"}, "allowed: at-least-once, exactly-once, none"),
        ({"deliveryGuarantee": "at-least-once", "kafka.acks": "1"}, "but kafka.acks is 1"),
        ({"deliveryGuarantee": "none", "kafka.acks": "all"}, "deliveryGuarantee is none, but kafka.acks is -1"),
        ({"deliveryGuarantee": "none", "kafka.enable.idempotence": "true"}, "kafka.acks is 0, not all"),
        ({"topic": "a b"}, "topic is 'a b' ('a b' is no topic name"),
        ({"topic": ""}, "topic is ''"),
        ({"kafka.transactional.id": "x"}, "use deliveryGuarantee=exactly-once and transactionalIdPrefix"),
    ],
)
def test_what_the_sink_cannot_do_is_refused(given: dict[str, str], message: str) -> None:
    assert message in sink_refusal(given)


# -- the page -------------------------------------------------------------------------------------


def test_the_page_of_options_is_current() -> None:
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert page == markdown() + "\n", "run: python -m spark_kafka_source.options > docs/options.md"


def test_the_page_names_every_option_and_property() -> None:
    assert [row.name for row in (*OPTIONS, *PROPERTIES) if f"| `{row.name}` |" not in markdown()] == []


def test_the_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "spark_kafka_source.options"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert printed.stdout == markdown() + "\n"


def test_reading_options_does_not_import_spark() -> None:
    code = (
        "import sys, spark_kafka_source.options.parsing; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
