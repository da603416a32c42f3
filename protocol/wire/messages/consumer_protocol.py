"""What consumers put in the byte fields of JoinGroup and SyncGroup: a subscription, an assignment.

Each is a version number (int16) and a struct; `protocol.wire.versioned` reads and writes them. No version is flexible.
"""

from __future__ import annotations

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
