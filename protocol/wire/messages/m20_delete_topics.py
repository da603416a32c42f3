"""DeleteTopics (key 20): deletes topics, by name (`topic_names`) up to version 5, by name or id (`topics`) from 6."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

DELETE_TOPIC_STATE = Struct(
    Field("name", "string", nullable_since=6, default=None),
    Field("topic_id", "uuid"),
)

DELETE_TOPICS_REQUEST = Struct(
    Field("topics", Array(DELETE_TOPIC_STATE), since=6),
    Field("topic_names", Array("string"), until=5, ignorable=True),
    Field("timeout_ms", "int32"),
)

DELETABLE_TOPIC_RESULT = Struct(
    Field("name", "string", nullable_since=6),
    Field("topic_id", "uuid", since=6, ignorable=True),
    Field("error_code", "int16"),
    Field("error_message", "string", since=5, nullable_since=5, default=None, ignorable=True),
)

DELETE_TOPICS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("responses", Array(DELETABLE_TOPIC_RESULT)),
)

DELETE_TOPICS = Api(
    key=20,
    name="DeleteTopics",
    request=DELETE_TOPICS_REQUEST,
    response=DELETE_TOPICS_RESPONSE,
    first=1,
    last=6,
    flexible_since=4,
    route=Route.CONTROLLER,
)
