"""JoinGroup (key 11): a member joins a classic group, or its new generation.

The broker responds when all members have joined, which may take up to the rebalance timeout.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

JOIN_GROUP_REQUEST_PROTOCOL = Struct(
    Field("name", "string", doc="an assignment strategy"),
    Field("metadata", "bytes", doc="for consumers: an encoded subscription"),
)

JOIN_GROUP_REQUEST = Struct(
    Field("group_id", "string"),
    Field("session_timeout_ms", "int32", doc="a member without a heartbeat for this time is removed"),
    Field(
        "rebalance_timeout_ms",
        "int32",
        since=1,
        default=-1,
        ignorable=True,
        doc="time limit for this member to rejoin in a rebalance",
    ),
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=5, nullable_since=5, default=None),
    Field("protocol_type", "string"),
    Field("protocols", Array(JOIN_GROUP_REQUEST_PROTOCOL)),
    Field("reason", "string", since=8, nullable_since=8, default=None, ignorable=True),
)

JOIN_GROUP_RESPONSE_MEMBER = Struct(
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("metadata", "bytes"),
)

JOIN_GROUP_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=2, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("generation_id", "int32", default=-1),
    Field("protocol_type", "string", since=7, nullable_since=7, default=None, ignorable=True),
    Field("protocol_name", "string", nullable_since=7),
    Field("leader", "string"),
    Field("skip_assignment", "bool", since=9, doc="a static leader rejoined: the assignment is kept"),
    Field("member_id", "string"),
    Field("members", Array(JOIN_GROUP_RESPONSE_MEMBER), doc="only for the leader"),
)

JOIN_GROUP = api(11, "JoinGroup", JOIN_GROUP_REQUEST, JOIN_GROUP_RESPONSE, "0-9", "6+", Route.GROUP)
