"""What consumers put in the byte fields of JoinGroup and SyncGroup: a subscription, an assignment.

Each is a version number (int16) and a struct. No version is flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import Corrupt
from protocol.wire.codec import Value, decoder, encoder
from protocol.wire.primitives import BytesLike, Reader, Writer
from protocol.wire.schema import Array, Field, Struct

TOPIC_PARTITION = Struct(
    Field("topic", "string"),
    Field("partitions", Array("int32")),
)

SUBSCRIPTION = Struct(
    Field("topics", Array("string")),
    Field("user_data", "bytes", nullable_since=0, default=None, doc="the assignor's own"),
    Field("owned_partitions", Array(TOPIC_PARTITION), since=1, ignorable=True, doc="for cooperative rebalancing"),
    Field("generation_id", "int32", since=2, default=-1, ignorable=True, doc="in which they were owned"),
    Field("rack_id", "string", since=3, nullable_since=3, default=None, ignorable=True),
)

ASSIGNMENT = Struct(
    Field("assigned_partitions", Array(TOPIC_PARTITION)),
    Field("user_data", "bytes", nullable_since=0, default=None, doc="the assignor's own"),
)

LAST_VERSION = 3
"""The newest version of both that is described here."""


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
