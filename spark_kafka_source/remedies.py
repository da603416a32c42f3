"""What users of Spark can do about an error of `protocol`, which speaks Kafka's words: by which option of theirs.

Used wherever an error leaves for Spark or its log. The messages of errors of our own name options anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import DataLoss, KafkaError, TopicRecreated

_PROPERTY = "kafka."
# Settings of `protocol` that are no properties of Kafka.
_OPTIONS = {"poll_timeout_ms": "kafkaConsumer.pollTimeoutMs"}

FAIL_ON_DATA_LOSS = "failOnDataLoss=false"
ON_TOPIC_RECREATED = "onTopicRecreated=earliest"
_GOES_ON_WITHOUT = {TopicRecreated: ON_TOPIC_RECREATED, DataLoss: FAIL_ON_DATA_LOSS}


def in_options(error: KafkaError) -> str:
    """The message, with options in place of the settings that it names."""
    text = error.message
    for name in error.settings:
        option = _OPTIONS.get(name, _PROPERTY + name)
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w|\.\w)", option, text)
    return text


def goes_on_without(loss: DataLoss) -> str:
    """The option, with its value, that lets a query go on without what is lost."""
    return next(option for kind, option in _GOES_ON_WITHOUT.items() if isinstance(loss, kind))


def to_go_on(loss: DataLoss) -> str:
    option = goes_on_without(loss)
    default = f" (the default with {FAIL_ON_DATA_LOSS})" if option == ON_TOPIC_RECREATED else ""
    return f"To go on with what is there, set {option}{default}"


@contextmanager
def with_remedies() -> Iterator[None]:
    """What leaves this block speaks of options."""
    try:
        yield
    except KafkaError as error:
        error.message = in_options(error)
        raise
