"""Error classes, option names and remedies in the messages of errors.

The error classes are those of Spark's own Kafka connector, for errors with the same meaning: Spark prints them in
brackets, and alerts match them. From `error/kafka-error-conditions.json` in the connector's jar, version 4.2.

Errors and warnings of `protocol` have Kafka's properties only; option names replace them for Spark and its log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.base.once import property_names
from protocol.errors import DataLoss, KafkaError, TopicRecreated

_DATA_LOSS = "KAFKA_DATA_LOSS"

START_OFFSET_RESET = f"{_DATA_LOSS}.START_OFFSET_RESET"
PARTITIONS_DELETED = f"{_DATA_LOSS}.PARTITIONS_DELETED"
PARTITION_OFFSET_CHANGED = f"{_DATA_LOSS}.PARTITION_OFFSET_CHANGED"
COULD_NOT_READ_OFFSET_RANGE = f"{_DATA_LOSS}.COULD_NOT_READ_OFFSET_RANGE"
ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO = f"{_DATA_LOSS}.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"

OFFSETS_DO_NOT_MATCH_ASSIGNED = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
TIMESTAMPS_DO_NOT_MATCH_ASSIGNED = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
START_AND_END_DO_NOT_MATCH = "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET"
UNRESOLVED_START_AFTER_END = "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
RESOLVED_START_AFTER_END = "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
MALFORMED_RECORD_TIMESTAMP = "KAFKA_MALFORMED_RECORD_TIMESTAMP"

_PROPERTY = "kafka."
# Options that have no prefix of Spark's.
_REGISTRY = "schema.registry."
# Settings of `protocol` that are not Kafka properties.
_OPTIONS = {"poll_timeout_ms": "kafkaConsumer.pollTimeoutMs"}

_FAIL_ON_DATA_LOSS = "failOnDataLoss=false"
_ON_TOPIC_RECREATED = "onTopicRecreated=earliest"
_OPTIONS_TO_CONTINUE = {TopicRecreated: _ON_TOPIC_RECREATED, DataLoss: _FAIL_ON_DATA_LOSS}


def with_error_class(error_class: str, message: str) -> str:
    """Return `[ERROR_CLASS] message`, as Spark prints it."""
    return f"[{error_class}] {message}"


def option_name(setting: str) -> str:
    """Return the option for a property or parameter of `protocol`."""
    if setting.startswith(_REGISTRY):
        return setting
    return _OPTIONS.get(setting, _PROPERTY + setting)


def with_option_names(error: KafkaError) -> str:
    """Return the message with option names in place of property names."""
    return error.with_names(option_name)


def option_to_continue(loss: DataLoss) -> str:
    """Return the option, with its value, that lets a query continue without the lost records."""
    return next(option for kind, option in _OPTIONS_TO_CONTINUE.items() if isinstance(loss, kind))


def remedy_to_continue(loss: DataLoss) -> str:
    """Return a sentence with the option that lets a query continue without the lost records."""
    option = option_to_continue(loss)
    default = f" (the default with {_FAIL_ON_DATA_LOSS})" if option == _ON_TOPIC_RECREATED else ""
    return f"To continue without the lost records, set {option}{default}"


@contextmanager
def with_remedies() -> Iterator[None]:
    """Use option names in errors that leave the block, and in warnings about options."""
    try:
        with property_names(option_name):
            yield
    except KafkaError as error:
        error.message = with_option_names(error)
        raise
