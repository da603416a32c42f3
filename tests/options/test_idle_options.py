"""Options without effect, such as those of public notebooks: they are accepted, with a warning."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from protocol.errors import ConfigurationError
from spark_kafka_source import foreach_batch_writer
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.source import KafkaGroupDataSource
from tests.options.option_sets import BROKERS, OPTION_SETS, OTHER, PATTERN, TOPIC, OptionSet, filled
from tests.support.small_cluster import SmallCluster

AVRO = {"valueFormat": "confluent-avro", "schema.registry.url": "http://registry:8081"}
TYPES = {**AVRO, "valueTypes": "shop.Order"}
ORDERS = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
DEAD_LETTERS = {"onDecodeError": "dead-letter", "deadLetterTopic": "dead"}
NOT_READ = "onUnknownType has no effect: neither columns nor filter names value"
NOT_DECODED = "onDecodeError has no effect: neither columns nor filter names a column that is decoded"


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"startingOffsetsByTimestampStrategy": "latest"}, "has no effect without startingTimestamp or"),
        (
            {"schema.registry.reader.version": "2"},
            "schema.registry.reader.version has no effect: a registry is used with keyFormat or valueFormat",
        ),
        ({"groupIdPrefix": "me"}, "groupIdPrefix has no effect"),
        ({"maxTriggerDelay": "2h"}, "maxTriggerDelay has no effect without minOffsetsPerTrigger"),
        ({"kafka.max.processing.time.ms": "500"}, "kafka.max.processing.time.ms has no effect: tasks read all"),
        (
            {"kafka.group.id": "etl", "commitOffsets": "false", "startingOffsets": "earliest"},
            "kafka.group.id has no effect: this stream does not start from the group, and commits nothing",
        ),
        ({**AVRO, "valueSchema": '"long"', "valueSubject": "orders"}, "valueSubject has no effect: valueSchema is set"),
        (
            {**AVRO, "valueSchema": '"long"', "schema.registry.reader.version": "2"},
            "schema.registry.reader.version has no effect: no schema is taken from the registry",
        ),
        (
            {**AVRO, "schema.registry.auto.register.schemas": "true"},
            "schema.registry.auto.register.schemas has no effect: it is an option of writes",
        ),
        ({**TYPES, "columns": "valueType,offset", "onUnknownType": "skip"}, NOT_READ),
        ({**TYPES, "columns": "offset", "filter": "valueType = 'Order'", "onUnknownType": "null"}, NOT_READ),
        ({**AVRO, "columns": "offset", "filter": "offset > 0", "onDecodeError": "null"}, NOT_DECODED),
        ({**AVRO, "columns": "key", "onDecodeError": "null"}, NOT_DECODED),
        ({**AVRO, "columns": "offset", **DEAD_LETTERS}, NOT_DECODED),
    ],
)
def test_option_without_effect_is_a_warning(
    options: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    at_a_time = {"startingTimestamp": "5", "kafka.group.id": "etl"}
    parse_source_options({**ORDERS, **options}, streaming=True)
    (message,) = caplog.messages
    assert warning in message
    caplog.clear()
    parse_source_options({**ORDERS, **at_a_time, "startingOffsetsByTimestampStrategy": "latest"}, streaming=True)
    assert caplog.text == ""


@pytest.mark.parametrize(
    "options",
    [
        {"columns": "value,offset", "onUnknownType": "skip"},
        {"columns": "offset", "onUnknownType": "skip", "filter": "value.Order.id = 1"},
        {"columns": "valueType", "onDecodeError": "null"},
        {"columns": "offset", "onDecodeError": "null", "filter": "valueType = 'Order'"},
    ],
)
def test_option_for_values_that_columns_or_filter_decode_has_no_warning(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    parse_source_options({**ORDERS, **TYPES, **options}, streaming=True)
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "may_write"),
    [
        ({**AVRO, "onDecodeError": "dead-letter"}, True),
        ({**AVRO, "onDecodeError": "dead-letter", "columns": "offset", "filter": "value.id > 1"}, True),
        ({**TYPES, "onDecodeError": "dead-letter", "columns": "offset,valueType"}, True),
        ({**TYPES, "onUnknownType": "dead-letter"}, True),
        ({**TYPES, "onUnknownType": "dead-letter", "columns": "offset", "filter": "valueType = 'Order'"}, False),
        ({**TYPES, "onUnknownType": "dead-letter", "columns": "offset,valueType"}, False),
        ({**TYPES, "onUnknownType": "dead-letter", "columns": "offset", "filter": "value.Order.id = 1"}, True),
        ({**TYPES, "onDecodeError": "dead-letter", "columns": "offset", "filter": "valueType = 'Order'"}, True),
        ({**AVRO, "onDecodeError": "dead-letter", "columns": "offset", "filter": "offset > 0"}, False),
        ({**AVRO, "onUnknownType": "dead-letter"}, False),
        ({"onDecodeError": "dead-letter"}, False),
    ],
)
def test_dead_letters_are_written_if_the_action_has_an_effect(options: dict[str, str], may_write: bool) -> None:
    settings = {**ORDERS, "deadLetterTopic": "dead", **options}
    assert parse_source_options(settings, streaming=True).writes_dead_letters == may_write


def test_dead_letter_topic_is_required_only_if_the_action_has_an_effect() -> None:
    options = {**ORDERS, "columns": "offset", **AVRO, "onDecodeError": "dead-letter"}
    parse_source_options({**options, "filter": "offset > 0"}, streaming=True)
    with pytest.raises(ConfigurationError, match="onDecodeError is dead-letter, but there is no deadLetterTopic"):
        parse_source_options({**options, "filter": "value.id > 0"}, streaming=True)


@pytest.mark.parametrize("option_set", OPTION_SETS, ids=lambda option_set: option_set.name)
def test_option_set_is_accepted_with_one_warning_per_idle_option(
    option_set: OptionSet, caplog: pytest.LogCaptureFixture
) -> None:
    options = filled(option_set, {BROKERS: "localhost:9092", TOPIC: "orders", OTHER: "bills", PATTERN: "^o"})
    for _ in range(2):
        if option_set.use == "sink":
            parse_sink_options(options)
        else:
            parse_source_options(options, streaming=option_set.use == "stream")
    assert sorted(message.split()[0] for message in caplog.messages) == sorted(option_set.warnings)


def test_running_reader_alone_warns_of_idle_options(caplog: pytest.LogCaptureFixture) -> None:
    """Spark also creates readers only to plan with, each in a separate process."""
    with SmallCluster() as cluster:
        where = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": "orders"}
        options = {**where, "startingOffsets": "earliest", "mode": "x", "kafka.colour": "y"}
        sources = [KafkaGroupDataSource(options) for _ in range(2)]
        readers = [source.streamReader(source.schema()) for source in sources]
        assert caplog.messages == []
        for _ in range(2):
            readers[0].latestOffset(readers[0].initialOffset(), readers[0].getDefaultReadLimit())
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_committing_writer_alone_warns_of_idle_options(caplog: pytest.LogCaptureFixture) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x", "kafka.colour": "y"}
    schema = StructType().add("value", "string")
    _planned, committing = (KafkaGroupDataSource(options).streamWriter(schema, False) for _ in range(2))
    assert caplog.messages == []
    committing.abort([None], 0)
    committing.commit([], 0)
    assert [message.split()[0] for message in caplog.messages] == ["mode", "kafka.colour"]


def test_foreach_batch_function_warns_in_its_batches(caplog: pytest.LogCaptureFixture) -> None:
    foreach_batch_writer({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders", "mode": "x"})
    assert caplog.messages == []
