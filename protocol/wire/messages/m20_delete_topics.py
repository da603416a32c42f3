"""DeleteTopics (key 20): deletes topics, by name (`topic_names`) up to version 5, by name or id (`topics`) from 6."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DELETE_TOPIC_STATE = Struct(Field("name", "string", nullable_since=6, default=None), Field("topic_id", "uuid"))

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

DELETE_TOPICS_RESPONSE = Struct(THROTTLE_TIME, Field("responses", Array(DELETABLE_TOPIC_RESULT)))

DELETE_TOPICS = api(20, "DeleteTopics", DELETE_TOPICS_REQUEST, DELETE_TOPICS_RESPONSE, "1-6", "4+", Route.CONTROLLER)
