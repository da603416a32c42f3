"""CreatePartitions (key 37): adds partitions to topics."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

CREATE_PARTITIONS_ASSIGNMENT = Struct(Field("broker_ids", Array("int32")))

CREATE_PARTITIONS_TOPIC = Struct(
    Field("name", "string"),
    Field("count", "int32", doc="the new number of partitions"),
    Field("assignments", Array(CREATE_PARTITIONS_ASSIGNMENT), nullable_since=0),
)

CREATE_PARTITIONS_REQUEST = Struct(
    Field("topics", Array(CREATE_PARTITIONS_TOPIC)), Field("timeout_ms", "int32"), Field("validate_only", "bool")
)

CREATE_PARTITIONS_TOPIC_RESULT = Struct(
    Field("name", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0, default=None),
)

CREATE_PARTITIONS_RESPONSE = Struct(THROTTLE_TIME, Field("results", Array(CREATE_PARTITIONS_TOPIC_RESULT)))

CREATE_PARTITIONS = api(
    37, "CreatePartitions", CREATE_PARTITIONS_REQUEST, CREATE_PARTITIONS_RESPONSE, "0-3", "2+", Route.CONTROLLER
)
