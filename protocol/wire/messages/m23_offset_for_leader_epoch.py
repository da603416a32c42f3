"""OffsetForLeaderEpoch (key 23): returns the end offset of a leader epoch.

Detects a log that was truncated below the reader's offset.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

OFFSET_FOR_LEADER_PARTITION = Struct(
    Field("partition", "int32"), Field("current_leader_epoch", "int32", default=-1), Field("leader_epoch", "int32")
)

OFFSET_FOR_LEADER_TOPIC = Struct(Field("topic", "string"), Field("partitions", Array(OFFSET_FOR_LEADER_PARTITION)))

OFFSET_FOR_LEADER_EPOCH_REQUEST = Struct(
    Field("replica_id", "int32", since=3, default=-2, ignorable=True, doc="-1: a client; -2: a debugging client"),
    Field("topics", Array(OFFSET_FOR_LEADER_TOPIC)),
)

EPOCH_END_OFFSET = Struct(
    Field("error_code", "int16"),
    Field("partition", "int32"),
    Field("leader_epoch", "int32", default=-1),
    Field("end_offset", "int64", default=-1, doc="-1: unknown"),
)

OFFSET_FOR_LEADER_TOPIC_RESULT = Struct(Field("topic", "string"), Field("partitions", Array(EPOCH_END_OFFSET)))

OFFSET_FOR_LEADER_EPOCH_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(OFFSET_FOR_LEADER_TOPIC_RESULT)))

OFFSET_FOR_LEADER_EPOCH = api(
    23,
    "OffsetForLeaderEpoch",
    OFFSET_FOR_LEADER_EPOCH_REQUEST,
    OFFSET_FOR_LEADER_EPOCH_RESPONSE,
    "2-4",
    "4+",
    Route.LEADER,
)
