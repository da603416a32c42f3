"""EndTxn (key 26): commits or aborts a transaction.

Version 5 (only with `transaction.version` 2) returns the producer id and epoch of the next transaction.
"""

from __future__ import annotations

from protocol.wire.schema import Api, Field, Route, Struct

END_TXN_REQUEST = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("committed", "bool"),
)

END_TXN_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("producer_id", "int64", since=5, default=-1, ignorable=True),
    Field("producer_epoch", "int16", since=5, default=-1, ignorable=True),
)

END_TXN = Api(
    key=26,
    name="EndTxn",
    request=END_TXN_REQUEST,
    response=END_TXN_RESPONSE,
    first=0,
    last=5,
    flexible_since=3,
    route=Route.TRANSACTION,
)

LAST_BEFORE_TRANSACTION_V2 = 4
"""The last version for clusters with `transaction.version` below 2."""
