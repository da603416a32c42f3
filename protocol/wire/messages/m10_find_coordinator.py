"""FindCoordinator (key 10): returns the coordinator of a group or a transactional id.

Version 4 adds requests for several keys (`coordinator_keys`, `coordinators`).
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

FIND_COORDINATOR_REQUEST = Struct(
    Field("key", "string", until=3),
    Field("key_type", "int8", since=1, doc="0 group, 1 transactional id, 2 share group"),
    Field("coordinator_keys", Array("string"), since=4),
)

COORDINATOR = Struct(
    Field("key", "string"),
    Field("node_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=4),
)

FIND_COORDINATOR_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("error_code", "int16", until=3),
    Field("error_message", "string", since=1, until=3, nullable_since=1, ignorable=True),
    Field("node_id", "int32", until=3),
    Field("host", "string", until=3),
    Field("port", "int32", until=3),
    Field("coordinators", Array(COORDINATOR), since=4),
)

FIND_COORDINATOR = api(
    10, "FindCoordinator", FIND_COORDINATOR_REQUEST, FIND_COORDINATOR_RESPONSE, "0-6", "3+", Route.ANY
)

GROUP = 0
TRANSACTION = 1
