"""ListTransactions (key 66): returns the transactional ids of a broker's transactions; send it to every broker."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

LIST_TRANSACTIONS_REQUEST = Struct(
    Field("state_filters", Array("string")),
    Field("producer_id_filters", Array("int64")),
    Field("duration_filter", "int64", since=1, default=-1, doc="ms; -1: all"),
    Field("transactional_id_pattern", "string", since=2, nullable_since=2, default=None),
)

TRANSACTION_STATE = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("transaction_state", "string"),
)

LIST_TRANSACTIONS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("unknown_state_filters", Array("string")),
    Field("transaction_states", Array(TRANSACTION_STATE)),
)

LIST_TRANSACTIONS = Api(
    key=66,
    name="ListTransactions",
    request=LIST_TRANSACTIONS_REQUEST,
    response=LIST_TRANSACTIONS_RESPONSE,
    first=0,
    last=2,
    flexible_since=0,
    route=Route.BROKER,
)

FIRST_WITH_DURATION = 1
"""The first version that can filter transactions by the time they have been open."""
