"""EndTxn (key 26): commits or aborts a transaction.

Version 5 (only with `transaction.version` 2) returns the producer id and epoch of the next transaction.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Field, Route, Struct, api

END_TXN_REQUEST = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("committed", "bool"),
)

END_TXN_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("producer_id", "int64", since=5, default=-1, ignorable=True),
    Field("producer_epoch", "int16", since=5, default=-1, ignorable=True),
)

END_TXN = api(26, "EndTxn", END_TXN_REQUEST, END_TXN_RESPONSE, "0-5", "3+", Route.TRANSACTION)

LAST_BEFORE_TRANSACTION_V2 = 4
"""The last version for clusters with `transaction.version` below 2."""
