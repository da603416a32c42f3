"""ConsumerGroupHeartbeat (key 68): a member joins, stays in or leaves a group of the consumer protocol (KIP-848).

Nullable request fields may be None if unchanged since the last heartbeat. A response without `assignment` does not
change the assignment.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

TOPIC_PARTITIONS = Struct(Field("topic_id", "uuid"), Field("partitions", Array("int32")))

CONSUMER_GROUP_HEARTBEAT_REQUEST = Struct(
    Field("group_id", "string"),
    Field("member_id", "string"),
    Field("member_epoch", "int32", doc="0: join; -1: leave; -2: a static member leaves temporarily"),
    Field("instance_id", "string", nullable_since=0, default=None),
    Field("rack_id", "string", nullable_since=0, default=None),
    Field("rebalance_timeout_ms", "int32", default=-1, doc="-1: unchanged"),
    Field("subscribed_topic_names", Array("string"), nullable_since=0, default=None),
    Field("subscribed_topic_regex", "string", since=1, nullable_since=1, default=None, doc="RE2 syntax"),
    Field("server_assignor", "string", nullable_since=0, default=None),
    Field(
        "topic_partitions",
        Array(TOPIC_PARTITIONS),
        nullable_since=0,
        default=None,
        doc="partitions that the member owns",
    ),
)

ASSIGNMENT = Struct(Field("topic_partitions", Array(TOPIC_PARTITIONS)))

CONSUMER_GROUP_HEARTBEAT_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0, default=None),
    Field("member_id", "string", nullable_since=0, default=None),
    Field("member_epoch", "int32"),
    Field("heartbeat_interval_ms", "int32"),
    Field("assignment", ASSIGNMENT, nullable_since=0, default=None),
)

CONSUMER_GROUP_HEARTBEAT = api(
    68,
    "ConsumerGroupHeartbeat",
    CONSUMER_GROUP_HEARTBEAT_REQUEST,
    CONSUMER_GROUP_HEARTBEAT_RESPONSE,
    "0-1",
    "0+",
    Route.GROUP,
)

FIRST_WITH_REGEX = 1
