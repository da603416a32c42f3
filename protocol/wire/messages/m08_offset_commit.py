"""OffsetCommit (key 8): commits a group's offsets.

Version 9 is the first for groups of the consumer protocol (KIP-848). Version 10 identifies topics by id.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

OFFSET_COMMIT_REQUEST_PARTITION = Struct(
    Field("partition_index", "int32"),
    Field("committed_offset", "int64", doc="the next offset to read"),
    Field("committed_leader_epoch", "int32", since=6, default=-1, ignorable=True),
    Field("committed_metadata", "string", nullable_since=0),
)

OFFSET_COMMIT_REQUEST_TOPIC = Struct(
    Field("name", "string", until=9, ignorable=True),
    Field("topic_id", "uuid", since=10, ignorable=True),
    Field("partitions", Array(OFFSET_COMMIT_REQUEST_PARTITION)),
)

OFFSET_COMMIT_REQUEST = Struct(
    Field("group_id", "string"),
    Field("generation_id_or_member_epoch", "int32", default=-1, doc="-1: a commit without membership"),
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=7, nullable_since=7, default=None),
    Field("retention_time_ms", "int64", until=4, default=-1, ignorable=True, doc="-1: the broker's default"),
    Field("topics", Array(OFFSET_COMMIT_REQUEST_TOPIC)),
)

OFFSET_COMMIT_RESPONSE_PARTITION = Struct(Field("partition_index", "int32"), Field("error_code", "int16"))

OFFSET_COMMIT_RESPONSE_TOPIC = Struct(
    Field("name", "string", until=9, ignorable=True),
    Field("topic_id", "uuid", since=10, ignorable=True),
    Field("partitions", Array(OFFSET_COMMIT_RESPONSE_PARTITION)),
)

OFFSET_COMMIT_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=3, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("topics", Array(OFFSET_COMMIT_RESPONSE_TOPIC)),
)

OFFSET_COMMIT = api(8, "OffsetCommit", OFFSET_COMMIT_REQUEST, OFFSET_COMMIT_RESPONSE, "2-10", "8+", Route.GROUP)

LAST_WITH_TOPIC_NAMES = 9
