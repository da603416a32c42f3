"""SyncGroup (key 14): the leader of a classic group sends the assignments, and every member receives its own.

The broker responds when the leader has sent them.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

SYNC_GROUP_REQUEST_ASSIGNMENT = Struct(Field("member_id", "string"), Field("assignment", "bytes"))

SYNC_GROUP_REQUEST = Struct(
    Field("group_id", "string"),
    Field("generation_id", "int32"),
    Field("member_id", "string"),
    Field("group_instance_id", "string", since=3, nullable_since=3, default=None),
    Field("protocol_type", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("protocol_name", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("assignments", Array(SYNC_GROUP_REQUEST_ASSIGNMENT), doc="only from the leader"),
)

SYNC_GROUP_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("protocol_type", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("protocol_name", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("assignment", "bytes"),
)

SYNC_GROUP = api(14, "SyncGroup", SYNC_GROUP_REQUEST, SYNC_GROUP_RESPONSE, "0-5", "4+", Route.GROUP)
