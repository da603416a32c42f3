"""Fetch (key 1): reads record batches from a partition's leader, or from a follower in the client's rack.

Version 7 adds fetch sessions, 12 the detection of truncated logs (`diverging_epoch`), 13 topic ids instead of names,
16 the new leader's address in the response.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

REPLICA_STATE = Struct(Field("replica_id", "int32", default=-1), Field("replica_epoch", "int64", default=-1))

FETCH_PARTITION = Struct(
    Field("partition", "int32"),
    Field("current_leader_epoch", "int32", since=9, default=-1, ignorable=True, doc="-1: no check"),
    Field("fetch_offset", "int64"),
    Field(
        "last_fetched_epoch",
        "int32",
        since=12,
        default=-1,
        doc="leader epoch of the last record read; -1: no check for divergence",
    ),
    Field("log_start_offset", "int64", since=5, default=-1, ignorable=True),
    Field("partition_max_bytes", "int32", doc="soft limit: a larger first batch is returned whole"),
    Field("replica_directory_id", "uuid", since=17, tag=0, tag_since=17, ignorable=True),
    Field(
        "high_watermark",
        "int64",
        since=18,
        default=2**63 - 1,
        tag=1,
        tag_since=18,
        ignorable=True,
        doc="log start offset of a follower",
    ),
)

FETCH_TOPIC = Struct(
    Field("topic", "string", until=12, ignorable=True),
    Field("topic_id", "uuid", since=13, ignorable=True),
    Field("partitions", Array(FETCH_PARTITION)),
)

FORGOTTEN_TOPIC = Struct(
    Field("topic", "string", until=12, ignorable=True),
    Field("topic_id", "uuid", since=13, ignorable=True),
    Field("partitions", Array("int32")),
)

FETCH_REQUEST = Struct(
    Field("cluster_id", "string", since=12, nullable_since=12, default=None, tag=0, tag_since=12, ignorable=True),
    Field("replica_id", "int32", until=14, default=-1),
    Field("replica_state", REPLICA_STATE, since=15, tag=1, tag_since=15),
    Field("max_wait_ms", "int32", doc="time limit for min_bytes before the broker responds"),
    Field("min_bytes", "int32"),
    Field("max_bytes", "int32", default=2**31 - 1, doc="soft limit for the whole response"),
    Field("isolation_level", "int8", doc="0 read_uncommitted, 1 read_committed"),
    Field("session_id", "int32", since=7, ignorable=True, doc="0: no session, or a new one"),
    Field(
        "session_epoch",
        "int32",
        since=7,
        default=-1,
        ignorable=True,
        doc="-1: no session; 0: start one; then 1, 2, ...",
    ),
    Field("topics", Array(FETCH_TOPIC), doc="in a session: added and changed partitions"),
    Field("forgotten_topics_data", Array(FORGOTTEN_TOPIC), since=7, doc="partitions to remove from the session"),
    Field("rack_id", "string", since=11, ignorable=True, doc="enables preferred replicas in this rack"),
)

EPOCH_END_OFFSET = Struct(
    Field("epoch", "int32", default=-1), Field("end_offset", "int64", default=-1, doc="-1: unknown")
)

LEADER_ID_AND_EPOCH = Struct(Field("leader_id", "int32", default=-1), Field("leader_epoch", "int32", default=-1))

SNAPSHOT_ID = Struct(Field("end_offset", "int64", default=-1), Field("epoch", "int32", default=-1))

ABORTED_TRANSACTION = Struct(Field("producer_id", "int64"), Field("first_offset", "int64"))

PARTITION_DATA = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
    Field("high_watermark", "int64"),
    Field("last_stable_offset", "int64", default=-1, doc="all transactions below it are completed"),
    Field("log_start_offset", "int64", since=5, default=-1, ignorable=True, doc="first offset in the log"),
    Field(
        "diverging_epoch",
        EPOCH_END_OFFSET,
        since=12,
        tag=0,
        tag_since=12,
        doc="set if the log was truncated: end of the part that the reader shares",
    ),
    Field("current_leader", LEADER_ID_AND_EPOCH, since=12, tag=1, tag_since=12, doc="set if the leader has moved"),
    Field("snapshot_id", SNAPSHOT_ID, since=12, tag=2, tag_since=12),
    Field("aborted_transactions", Array(ABORTED_TRANSACTION), nullable_since=4, doc="None if read_uncommitted"),
    Field("preferred_read_replica", "int32", since=11, default=-1, doc="a follower to read from instead; -1: none"),
    Field("records", "records", nullable_since=0, doc="whole record batches; the last may be partial"),
)

FETCHABLE_TOPIC_RESPONSE = Struct(
    Field("topic", "string", until=12, ignorable=True),
    Field("topic_id", "uuid", since=13, ignorable=True),
    Field("partitions", Array(PARTITION_DATA)),
)

NODE_ENDPOINT = Struct(
    Field("node_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("rack", "string", nullable_since=16, default=None),
)

FETCH_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16", since=7, ignorable=True),
    Field("session_id", "int32", since=7),
    Field("responses", Array(FETCHABLE_TOPIC_RESPONSE)),
    Field(
        "node_endpoints",
        Array(NODE_ENDPOINT),
        since=16,
        tag=0,
        tag_since=16,
        doc="addresses of the leaders named in current_leader",
    ),
)

FETCH = api(1, "Fetch", FETCH_REQUEST, FETCH_RESPONSE, "4-18", "12+", Route.LEADER)

FIRST_WITH_ISOLATION_LEVEL = 4
FIRST_WITH_SESSIONS = 7
LAST_WITH_TOPIC_NAMES = 12
