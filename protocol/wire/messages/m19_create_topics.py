"""CreateTopics (key 19): creates topics."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

CREATABLE_REPLICA_ASSIGNMENT = Struct(Field("partition_index", "int32"), Field("broker_ids", Array("int32")))

CREATABLE_TOPIC_CONFIG = Struct(Field("name", "string"), Field("value", "string", nullable_since=0))

CREATABLE_TOPIC = Struct(
    Field("name", "string"),
    Field("num_partitions", "int32", doc="-1: the broker's default, or as in assignments"),
    Field("replication_factor", "int16", doc="-1: the broker's default, or as in assignments"),
    Field("assignments", Array(CREATABLE_REPLICA_ASSIGNMENT)),
    Field("configs", Array(CREATABLE_TOPIC_CONFIG)),
)

CREATE_TOPICS_REQUEST = Struct(
    Field("topics", Array(CREATABLE_TOPIC)), Field("timeout_ms", "int32", default=60000), Field("validate_only", "bool")
)

CREATABLE_TOPIC_CONFIGS = Struct(
    Field("name", "string"),
    Field("value", "string", nullable_since=5),
    Field("read_only", "bool"),
    Field("config_source", "int8", default=-1),
    Field("is_sensitive", "bool"),
)

CREATABLE_TOPIC_RESULT = Struct(
    Field("name", "string"),
    Field("topic_id", "uuid", since=7, ignorable=True),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("topic_config_error_code", "int16", since=5, tag=0, tag_since=5, ignorable=True),
    Field("num_partitions", "int32", since=5, default=-1, ignorable=True),
    Field("replication_factor", "int16", since=5, default=-1, ignorable=True),
    Field("configs", Array(CREATABLE_TOPIC_CONFIGS), since=5, nullable_since=5, ignorable=True),
)

CREATE_TOPICS_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(CREATABLE_TOPIC_RESULT)))

CREATE_TOPICS = api(19, "CreateTopics", CREATE_TOPICS_REQUEST, CREATE_TOPICS_RESPONSE, "2-7", "5+", Route.CONTROLLER)
