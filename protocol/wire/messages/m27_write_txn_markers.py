"""WriteTxnMarkers (key 27): writes the end of a transaction to partitions.

Sent by brokers, and by an administrator to abort a hanging transaction.
"""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

WRITABLE_TXN_MARKER_TOPIC = Struct(
    Field("name", "string"),
    Field("partition_indexes", Array("int32")),
)

WRITABLE_TXN_MARKER = Struct(
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("transaction_result", "bool"),
    Field("topics", Array(WRITABLE_TXN_MARKER_TOPIC)),
    Field("coordinator_epoch", "int32"),
    Field("transaction_version", "int8", since=2, ignorable=True),
)

WRITE_TXN_MARKERS_REQUEST = Struct(
    Field("markers", Array(WRITABLE_TXN_MARKER)),
)

WRITABLE_TXN_MARKER_PARTITION_RESULT = Struct(
    Field("partition_index", "int32"),
    Field("error_code", "int16"),
)

WRITABLE_TXN_MARKER_TOPIC_RESULT = Struct(
    Field("name", "string"),
    Field("partitions", Array(WRITABLE_TXN_MARKER_PARTITION_RESULT)),
)

WRITABLE_TXN_MARKER_RESULT = Struct(
    Field("producer_id", "int64"),
    Field("topics", Array(WRITABLE_TXN_MARKER_TOPIC_RESULT)),
)

WRITE_TXN_MARKERS_RESPONSE = Struct(
    Field("markers", Array(WRITABLE_TXN_MARKER_RESULT)),
)

WRITE_TXN_MARKERS = Api(
    key=27,
    name="WriteTxnMarkers",
    request=WRITE_TXN_MARKERS_REQUEST,
    response=WRITE_TXN_MARKERS_RESPONSE,
    first=1,
    last=2,
    flexible_since=1,
    route=Route.LEADER,
)
