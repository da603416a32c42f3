"""AddPartitionsToTxn (key 24): adds partitions to a transaction.

Clients use at most version 3 (`LAST_CLIENT_VERSION`). Later versions, for several transactions, are for brokers.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

ADD_PARTITIONS_TO_TXN_TOPIC = Struct(Field("name", "string"), Field("partitions", Array("int32")))

ADD_PARTITIONS_TO_TXN_TRANSACTION = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("verify_only", "bool"),
    Field("topics", Array(ADD_PARTITIONS_TO_TXN_TOPIC)),
)

ADD_PARTITIONS_TO_TXN_REQUEST = Struct(
    Field("transactions", Array(ADD_PARTITIONS_TO_TXN_TRANSACTION), since=4),
    Field("v3_and_below_transactional_id", "string", until=3),
    Field("v3_and_below_producer_id", "int64", until=3),
    Field("v3_and_below_producer_epoch", "int16", until=3),
    Field("v3_and_below_topics", Array(ADD_PARTITIONS_TO_TXN_TOPIC), until=3),
)

ADD_PARTITIONS_TO_TXN_PARTITION_RESULT = Struct(
    Field("partition_index", "int32"), Field("partition_error_code", "int16")
)

ADD_PARTITIONS_TO_TXN_TOPIC_RESULT = Struct(
    Field("name", "string"), Field("results_by_partition", Array(ADD_PARTITIONS_TO_TXN_PARTITION_RESULT))
)

ADD_PARTITIONS_TO_TXN_RESULT = Struct(
    Field("transactional_id", "string"), Field("topic_results", Array(ADD_PARTITIONS_TO_TXN_TOPIC_RESULT))
)

ADD_PARTITIONS_TO_TXN_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16", since=4, ignorable=True),
    Field("results_by_transaction", Array(ADD_PARTITIONS_TO_TXN_RESULT), since=4),
    Field("results_by_topic_v3_and_below", Array(ADD_PARTITIONS_TO_TXN_TOPIC_RESULT), until=3),
)

ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    ADD_PARTITIONS_TO_TXN_REQUEST,
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    "0-5",
    "3+",
    Route.TRANSACTION,
    coordinator_key_field="v3_and_below_transactional_id",
)

LAST_CLIENT_VERSION = 3
