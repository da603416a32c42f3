"""OffsetDelete (key 47): deletes committed offsets of a group for partitions without an active subscription."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

OFFSET_DELETE_REQUEST_PARTITION = Struct(
    Field("partition_index", "int32"),
)

OFFSET_DELETE_REQUEST_TOPIC = Struct(
    Field("name", "string"),
    Field("partitions", Array(OFFSET_DELETE_REQUEST_PARTITION)),
)

OFFSET_DELETE_REQUEST = Struct(
    Field("group_id", "string"),
    Field("topics", Array(OFFSET_DELETE_REQUEST_TOPIC)),
)

OFFSET_DELETE_RESPONSE_PARTITION = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
)

OFFSET_DELETE_RESPONSE_TOPIC = Struct(
    Field("name", "string"),
    Field("partitions", Array(OFFSET_DELETE_RESPONSE_PARTITION)),
)

OFFSET_DELETE_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("topics", Array(OFFSET_DELETE_RESPONSE_TOPIC)),
)

OFFSET_DELETE = Api(
    key=47,
    name="OffsetDelete",
    request=OFFSET_DELETE_REQUEST,
    response=OFFSET_DELETE_RESPONSE,
    first=0,
    last=0,
    flexible_since=None,
    route=Route.GROUP,
)
