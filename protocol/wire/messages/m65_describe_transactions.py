"""DescribeTransactions (key 65): returns state and partitions of transactions.

Used to find the outcome of an EndTxn whose response was lost.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DESCRIBE_TRANSACTIONS_REQUEST = Struct(Field("transactional_ids", Array("string")))

TOPIC_DATA = Struct(Field("topic", "string"), Field("partitions", Array("int32")))

TRANSACTION_STATE = Struct(
    Field("error_code", "int16"),
    Field("transactional_id", "string"),
    Field("transaction_state", "string"),
    Field("transaction_timeout_ms", "int32"),
    Field("transaction_start_time_ms", "int64", doc="-1: not started"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("topics", Array(TOPIC_DATA)),
)

DESCRIBE_TRANSACTIONS_RESPONSE = Struct(THROTTLE_TIME, Field("transaction_states", Array(TRANSACTION_STATE)))

DESCRIBE_TRANSACTIONS = api(
    65,
    "DescribeTransactions",
    DESCRIBE_TRANSACTIONS_REQUEST,
    DESCRIBE_TRANSACTIONS_RESPONSE,
    "0",
    "0+",
    Route.TRANSACTION,
    coordinator_key_field="transactional_ids",
)
