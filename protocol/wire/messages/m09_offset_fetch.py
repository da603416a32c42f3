"""OffsetFetch (key 9): returns a group's committed offsets.

Version 8 adds requests for several groups (`groups`), 10 topic ids. `topics=None` requests all topics.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

OFFSET_FETCH_REQUEST_TOPIC = Struct(
    Field("name", "string", until=7), Field("partition_indexes", Array("int32"), until=7)
)

OFFSET_FETCH_REQUEST_TOPICS = Struct(
    Field("name", "string", until=9, ignorable=True),
    Field("topic_id", "uuid", since=10, ignorable=True),
    Field("partition_indexes", Array("int32")),
)

OFFSET_FETCH_REQUEST_GROUP = Struct(
    Field("group_id", "string"),
    Field("member_id", "string", since=9, nullable_since=9, default=None, ignorable=True),
    Field("member_epoch", "int32", since=9, default=-1, ignorable=True),
    Field("topics", Array(OFFSET_FETCH_REQUEST_TOPICS), nullable_since=8),
)

OFFSET_FETCH_REQUEST = Struct(
    Field("group_id", "string", until=7),
    Field("topics", Array(OFFSET_FETCH_REQUEST_TOPIC), until=7, nullable_since=2),
    Field("groups", Array(OFFSET_FETCH_REQUEST_GROUP), since=8),
    Field(
        "require_stable",
        "bool",
        since=7,
        doc="UNSTABLE_OFFSET_COMMIT while a transaction with these offsets is pending",
    ),
)

OFFSET_FETCH_RESPONSE_PARTITION = Struct(
    Field("partition_index", "int32", until=7),
    Field("committed_offset", "int64", until=7, doc="-1: none"),
    Field("committed_leader_epoch", "int32", since=5, until=7, default=-1, ignorable=True),
    Field("metadata", "string", until=7, nullable_since=0),
    Field("error_code", "int16", until=7),
)

OFFSET_FETCH_RESPONSE_TOPIC = Struct(
    Field("name", "string", until=7), Field("partitions", Array(OFFSET_FETCH_RESPONSE_PARTITION), until=7)
)

OFFSET_FETCH_RESPONSE_PARTITIONS = Struct(
    Field("partition_index", "int32"),
    Field("committed_offset", "int64", doc="-1: none"),
    Field("committed_leader_epoch", "int32", default=-1),
    Field("metadata", "string", nullable_since=8),
    Field("error_code", "int16"),
)

OFFSET_FETCH_RESPONSE_TOPICS = Struct(
    Field("name", "string", until=9, ignorable=True),
    Field("topic_id", "uuid", since=10, ignorable=True),
    Field("partitions", Array(OFFSET_FETCH_RESPONSE_PARTITIONS)),
)

OFFSET_FETCH_RESPONSE_GROUP = Struct(
    Field("group_id", "string"), Field("topics", Array(OFFSET_FETCH_RESPONSE_TOPICS)), Field("error_code", "int16")
)

OFFSET_FETCH_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=3, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("topics", Array(OFFSET_FETCH_RESPONSE_TOPIC), until=7),
    Field("error_code", "int16", since=2, until=7, ignorable=True),
    Field("groups", Array(OFFSET_FETCH_RESPONSE_GROUP), since=8),
)

OFFSET_FETCH = api(9, "OffsetFetch", OFFSET_FETCH_REQUEST, OFFSET_FETCH_RESPONSE, "1-10", "6+", Route.GROUP)

LAST_WITH_TOPIC_NAMES = 9
