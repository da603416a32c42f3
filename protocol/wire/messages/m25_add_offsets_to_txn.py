"""AddOffsetsToTxn (key 25): adds a group's offsets to a transaction, before TxnOffsetCommit.

TxnOffsetCommit from version 5 on does not need it.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Field, Route, Struct, api

ADD_OFFSETS_TO_TXN_REQUEST = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("group_id", "string"),
)

ADD_OFFSETS_TO_TXN_RESPONSE = Struct(THROTTLE_TIME, Field("error_code", "int16"))

ADD_OFFSETS_TO_TXN = api(
    25, "AddOffsetsToTxn", ADD_OFFSETS_TO_TXN_REQUEST, ADD_OFFSETS_TO_TXN_RESPONSE, "0-4", "3+", Route.TRANSACTION
)
