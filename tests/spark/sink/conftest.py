"""Columns written with a schema, in each format: how they are written and read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from pyspark.sql import DataFrame

from protocol.testing.schema_registry import FakeSchemaRegistry
from spark_kafka_source.local_kafka import LocalKafka
from tests.conftest import TopicFactory
from tests.support.librdkafka import raw_values
from tests.support.spark_frames import batch, write


@dataclass(frozen=True)
class EncodedSink:
    """The sink with one value format and a schema registry."""

    kafka: LocalKafka
    new_topic: TopicFactory
    registry: FakeSchemaRegistry
    value_format: str

    @property
    def options(self) -> dict[str, str]:
        return {"valueFormat": self.value_format, "schema_registry_url": self.registry.url}

    @property
    def client(self) -> SchemaRegistryClient:
        return SchemaRegistryClient({"url": self.registry.url})

    def topic_of(self, schema: str, kind: str = "AVRO") -> str:
        """Create a topic whose subject has the schema."""
        topic = self.new_topic()
        self.registry.register(f"{topic}-value", schema, kind)
        return topic

    def write(self, frame: DataFrame, topic: str, **options: str) -> None:
        """Write all rows in one task."""
        write(frame.coalesce(1), self.kafka, topic=topic, **self.options, **options)

    def raw_values(self, topic: str, count: int) -> list[Any]:
        return raw_values(self.kafka, topic, count)

    def assert_read_as_written(self, frame: DataFrame) -> None:
        """Register the schema of the column `value`, write it, and read it back with this project's source."""
        topic = self.new_topic()
        self.write(frame, topic, schema_registry_auto_register_schemas="true")
        result = batch(frame.sparkSession, self.kafka, subscribe=topic, **self.options)
        assert result.select("value").collect() == frame.collect()
