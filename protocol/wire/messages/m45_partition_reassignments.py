"""AlterPartitionReassignments and ListPartitionReassignments (keys 45, 46): move replicas between brokers."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

REASSIGNABLE_PARTITION = Struct(
    Field("partition_index", "int32"), Field("replicas", Array("int32"), nullable_since=0, default=None)
)

REASSIGNABLE_TOPIC = Struct(Field("name", "string"), Field("partitions", Array(REASSIGNABLE_PARTITION)))

ALTER_PARTITION_REASSIGNMENTS_REQUEST = Struct(
    Field("timeout_ms", "int32", default=60000),
    Field("allow_replication_factor_change", "bool", since=1, default=True),
    Field("topics", Array(REASSIGNABLE_TOPIC)),
)

REASSIGNABLE_PARTITION_RESPONSE = Struct(
    Field("partition_index", "int32"), Field("error_code", "int16"), Field("error_message", "string", nullable_since=0)
)

REASSIGNABLE_TOPIC_RESPONSE = Struct(
    Field("name", "string"), Field("partitions", Array(REASSIGNABLE_PARTITION_RESPONSE))
)

ALTER_PARTITION_REASSIGNMENTS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("allow_replication_factor_change", "bool", since=1, default=True, ignorable=True),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("responses", Array(REASSIGNABLE_TOPIC_RESPONSE)),
)

ALTER_PARTITION_REASSIGNMENTS = api(
    45,
    "AlterPartitionReassignments",
    ALTER_PARTITION_REASSIGNMENTS_REQUEST,
    ALTER_PARTITION_REASSIGNMENTS_RESPONSE,
    "0-1",
    "0+",
    Route.CONTROLLER,
)

LIST_PARTITION_REASSIGNMENTS_TOPICS = Struct(Field("name", "string"), Field("partition_indexes", Array("int32")))

LIST_PARTITION_REASSIGNMENTS_REQUEST = Struct(
    Field("timeout_ms", "int32", default=60000),
    Field("topics", Array(LIST_PARTITION_REASSIGNMENTS_TOPICS), nullable_since=0, default=None),
)

ONGOING_PARTITION_REASSIGNMENT = Struct(
    Field("partition_index", "int32"),
    Field("replicas", Array("int32")),
    Field("adding_replicas", Array("int32")),
    Field("removing_replicas", Array("int32")),
)

ONGOING_TOPIC_REASSIGNMENT = Struct(Field("name", "string"), Field("partitions", Array(ONGOING_PARTITION_REASSIGNMENT)))

LIST_PARTITION_REASSIGNMENTS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("topics", Array(ONGOING_TOPIC_REASSIGNMENT)),
)

LIST_PARTITION_REASSIGNMENTS = api(
    46,
    "ListPartitionReassignments",
    LIST_PARTITION_REASSIGNMENTS_REQUEST,
    LIST_PARTITION_REASSIGNMENTS_RESPONSE,
    "0",
    "0+",
    Route.CONTROLLER,
)
