"""Consumer protocol metadata in the byte fields of JoinGroup and SyncGroup: subscription and assignment.

Each is a version (int16) followed by a struct. No version is flexible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import Corrupt
from protocol.wire.codec import Value, decoder, encoder
from protocol.wire.primitives import BytesLike, Reader, Writer
from protocol.wire.schema import Array, Field, Struct

TOPIC_PARTITION = Struct(Field("topic", "string"), Field("partitions", Array("int32")))

SUBSCRIPTION = Struct(
    Field("topics", Array("string")),
    Field("user_data", "bytes", nullable_since=0, default=None, doc="bytes of the assignor"),
    Field("owned_partitions", Array(TOPIC_PARTITION), since=1, ignorable=True, doc="for cooperative rebalancing"),
    Field("generation_id", "int32", since=2, default=-1, ignorable=True, doc="generation of owned_partitions"),
    Field("rack_id", "string", since=3, nullable_since=3, default=None, ignorable=True),
)

ASSIGNMENT = Struct(
    Field("assigned_partitions", Array(TOPIC_PARTITION)),
    Field("user_data", "bytes", nullable_since=0, default=None, doc="bytes of the assignor"),
)

LAST_VERSION = 3
"""The newest version of both structs in this file."""


def encode_versioned(schema: Struct, version: int, value: Mapping[str, Any]) -> bytes:
    """Encode `version` as int16, then the struct; raise `UsageError` for a value that does not fit the schema."""
    writer = Writer()
    writer.int16(version)
    encoder(schema, version, False)(writer, value)
    return b"".join(writer.parts())


def decode_versioned(schema: Struct, last_version: int, data: BytesLike) -> tuple[int, Value]:
    """Decode a version and a struct.

    A version above `last_version` is read as `last_version`: later versions only add fields at the end, and the
    remaining bytes are ignored.

    `schema`: `SUBSCRIPTION` or `ASSIGNMENT`.
    `last_version`: the newest version that `schema` describes.
    `data`: the embedded bytes.
    Returns the version as written, and the struct as a dict.
    Raises `Truncated` or `Corrupt`: the bytes are invalid.
    """
    reader = Reader(data)
    version = reader.int16()
    if version < 0:
        raise Corrupt(f"version {version} of an embedded struct")
    value: Value = decoder(schema, min(version, last_version), False)(reader)
    return version, value
