"""Shorthands that parse the options of a stream, a batch and a sink, and return their refusals."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigurationError
from spark_kafka_source.options.parsing import parse_sink_options, parse_source_options
from spark_kafka_source.options.table import SinkOptions, SourceOptions

BROKERS = {"kafka.bootstrap.servers": "localhost:9092"}
ORDERS = {**BROKERS, "subscribe": "orders"}


def stream(**more: str) -> SourceOptions:
    return parse_source_options(with_dots(ORDERS, more), streaming=True)


def batch(**more: str) -> SourceOptions:
    return parse_source_options(with_dots(ORDERS, more), streaming=False)


def sink(**more: str) -> SinkOptions:
    return parse_sink_options(with_dots(BROKERS, more))


def with_dots(options: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """Return all options; `kafka_group_id="g"` becomes the option kafka.group.id."""
    return {**options, **{key.replace("_", "."): value for key, value in more.items()}}


def refusal(options: dict[str, str], *, streaming: bool = True) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse_source_options({**BROKERS, **options}, streaming=streaming)
    return str(raised.value)


def sink_refusal(options: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        parse_sink_options({**BROKERS, **options})
    return str(raised.value)
