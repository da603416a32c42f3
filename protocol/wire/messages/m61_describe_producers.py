"""DescribeProducers (key 61): returns the idempotent and transactional producers of partitions.

Used to find hanging transactions.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

TOPIC_REQUEST = Struct(Field("name", "string"), Field("partition_indexes", Array("int32")))

DESCRIBE_PRODUCERS_REQUEST = Struct(Field("topics", Array(TOPIC_REQUEST)))

PRODUCER_STATE = Struct(
    Field("producer_id", "int64"),
    Field("producer_epoch", "int32"),
    Field("last_sequence", "int32", default=-1),
    Field("last_timestamp", "int64", default=-1, doc="ms since 1970; -1: none"),
    Field("coordinator_epoch", "int32"),
    Field("current_txn_start_offset", "int64", default=-1, doc="-1: no transaction is open"),
)

PARTITION_RESPONSE = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0, default=None),
    Field("active_producers", Array(PRODUCER_STATE)),
)

TOPIC_RESPONSE = Struct(Field("name", "string"), Field("partitions", Array(PARTITION_RESPONSE)))

DESCRIBE_PRODUCERS_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(TOPIC_RESPONSE)))

DESCRIBE_PRODUCERS = api(
    61, "DescribeProducers", DESCRIBE_PRODUCERS_REQUEST, DESCRIBE_PRODUCERS_RESPONSE, "0", "0+", Route.LEADER
)
