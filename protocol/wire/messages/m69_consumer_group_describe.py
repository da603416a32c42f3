"""ConsumerGroupDescribe (key 69): returns state and members of groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

CONSUMER_GROUP_DESCRIBE_REQUEST = Struct(
    Field("group_ids", Array("string")), Field("include_authorized_operations", "bool")
)

TOPIC_PARTITIONS = Struct(Field("topic_id", "uuid"), Field("topic_name", "string"), Field("partitions", Array("int32")))

ASSIGNMENT = Struct(Field("topic_partitions", Array(TOPIC_PARTITIONS)))

MEMBER = Struct(
    Field("member_id", "string"),
    Field("instance_id", "string", nullable_since=0, default=None),
    Field("rack_id", "string", nullable_since=0, default=None),
    Field("member_epoch", "int32"),
    Field("client_id", "string"),
    Field("client_host", "string"),
    Field("subscribed_topic_names", Array("string")),
    Field("subscribed_topic_regex", "string", nullable_since=0, default=None),
    Field("assignment", ASSIGNMENT),
    Field("target_assignment", ASSIGNMENT),
    Field("member_type", "int8", since=1, default=-1, ignorable=True, doc="-1 unknown, 0 classic, 1 consumer"),
)

DESCRIBED_GROUP = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0, default=None),
    Field("group_id", "string"),
    Field("group_state", "string"),
    Field("group_epoch", "int32"),
    Field("assignment_epoch", "int32"),
    Field("assignor_name", "string"),
    Field("members", Array(MEMBER)),
    Field("authorized_operations", "int32", default=-(2**31)),
)

CONSUMER_GROUP_DESCRIBE_RESPONSE = Struct(THROTTLE_TIME, Field("groups", Array(DESCRIBED_GROUP)))

CONSUMER_GROUP_DESCRIBE = api(
    69,
    "ConsumerGroupDescribe",
    CONSUMER_GROUP_DESCRIBE_REQUEST,
    CONSUMER_GROUP_DESCRIBE_RESPONSE,
    "0-1",
    "0+",
    Route.GROUP,
    coordinator_key_field="group_ids",
)
