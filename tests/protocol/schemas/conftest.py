"""A registry of schemas, its client, and columns of framed values decoded with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from protocol.records.record_fields import HEADERS_TYPE
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.registry_config import parse_registry
from protocol.schemas.values import ColumnDecoder, as_reader_schema
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.schema_registry import FakeSchemaRegistry

SUBJECT = "orders-value"


@pytest.fixture
def server() -> Iterator[FakeSchemaRegistry]:
    with FakeSchemaRegistry() as running:
        yield running


@pytest.fixture
def registry(server: FakeSchemaRegistry) -> SchemaRegistry:
    return client(server.url, max_retries=0)


def client(url: str, clock: Any = None, **more: object) -> SchemaRegistry:
    """Return a client with a manual clock; `basic_auth_user_info` is schema.registry.basic.auth.user.info."""
    values = {f"schema.registry.{name.replace('_', '.')}": value for name, value in more.items()}
    config = parse_registry({"schema.registry.url": url, **values})
    assert config is not None
    return SchemaRegistry(config, clock or ManualClock())


def decoder(format: Any, registry: SchemaRegistry, **more: Any) -> ColumnDecoder:
    """Return a decoder with the latest version of the subject; `more` changes fields of its `ReaderSchema`."""
    schema = as_reader_schema(format, registry, registry.version(SUBJECT))
    return ColumnDecoder(ReaderSchema(**{**vars(schema), **more}), registry)


def decoded(decoder: ColumnDecoder, values: Sequence[bytes | None]) -> tuple[list[Any], list[str]]:
    """Return the values, and the errors of those that are invalid."""
    column, invalid = decoder.decode(pa.array(values, pa.binary()))
    column.validate(full=True)
    return column.to_pylist(), [str(failure) for failure in sorted(invalid, key=lambda failure: failure.row)]


def id_to_header(payload: bytes, context: Any, schema_id: Any) -> bytes:
    """Write the form of a header that no serialiser of Confluent writes, and each deserialiser reads."""
    context.headers.append(("__value_schema_id", schema_id.id_to_bytes()))
    return payload


def header_column(headers: Sequence[Sequence[tuple[str, bytes]]]) -> pa.Array:
    return pa.array([[{"key": key, "value": value} for key, value in header] for header in headers], HEADERS_TYPE)
