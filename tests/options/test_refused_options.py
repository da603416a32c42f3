"""Wrong, forbidden, unknown and foreign options: an error or a warning that names the user's option."""

from __future__ import annotations

import re

import pytest

from protocol.errors import ConfigurationError
from spark_kafka_source.options.parsing import parse_read_options, parse_sink_options, parse_source_options, row_columns
from tests.options.parsed import BROKERS, ORDERS, batch, refusal, sink, sink_refusal, stream


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
        ("onTopicRecreated", "skip", "fail, earliest"),
        ("maxTriggerDelay", "1 minute", "a number with the unit us, ms, s, m, min, h or d"),
    ],
)
def test_invalid_value_is_refused_with_name_value_and_allowed_values(name: str, value: str, allowed: str) -> None:
    for streaming in (True, False):  # Spark requests the schema without naming the kind of read
        message = refusal({"subscribe": "orders", name.upper(): value}, streaming=streaming)
        assert message.startswith(f"{name} is {value!r}")
        assert f"allowed: {allowed}" in message


# Misspelt options by the suggested one, and properties without their prefix.
MISSPELT = {
    "startingOffsets": "startingOffset starting_offsets startOffsets startoffset kafka.startingOffsets",
    "subscribe": "subscibe topics kafka.subscribe",
    "subscribePattern": "subscribe.pattern topic_pattern",
    "failOnDataLoss": "failOnDataLos",
    "maxOffsetsPerTrigger": (
        "maxOffsetperTrigger maxOffsetsPerTriger maxOffestsPerTirgger maxOffsets maxRecordsPerTrigger"
    ),
    "includeHeaders": "includeHeader",
    "startingTimestamp": "startTimestamp",
    "endingTimestamp": "endTimestamp endingTimestmp",
    "kafka.group.id": "group kafka.group consumer_group kafk.group.id kafka_group_id",
    "kafka.bootstrap.servers": "brokers kafka.metadata.broker.list",
    "kafkaConsumer.pollTimeoutMs": "kafkaConsumer.pollTimeout",
}
UNPREFIXED = {
    "kafka.group.id": "group.id groupId",
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.auto.offset.reset": "autoOffsetReset",
    "kafka.auto.offset.reset. Without a group, startingOffsets says where to": "auto.offset.reset",
    **{f"kafka.{name}": name for name in ("session.timeout.ms", "isolation.level", "security.protocol")},
    "kafka.sasl.jaas.config": "sasl.jaas.config",
}
HINTS = [
    *((name, f"did you mean {option}?") for option, names in MISSPELT.items() for name in names.split()),
    *(
        (name, f"Kafka's properties take a prefix: {option}")
        for option, names in UNPREFIXED.items()
        for name in names.split()
    ),
]


@pytest.mark.parametrize(("name", "hint"), HINTS)
@pytest.mark.parametrize("streaming", [True, False])
def test_misspelt_or_unprefixed_option_is_refused_with_a_suggestion(name: str, hint: str, streaming: bool) -> None:
    for passed in (name, name.lower()):  # Spark passes names in lower case
        message = refusal({"subscribe": "orders", passed: "secret"}, streaming=streaming)
        assert f"{passed} is not an option of this source and sink; {hint}" in message
    assert "secret" not in message
    with pytest.raises(ConfigurationError, match=re.escape(hint)):
        parse_read_options({**ORDERS, name: "secret"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("kafka.grop.id", "kafka.group.id"), ("kafka.groupId", "kafka.group.id")),
        ("kafka.isolation.levl", "kafka.isolation.level"),
        ("kafka.security.protocl", "kafka.security.protocol"),
        ("kafka.auto.offset.rest", "kafka.auto.offset.reset"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.sasl.jaas.confg", "kafka.sasl.jaas.config"),
        ("kafka.max.poll.interval", "kafka.max.poll.interval.ms"),
    ],
)
def test_misspelt_kafka_property_is_refused_with_its_name(name: str, meant: str) -> None:
    message = f"{name.lower()} is not a Kafka property; did you mean {meant}?"
    assert refusal({"subscribe": "orders", name: "secret"}) == message
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        parse_read_options({**ORDERS, name: "secret"})


def test_misspelt_option_is_an_error_only_where_the_option_applies(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt option is an error only if the correct option applies here; otherwise both are warnings."""
    assert "did you mean topic?" in sink_refusal({"topics": "orders"})
    assert "kafka.acks" in sink_refusal({"acks": "1"})
    parse_source_options({**ORDERS, "deliveryGarantee": "a", "acks": "1", "linger.ms": "5"}, streaming=True)
    parse_source_options({**ORDERS, "kafka.linger.m": "5"}, streaming=True)
    parse_sink_options({**BROKERS, "startingOffset": "latest", "group": "g", "kafka.grop.id": "g"})
    assert len(caplog.messages) == 7
    assert {record.levelname for record in caplog.records} == {"WARNING"}
    assert (
        sink_refusal({"kafka.linger.m": "5"}) == "kafka.linger.m is not a Kafka property; did you mean kafka.linger.ms?"
    )


@pytest.mark.parametrize("use", ["stream", "batch", "sink"])
def test_option_of_another_format_is_one_warning(use: str, caplog: pytest.LogCaptureFixture) -> None:
    """Fails with "did you mean" if a new option is named like one of another format: choose another name."""
    parse = {
        "stream": lambda more: parse_source_options({**ORDERS, **more}, streaming=True),
        "batch": lambda more: parse_source_options({**ORDERS, **more}, streaming=False),
        "sink": lambda more: parse_sink_options({**BROKERS, **more}),
    }[use]
    for name in STRAYS.split():
        caplog.clear()
        assert parse({name: "secret"}) == parse({name: "secret"}) == parse({})
        assert len(caplog.messages) == 1, (name, caplog.messages)
        assert name in caplog.text
        assert "has no effect" in caplog.text
        assert "secret" not in caplog.text


# Options of Spark's other sources and sinks, of other Kafka clients, and of public notebooks for the connector.
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
    kafka.timeout.ms kafka.metadata.fetch.timeout.ms kafka.foo.bar overwriteSchema
    triggerInterval window hi format name type key value timeZone
"""


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"kafka.enable.auto.commit": "false"}, ["kafka.enable.auto.commit is forbidden", "commitOffsets"]),
        ({"kafka.interceptor.classes": "x"}, ["kafka.interceptor.classes is forbidden", "in the query"]),
        ({"kafka.key.deserializer": "x"}, ["kafka.key.deserializer is forbidden", "key.cast"]),
        ({"kafka.value.deserializer": "x"}, ["kafka.value.deserializer is forbidden", "from_json"]),
        ({"kafka.auto.offset.reset": "latest"}, ["Set startingOffsets instead"]),
        *(
            ({name: value}, [f"{name} is an option of batch reads, not of streaming reads; leave it out."])
            for name, value in (
                ("endingOffsets", "latest"),
                ("endingTimestamp", "1767225600000"),
                ("endingOffsetsByTimestamp", '{"orders": {"0": 0}}'),
            )
        ),
        (
            {"databricks.serviceCredential": "mine"},
            [
                "databricks.serviceCredential is not supported: Databricks gives such credentials to its own",
                "kafka.sasl.oauthbearer.token.provider",
            ],
        ),
    ],
)
def test_option_that_a_stream_cannot_have_is_refused_with_alternative(
    options: dict[str, str], messages: list[str]
) -> None:
    shown = refusal({"subscribe": "orders", **options})
    assert all(message in shown for message in messages), shown


@pytest.mark.parametrize("name", ["key.serializer", "value.serializer", "interceptor.classes"])
def test_sink_forbids_serializers_and_interceptors(name: str) -> None:
    assert f"kafka.{name} is forbidden" in sink_refusal({f"kafka.{name}": "x"})


def test_option_of_another_kind_of_query_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert stream(topic="orders", deliveryGuarantee="none") == stream()
    assert sink(subscribe="orders", startingOffsets="latest", failOnDataLoss="false") == sink()
    names = ("topic", "deliveryGuarantee", "subscribe", "startingOffsets", "failOnDataLoss")
    assert [message.split(": ")[0] for message in caplog.messages] == [f"{name} has no effect" for name in names]
    assert (
        "topic has no effect: it is an option of writes, this is one of streaming reads. A source takes" in caplog.text
    )
    assert "A sink takes topic" in caplog.text


def test_option_forbidden_for_the_other_side_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert stream(kafka_key_serializer="x") == stream()
    assert sink(kafka_key_deserializer="x", kafka_enable_auto_commit="false") == sink()
    assert len(caplog.messages) == 3


def test_streaming_option_is_a_warning_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    limits = {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5k", "minOffsetsPerTrigger": "9"}
    streaming = {**limits, "maxTriggerDelay": "1m", "onTopicRecreated": "earliest"}
    options = batch(**streaming)
    assert (options.max_offsets_per_trigger, options.min_offsets_per_trigger) == (None, None)
    assert options.max_bytes_per_trigger is None
    for name in streaming:
        assert f"{name} has no effect" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "erliest"}, "startingOffsets is 'erliest'"),
        ({"maxOffsetsPerTrigger": "-1"}, "maxOffsetsPerTrigger is '-1'"),
        ({"endingOffsets": "latst"}, "endingOffsets is 'latst'"),
        ({"endingOffsets": "latest", "startingOffsets": "latest"}, "a batch cannot start at the latest offset"),
        ({"minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"}, "minOffsetsPerTrigger is 2, more than"),
        ({"kafka.isolation.level": "committed"}, "kafka.isolation.level is 'committed'"),
        ({"kafka.group.protocol": "consumer"}, "there is no group"),
        ({"subscribePattern": "x"}, "give exactly one of them"),
    ],
)
def test_options_invalid_for_any_read_are_refused_with_the_schema(
    options: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_read_options({**ORDERS, "mode": "PERMISSIVE", **options})
    assert message in str(raised.value)
    assert raised.value.__cause__ is None
    assert caplog.messages == []


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"kafka.group.id": "etl", "kafka.auto.offset.reset": "latest"},
        {"kafka.group.id": "etl", "commitOffsets": "true"},
        {"endingOffsets": "latest"},
        {"endingOffsets": "latest", "maxOffsetsPerTrigger": "5"},
        {"mode": "PERMISSIVE"},
    ],
)
def test_options_valid_for_one_kind_of_read_are_accepted_with_the_schema(options: dict[str, str]) -> None:
    parse_read_options({**ORDERS, **options})


def test_options_added_by_spark_are_accepted_silently(caplog: pytest.LogCaptureFixture) -> None:
    added = {"checkpointlocation": "/tmp/c", "queryname": "q", "owner": "me", "provider": "pykafka-group"}
    repeated = {f"option.{key}": value for key, value in ORDERS.items()}
    assert parse_source_options({**ORDERS, **added, **repeated}, streaming=True) == stream()
    assert parse_sink_options({**BROKERS, **added}) == sink()
    assert not caplog.records


def test_path_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    parse_source_options({**ORDERS, "path": "/x"}, streaming=True)
    parse_sink_options({**BROKERS, "path": "/x"})
    assert ["use subscribe" in caplog.messages[0], "use topic" in caplog.messages[1]] == [True, True]


def test_row_columns_are_read_from_options_of_any_query() -> None:
    usual = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert row_columns({"subscribe": "orders"}) == usual
    assert row_columns({"INCLUDEHEADERS": " True "}) == (*usual, "headers")
    assert row_columns({"Columns": "value, TIMESTAMPTYPE,headers"}) == ("value", "timestampType", "headers")
    assert stream(columns="offset,value").row_columns == ("offset", "value")
    with pytest.raises(ConfigurationError, match="includeHeaders is 'ture'"):
        row_columns({"includeheaders": "ture"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "value,colour"}, "columns is 'value,colour' ('colour' is no column)"),
        ({"columns": ""}, "columns is '' ('' is no column)"),
        ({"columns": "value,,key"}, "'' is no column"),
        ({"columns": "key,Key"}, "Key is there twice"),
        ({"columns": "key", "includeHeaders": "true"}, "includeHeaders is true, but columns does not name headers"),
    ],
)
def test_invalid_columns_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        row_columns(options)
    assert message in str(raised.value)
    assert message in refusal({"subscribe": "orders", **options})
