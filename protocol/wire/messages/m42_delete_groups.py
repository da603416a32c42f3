"""DeleteGroups (key 42): deletes groups that have no members. Version 3 adds the broker's error message."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DELETE_GROUPS_REQUEST = Struct(Field("groups_names", Array("string")))

DELETABLE_GROUP_RESULT = Struct(
    Field("group_id", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", since=3, nullable_since=3, default=None, ignorable=True),
)

DELETE_GROUPS_RESPONSE = Struct(THROTTLE_TIME, Field("results", Array(DELETABLE_GROUP_RESULT)))

DELETE_GROUPS = api(
    42,
    "DeleteGroups",
    DELETE_GROUPS_REQUEST,
    DELETE_GROUPS_RESPONSE,
    "0-3",
    "2+",
    Route.GROUP,
    coordinator_key_field="groups_names",
)
