"""ElectLeaders (key 43): elects the preferred replica, or an unclean one, as leader of partitions."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

TOPIC_PARTITIONS = Struct(Field("topic", "string"), Field("partitions", Array("int32")))

ELECT_LEADERS_REQUEST = Struct(
    Field("election_type", "int8", since=1),
    Field("topic_partitions", Array(TOPIC_PARTITIONS), nullable_since=0),
    Field("timeout_ms", "int32", default=60000),
)

PARTITION_RESULT = Struct(
    Field("partition_id", "int32"), Field("error_code", "int16"), Field("error_message", "string", nullable_since=0)
)

REPLICA_ELECTION_RESULT = Struct(Field("topic", "string"), Field("partition_result", Array(PARTITION_RESULT)))

ELECT_LEADERS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16", since=1),
    Field("replica_election_results", Array(REPLICA_ELECTION_RESULT)),
)

ELECT_LEADERS = api(43, "ElectLeaders", ELECT_LEADERS_REQUEST, ELECT_LEADERS_RESPONSE, "0-2", "2+", Route.CONTROLLER)
