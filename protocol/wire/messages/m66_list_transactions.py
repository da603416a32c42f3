"""ListTransactions (key 66): returns the transactional ids of a broker's transactions; send it to every broker."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

LIST_TRANSACTIONS_REQUEST = Struct(
    Field("state_filters", Array("string")),
    Field("producer_id_filters", Array("int64")),
    Field("duration_filter", "int64", since=1, default=-1, doc="ms; -1: all"),
    Field("transactional_id_pattern", "string", since=2, nullable_since=2, default=None),
)

TRANSACTION_STATE = Struct(
    Field("transactional_id", "string"), Field("producer_id", "int64"), Field("transaction_state", "string")
)

LIST_TRANSACTIONS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("unknown_state_filters", Array("string")),
    Field("transaction_states", Array(TRANSACTION_STATE)),
)

LIST_TRANSACTIONS = api(
    66, "ListTransactions", LIST_TRANSACTIONS_REQUEST, LIST_TRANSACTIONS_RESPONSE, "0-2", "0+", Route.BROKER
)

FIRST_WITH_DURATION = 1
"""The first version that can filter transactions by the time they have been open."""
