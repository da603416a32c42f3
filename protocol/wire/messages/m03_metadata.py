"""Metadata (key 3): returns brokers, the controller, and topics with partitions, leaders and replicas.

Version 10 adds topic ids to the response, 12 to the request. `topics=None` requests all topics, `[]` none (version 0:
`[]` requests all). Versions 8 to 10 have cluster operations.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

METADATA_REQUEST_TOPIC = Struct(
    Field("topic_id", "uuid", since=10, ignorable=True), Field("name", "string", nullable_since=10)
)

METADATA_REQUEST = Struct(
    Field("topics", Array(METADATA_REQUEST_TOPIC), nullable_since=1),
    Field("allow_auto_topic_creation", "bool", since=4, default=True),
    Field("include_cluster_authorized_operations", "bool", since=8, until=10),
    Field("include_topic_authorized_operations", "bool", since=8),
)

METADATA_RESPONSE_BROKER = Struct(
    Field("node_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("rack", "string", since=1, nullable_since=1, default=None, ignorable=True),
)

METADATA_RESPONSE_PARTITION = Struct(
    Field("error_code", "int16"),
    Field("partition_index", "int32"),
    Field("leader_id", "int32"),
    Field("leader_epoch", "int32", since=7, default=-1, ignorable=True),
    Field("replica_nodes", Array("int32")),
    Field("isr_nodes", Array("int32")),
    Field("offline_replicas", Array("int32"), since=5, ignorable=True),
)

METADATA_RESPONSE_TOPIC = Struct(
    Field("error_code", "int16"),
    Field("name", "string", nullable_since=12),
    Field("topic_id", "uuid", since=10, ignorable=True),
    Field("is_internal", "bool", since=1, ignorable=True),
    Field("partitions", Array(METADATA_RESPONSE_PARTITION)),
    Field("topic_authorized_operations", "int32", since=8, default=-(2**31)),
)

METADATA_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=3, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("brokers", Array(METADATA_RESPONSE_BROKER)),
    Field("cluster_id", "string", since=2, nullable_since=2, default=None, ignorable=True),
    Field("controller_id", "int32", since=1, default=-1, ignorable=True),
    Field("topics", Array(METADATA_RESPONSE_TOPIC)),
    Field("cluster_authorized_operations", "int32", since=8, until=10, default=-(2**31)),
    Field("error_code", "int16", since=13, ignorable=True),
)

METADATA = api(3, "Metadata", METADATA_REQUEST, METADATA_RESPONSE, "0-13", "9+", Route.ANY)

FIRST_WITH_ALLOW_AUTO_TOPIC_CREATION = 4
