"""InitProducerId (key 22): returns a producer id and epoch; fences older producers of the same transactional id.

Without a transactional id any broker responds, not only the coordinator.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Field, Route, Struct, api

INIT_PRODUCER_ID_REQUEST = Struct(
    Field(
        "transactional_id",
        "string",
        nullable_since=0,
        default=None,
        doc="None: an idempotent producer without transactions",
    ),
    Field("transaction_timeout_ms", "int32"),
    Field("producer_id", "int64", since=3, default=-1, doc="the current producer id; -1: none"),
    Field("producer_epoch", "int16", since=3, default=-1),
)

INIT_PRODUCER_ID_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("producer_id", "int64", default=-1),
    Field("producer_epoch", "int16"),
)

INIT_PRODUCER_ID = api(
    22, "InitProducerId", INIT_PRODUCER_ID_REQUEST, INIT_PRODUCER_ID_RESPONSE, "0-5", "2+", Route.TRANSACTION
)

FIRST_WITH_EXPECTED_IDENTITY = 3
"""The first version that sends the current producer id and epoch, so that a stale producer is fenced (KIP-360)."""
