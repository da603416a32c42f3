"""Heartbeat (key 12): a member of a classic group keeps its session alive, and learns of a rebalance."""

from __future__ import annotations

from protocol.wire.schema import Field, Route, Struct, api

HEARTBEAT_REQUEST = Struct(
    Field("group_id", "string"),
    Field("generation_id", "int32"),
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=3, nullable_since=3, default=None),
)

HEARTBEAT_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
)

HEARTBEAT = api(12, "Heartbeat", HEARTBEAT_REQUEST, HEARTBEAT_RESPONSE, "0-4", "4+", Route.GROUP)
