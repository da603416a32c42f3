"""A registry of schemas, its client, and columns of framed values decoded with it."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from protocol.records.record_fields import HEADERS_TYPE
from protocol.schemas.glue import open_registry
from protocol.schemas.reader_schema import ReaderSchema
from protocol.schemas.registry import SchemaRegistry
from protocol.schemas.registry_config import parse_registry
from protocol.schemas.values import ColumnDecoder, as_reader_schema
from protocol.testing.fake_kafka.clock import ManualClock
from protocol.testing.schema_registry import FakeSchemaRegistry

SUBJECT = "orders-value"
# A schema version id and a schema of AWS Glue.
ID = "ab000000-0000-0000-0000-000000000001"
OAUTH = {
    "bearer.auth.credentials.source": "OAUTHBEARER", "bearer.auth.issuer.endpoint.url": "http://t:1",
    "bearer.auth.client.id": "me", "bearer.auth.client.secret": "hunter2",
}  # fmt: skip
LONG = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'


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
    return SchemaRegistry(config(**{"schema.registry.url": url, **values}), clock or ManualClock())


def config(**more: object) -> Any:
    parsed = parse_registry(more)
    assert parsed is not None
    return parsed


def fixed_registry(schemas: dict[str, str]) -> SchemaRegistry:
    """Return a registry with schemas by id, which asks no server."""
    return open_registry(config(**{"schema.registry.glue.schemas": json.dumps(schemas)}))


def glue_frame(version_id: str, payload: bytes, compression: int = 0) -> bytes:
    return bytes((3, compression)) + uuid.UUID(version_id).bytes + (zlib.compress(payload) if compression else payload)


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
