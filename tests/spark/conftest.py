"""A schema registry, and Confluent's client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from protocol.testing.schema_registry import FakeSchemaRegistry


@pytest.fixture
def registry() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


@pytest.fixture
def registry_client(registry: FakeSchemaRegistry) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": registry.url})
