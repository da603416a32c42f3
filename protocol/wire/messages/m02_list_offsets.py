"""ListOffsets (key 2): returns the first, last or time-indexed offset of partitions."""

from __future__ import annotations

from protocol.kafka_terms import EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD, LATEST_TIERED, MAX_TIMESTAMP
from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

LIST_OFFSETS_PARTITION = Struct(
    Field("partition_index", "int32"),
    Field("current_leader_epoch", "int32", since=4, default=-1, ignorable=True),
    Field("timestamp", "int64", doc="ms since 1970, or EARLIEST, LATEST, … of `kafka_terms`"),
)

LIST_OFFSETS_TOPIC = Struct(Field("name", "string"), Field("partitions", Array(LIST_OFFSETS_PARTITION)))

LIST_OFFSETS_REQUEST = Struct(
    Field("replica_id", "int32", default=-1, doc="-1: a client"),
    Field("isolation_level", "int8", doc="0 read_uncommitted, 1 read_committed"),
    Field("topics", Array(LIST_OFFSETS_TOPIC)),
    Field("timeout_ms", "int32", since=10, ignorable=True, doc="time limit for reads from tiered storage"),
)

LIST_OFFSETS_PARTITION_RESPONSE = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
    Field("timestamp", "int64", default=-1, doc="ms since 1970; -1 if unknown"),
    Field("offset", "int64", default=-1, doc="-1: no such record"),
    Field("leader_epoch", "int32", since=4, default=-1),
)

LIST_OFFSETS_TOPIC_RESPONSE = Struct(
    Field("name", "string"), Field("partitions", Array(LIST_OFFSETS_PARTITION_RESPONSE))
)

LIST_OFFSETS_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(LIST_OFFSETS_TOPIC_RESPONSE)))

LIST_OFFSETS = api(2, "ListOffsets", LIST_OFFSETS_REQUEST, LIST_OFFSETS_RESPONSE, "2-11", "6+", Route.LEADER)

FIRST_WITH_TIMESTAMP = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""First version that understands a negative timestamp; all understand `EARLIEST` and `LATEST`."""
