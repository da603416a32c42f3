"""Option names and remedies for errors of `protocol`, which has Kafka's properties only.

Used for errors and warnings that reach Spark or its log. Errors raised in this package name options already.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import DataLoss, KafkaError, TopicRecreated
from protocol.once import property_names

_PROPERTY = "kafka."
# Settings of `protocol` that are not Kafka properties.
_OPTIONS = {"poll_timeout_ms": "kafkaConsumer.pollTimeoutMs"}

FAIL_ON_DATA_LOSS = "failOnDataLoss=false"
ON_TOPIC_RECREATED = "onTopicRecreated=earliest"
_OPTIONS_TO_CONTINUE = {TopicRecreated: ON_TOPIC_RECREATED, DataLoss: FAIL_ON_DATA_LOSS}


def option_name(setting: str) -> str:
    """Return the option for a property or parameter of `protocol`."""
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
    default = f" (the default with {FAIL_ON_DATA_LOSS})" if option == ON_TOPIC_RECREATED else ""
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
