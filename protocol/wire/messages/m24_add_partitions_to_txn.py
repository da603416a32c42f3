"""AddPartitionsToTxn (key 24): adds partitions to a transaction.

Later versions than 3, for several transactions, are for brokers.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

ADD_PARTITIONS_TO_TXN_TOPIC = Struct(Field("name", "string"), Field("partitions", Array("int32")))

ADD_PARTITIONS_TO_TXN_REQUEST = Struct(
    Field("v3_and_below_transactional_id", "string"),
    Field("v3_and_below_producer_id", "int64"),
    Field("v3_and_below_producer_epoch", "int16"),
    Field("v3_and_below_topics", Array(ADD_PARTITIONS_TO_TXN_TOPIC)),
)

ADD_PARTITIONS_TO_TXN_PARTITION_RESULT = Struct(
    Field("partition_index", "int32"), Field("partition_error_code", "int16")
)

ADD_PARTITIONS_TO_TXN_TOPIC_RESULT = Struct(
    Field("name", "string"), Field("results_by_partition", Array(ADD_PARTITIONS_TO_TXN_PARTITION_RESULT))
)

ADD_PARTITIONS_TO_TXN_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("results_by_topic_v3_and_below", Array(ADD_PARTITIONS_TO_TXN_TOPIC_RESULT)),
)

ADD_PARTITIONS_TO_TXN = api(
    24,
    "AddPartitionsToTxn",
    ADD_PARTITIONS_TO_TXN_REQUEST,
    ADD_PARTITIONS_TO_TXN_RESPONSE,
    "0-3",
    "3+",
    Route.TRANSACTION,
    coordinator_key_field="v3_and_below_transactional_id",
)
