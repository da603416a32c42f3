"""Produce (key 0): sends record batches to the leader of their partitions. With acks=0 there is no response.

Version 12 is the first that adds partitions to a transaction implicitly (KIP-890). Version 13 identifies topics by id.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

PARTITION_PRODUCE_DATA = Struct(
    Field("index", "int32"), Field("records", "records", nullable_since=0, doc="record batches")
)

TOPIC_PRODUCE_DATA = Struct(
    Field("name", "string", until=12, ignorable=True),
    Field("topic_id", "uuid", since=13, ignorable=True),
    Field("partition_data", Array(PARTITION_PRODUCE_DATA)),
)

PRODUCE_REQUEST = Struct(
    Field("transactional_id", "string", nullable_since=3, default=None),
    Field("acks", "int16", doc="0: no response, 1: the leader has written it, -1: all in-sync replicas have"),
    Field("timeout_ms", "int32", doc="time limit for replication before the leader responds"),
    Field("topic_data", Array(TOPIC_PRODUCE_DATA)),
)

BATCH_INDEX_AND_ERROR_MESSAGE = Struct(
    Field("batch_index", "int32", doc="index of the record in its batch"),
    Field("batch_index_error_message", "string", nullable_since=8, default=None),
)

LEADER_ID_AND_EPOCH = Struct(Field("leader_id", "int32", default=-1), Field("leader_epoch", "int32", default=-1))

PARTITION_PRODUCE_RESPONSE = Struct(
    Field("index", "int32"),
    Field("error_code", "int16"),
    Field("base_offset", "int64", doc="offset of the first record; -1 if unknown"),
    Field("log_append_time_ms", "int64", default=-1, doc="-1 unless the topic has LogAppendTime"),
    Field("log_start_offset", "int64", since=5, default=-1, ignorable=True),
    Field("record_errors", Array(BATCH_INDEX_AND_ERROR_MESSAGE), since=8, ignorable=True),
    Field("error_message", "string", since=8, nullable_since=8, default=None, ignorable=True),
    Field("current_leader", LEADER_ID_AND_EPOCH, since=10, tag=0, tag_since=10, doc="set if the leader has moved"),
)

TOPIC_PRODUCE_RESPONSE = Struct(
    Field("name", "string", until=12, ignorable=True),
    Field("topic_id", "uuid", since=13, ignorable=True),
    Field("partition_responses", Array(PARTITION_PRODUCE_RESPONSE)),
)

NODE_ENDPOINT = Struct(
    Field("node_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("rack", "string", nullable_since=10, default=None),
)

PRODUCE_RESPONSE = Struct(
    Field("responses", Array(TOPIC_PRODUCE_RESPONSE)),
    THROTTLE_TIME,
    Field("node_endpoints", Array(NODE_ENDPOINT), since=10, tag=0, tag_since=10),
)

PRODUCE = api(0, "Produce", PRODUCE_REQUEST, PRODUCE_RESPONSE, "3-13", "9+", Route.LEADER)

LAST_BEFORE_TRANSACTION_V2 = 11
"""The last version for transactions on clusters with `transaction.version` below 2."""

LAST_WITH_TOPIC_NAMES = 12
