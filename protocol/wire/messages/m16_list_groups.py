"""ListGroups (key 16): returns the groups that a broker coordinates; send it to every broker to list all groups."""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

LIST_GROUPS_REQUEST = Struct(
    Field("states_filter", Array("string"), since=4), Field("types_filter", Array("string"), since=5)
)

LISTED_GROUP = Struct(
    Field("group_id", "string"),
    Field("protocol_type", "string"),
    Field("group_state", "string", since=4, ignorable=True),
    Field("group_type", "string", since=5, ignorable=True),
)

LIST_GROUPS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("groups", Array(LISTED_GROUP)),
)

LIST_GROUPS = api(16, "ListGroups", LIST_GROUPS_REQUEST, LIST_GROUPS_RESPONSE, "0-5", "3+", Route.BROKER)
