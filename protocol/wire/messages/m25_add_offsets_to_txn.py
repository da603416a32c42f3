"""AddOffsetsToTxn (key 25): adds a group's offsets to a transaction, before TxnOffsetCommit.

TxnOffsetCommit from version 5 on does not need it.
"""

from __future__ import annotations

from protocol.wire.schema import Api, Field, Route, Struct

ADD_OFFSETS_TO_TXN_REQUEST = Struct(
    Field("transactional_id", "string"),
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("group_id", "string"),
)

ADD_OFFSETS_TO_TXN_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
)

ADD_OFFSETS_TO_TXN = Api(
    key=25,
    name="AddOffsetsToTxn",
    request=ADD_OFFSETS_TO_TXN_REQUEST,
    response=ADD_OFFSETS_TO_TXN_RESPONSE,
    first=0,
    last=4,
    flexible_since=3,
    route=Route.TRANSACTION,
)
