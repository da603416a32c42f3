"""LeaveGroup (key 13): members leave a classic group. Version 3 adds several members per request (`members`)."""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

MEMBER_IDENTITY = Struct(
    Field("member_id", "string"),
    Field("group_instance_id", "string", nullable_since=3, default=None),
    Field("reason", "string", since=5, nullable_since=5, default=None, ignorable=True),
)

LEAVE_GROUP_REQUEST = Struct(
    Field("group_id", "string"),
    Field("member_id", "string", until=2),
    Field("members", Array(MEMBER_IDENTITY), since=3),
)

MEMBER_RESPONSE = Struct(
    Field("member_id", "string"), Field("group_instance_id", "string", nullable_since=3), Field("error_code", "int16")
)

LEAVE_GROUP_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("members", Array(MEMBER_RESPONSE), since=3),
)

LEAVE_GROUP = api(13, "LeaveGroup", LEAVE_GROUP_REQUEST, LEAVE_GROUP_RESPONSE, "0-5", "4+", Route.GROUP)
