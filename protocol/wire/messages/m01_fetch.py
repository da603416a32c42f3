"""Fetch (key 1): TODO"""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

REPLICA_STATE = Struct(
    Field("replica_id", "int32", default=-1),
    Field("replica_epoch", "int64", default=-1),
)

FETCH_PARTITION = Struct(
    Field("partition", "int32"),
    Field("current_leader_epoch", "int32", since=9, default=-1, ignorable=True),
    Field("fetch_offset", "int64"),
    Field("last_fetched_epoch", "int32", since=12, default=-1),
    Field("log_start_offset", "int64", since=5, default=-1, ignorable=True),
    Field("partition_max_bytes", "int32"),
    Field("replica_directory_id", "uuid", since=17, tag=0, tag_since=17, ignorable=True),
    Field("high_watermark", "int64", since=18, default=2**63 - 1, tag=1, tag_since=18, ignorable=True),
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
    Field("max_wait_ms", "int32"),
    Field("min_bytes", "int32"),
    Field("max_bytes", "int32", default=2**31 - 1),
    Field("isolation_level", "int8"),
    Field("session_id", "int32", since=7, ignorable=True),
    Field("session_epoch", "int32", since=7, default=-1, ignorable=True),
    Field("topics", Array(FETCH_TOPIC)),
    Field("forgotten_topics_data", Array(FORGOTTEN_TOPIC), since=7),
    Field("rack_id", "string", since=11, ignorable=True),
)

EPOCH_END_OFFSET = Struct(
    Field("epoch", "int32", default=-1),
    Field("end_offset", "int64", default=-1),
)

LEADER_ID_AND_EPOCH = Struct(
    Field("leader_id", "int32", default=-1),
    Field("leader_epoch", "int32", default=-1),
)

SNAPSHOT_ID = Struct(
    Field("end_offset", "int64", default=-1),
    Field("epoch", "int32", default=-1),
)

ABORTED_TRANSACTION = Struct(
    Field("producer_id", "int64"),
    Field("first_offset", "int64"),
)

PARTITION_DATA = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
    Field("high_watermark", "int64"),
    Field("last_stable_offset", "int64", default=-1),
    Field("log_start_offset", "int64", since=5, default=-1, ignorable=True),
    Field("diverging_epoch", EPOCH_END_OFFSET, since=12, tag=0, tag_since=12),
    Field("current_leader", LEADER_ID_AND_EPOCH, since=12, tag=1, tag_since=12),
    Field("snapshot_id", SNAPSHOT_ID, since=12, tag=2, tag_since=12),
    Field("aborted_transactions", Array(ABORTED_TRANSACTION), nullable_since=4),
    Field("preferred_read_replica", "int32", since=11, default=-1),
    Field("records", "records", nullable_since=0),
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
    Field("throttle_time_ms", "int32"),
    Field("error_code", "int16", since=7, ignorable=True),
    Field("session_id", "int32", since=7),
    Field("responses", Array(FETCHABLE_TOPIC_RESPONSE)),
    Field("node_endpoints", Array(NODE_ENDPOINT), since=16, tag=0, tag_since=16),
)

FETCH = Api(
    key=1,
    name="Fetch",
    request=FETCH_REQUEST,
    response=FETCH_RESPONSE,
    first=4,
    last=18,
    flexible_since=12,
    route=Route.LEADER,
    long_poll=True,
)
