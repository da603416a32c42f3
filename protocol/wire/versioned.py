"""Structs that travel inside byte fields, with their version in front: subscriptions and assignments of consumers.

Called by group membership and by the group description. Knows no API: the struct and its last version come with the
call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import Corrupt
from protocol.wire.codec import Value, decoder, encoder
from protocol.wire.primitives import BytesLike, Reader, Writer
from protocol.wire.schema import Struct


def encode_versioned(schema: Struct, version: int, value: Mapping[str, Any]) -> bytes:
    """`version` as int16, then the struct. Raises `UsageError` for a value that does not fit the schema."""
    writer = Writer()
    writer.int16(version)
    encoder(schema, version, False)(writer, value)
    return b"".join(writer.parts())


def decode_versioned(schema: Struct, last_version: int, data: BytesLike) -> tuple[int, Value]:
    """`(version, value)`; version is the writer's own.

    A version above `last_version` is read as `last_version`: later ones only add fields at the end, so what follows
    is left unread. Raises `Truncated` or `Corrupt`.
    """
    reader = Reader(data)
    version = reader.int16()
    if version < 0:
        raise Corrupt(f"version {version} of an embedded struct")
    value: Value = decoder(schema, min(version, last_version), False)(reader)
    return version, value
