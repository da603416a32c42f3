"""Columns written with a schema, in each format: options, and how they are read back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


def sink_options(kafka: LocalKafka, topic: str, value_format: str, url: str, **more: str) -> dict[str, str]:
    """Return options; underscores in the names of `more` are dots."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "topic": topic,
        "valueFormat": value_format,
        "schema.registry.url": url,
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def write(frame: DataFrame, options: dict[str, str]) -> None:
    """Write all rows in one task."""
    frame.coalesce(1).write.format("pykafka-group").mode("append").options(**options).save()


def assert_read_as_written(frame: DataFrame, options: dict[str, str]) -> None:
    """Register the schema of the column `value`, write it, and read it back with this project's source."""
    write(frame, {**options, "schema.registry.auto.register.schemas": "true"})
    read = {name: text for name, text in options.items() if name != "topic"}
    result = frame.sparkSession.read.format("pykafka-group").options(**read, subscribe=options["topic"]).load()
    assert result.select("value").collect() == frame.collect()
