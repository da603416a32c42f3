"""Source options without effect unless another option is set: a warning says so."""

from __future__ import annotations

import logging

import pytest

from protocol.errors import ConfigurationError
from spark_kafka_source.options.parsing import parse_source_options

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
    with caplog.at_level(logging.WARNING):
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
