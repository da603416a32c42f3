"""DeleteGroups (key 42): deletes groups that have no members. Version 3 adds the broker's error message."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

DELETE_GROUPS_REQUEST = Struct(
    Field("groups_names", Array("string")),
)

DELETABLE_GROUP_RESULT = Struct(
    Field("group_id", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", since=3, nullable_since=3, default=None, ignorable=True),
)

DELETE_GROUPS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("results", Array(DELETABLE_GROUP_RESULT)),
)

DELETE_GROUPS = Api(
    key=42,
    name="DeleteGroups",
    request=DELETE_GROUPS_REQUEST,
    response=DELETE_GROUPS_RESPONSE,
    first=0,
    last=3,
    flexible_since=2,
    route=Route.GROUP,
    coordinator_key_field="groups_names",
)
