"""Heartbeat (key 12): a member of a classic group keeps its session alive, and learns of a rebalance."""

from __future__ import annotations

from protocol.wire.schema import Api, Field, Route, Struct

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

HEARTBEAT = Api(
    key=12,
    name="Heartbeat",
    request=HEARTBEAT_REQUEST,
    response=HEARTBEAT_RESPONSE,
    first=0,
    last=4,
    flexible_since=4,
    route=Route.GROUP,
)
