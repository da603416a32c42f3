"""OffsetDelete (key 47): deletes committed offsets of a group for partitions without an active subscription."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

OFFSET_DELETE_REQUEST_PARTITION = Struct(Field("partition_index", "int32"))

OFFSET_DELETE_REQUEST_TOPIC = Struct(
    Field("name", "string"), Field("partitions", Array(OFFSET_DELETE_REQUEST_PARTITION))
)

OFFSET_DELETE_REQUEST = Struct(Field("group_id", "string"), Field("topics", Array(OFFSET_DELETE_REQUEST_TOPIC)))

OFFSET_DELETE_RESPONSE_PARTITION = Struct(Field("partition_index", "int32"), Field("error_code", "int16"))

OFFSET_DELETE_RESPONSE_TOPIC = Struct(
    Field("name", "string"), Field("partitions", Array(OFFSET_DELETE_RESPONSE_PARTITION))
)

OFFSET_DELETE_RESPONSE = Struct(
    Field("error_code", "int16"), THROTTLE_TIME, Field("topics", Array(OFFSET_DELETE_RESPONSE_TOPIC))
)

OFFSET_DELETE = api(47, "OffsetDelete", OFFSET_DELETE_REQUEST, OFFSET_DELETE_RESPONSE, "0", "none", Route.GROUP)
