"""DescribeGroups (key 15): returns state and members of classic groups.

Version 6 reports a group that does not exist (GROUP_ID_NOT_FOUND).
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

DESCRIBE_GROUPS_REQUEST = Struct(
    Field("groups", Array("string")), Field("include_authorized_operations", "bool", since=3)
)

DESCRIBED_GROUP_MEMBER = Struct(
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=4, nullable_since=4, default=None, ignorable=True),
    Field("client_id", "string"),
    Field("client_host", "string"),
    Field("member_metadata", "bytes"),
    Field("member_assignment", "bytes"),
)

DESCRIBED_GROUP = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", since=6, nullable_since=6, default=None),
    Field("group_id", "string"),
    Field("group_state", "string"),
    Field("protocol_type", "string"),
    Field("protocol_data", "string"),
    Field("members", Array(DESCRIBED_GROUP_MEMBER)),
    Field("authorized_operations", "int32", since=3, default=-(2**31)),
)

DESCRIBE_GROUPS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("groups", Array(DESCRIBED_GROUP)),
)

DESCRIBE_GROUPS = api(
    15,
    "DescribeGroups",
    DESCRIBE_GROUPS_REQUEST,
    DESCRIBE_GROUPS_RESPONSE,
    "0-6",
    "5+",
    Route.GROUP,
    coordinator_key_field="groups",
)
