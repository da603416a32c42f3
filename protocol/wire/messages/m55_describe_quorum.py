"""DescribeQuorum (key 55): the KRaft quorum of the cluster's metadata log (KIP-595)."""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

PARTITION_DATA = Struct(Field("partition_index", "int32"))

TOPIC_DATA = Struct(Field("topic_name", "string"), Field("partitions", Array(PARTITION_DATA)))

DESCRIBE_QUORUM_REQUEST = Struct(Field("topics", Array(TOPIC_DATA)))

REPLICA_STATE = Struct(
    Field("replica_id", "int32"),
    Field("replica_directory_id", "uuid", since=2),
    Field("log_end_offset", "int64"),
    Field("last_fetch_timestamp", "int64", since=1, default=-1, ignorable=True),
    Field("last_caught_up_timestamp", "int64", since=1, default=-1, ignorable=True),
)

DESCRIBE_QUORUM_PARTITION_DATA = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
    Field("error_message", "string", since=2, nullable_since=2, ignorable=True),
    Field("leader_id", "int32"),
    Field("leader_epoch", "int32"),
    Field("high_watermark", "int64"),
    Field("current_voters", Array(REPLICA_STATE)),
    Field("observers", Array(REPLICA_STATE)),
)

DESCRIBE_QUORUM_TOPIC_DATA = Struct(
    Field("topic_name", "string"), Field("partitions", Array(DESCRIBE_QUORUM_PARTITION_DATA))
)

LISTENER = Struct(Field("name", "string", since=2), Field("host", "string", since=2), Field("port", "uint16", since=2))

NODE = Struct(Field("node_id", "int32", since=2), Field("listeners", Array(LISTENER), since=2))

DESCRIBE_QUORUM_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", since=2, nullable_since=2, ignorable=True),
    Field("topics", Array(DESCRIBE_QUORUM_TOPIC_DATA)),
    Field("nodes", Array(NODE), since=2),
)

DESCRIBE_QUORUM = api(55, "DescribeQuorum", DESCRIBE_QUORUM_REQUEST, DESCRIBE_QUORUM_RESPONSE, "0-2", "0+", Route.ANY)
