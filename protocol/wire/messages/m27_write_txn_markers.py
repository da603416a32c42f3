"""WriteTxnMarkers (key 27): writes the end of a transaction to partitions.

Sent by brokers, and by an administrator to abort a hanging transaction.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

WRITABLE_TXN_MARKER_TOPIC = Struct(Field("name", "string"), Field("partition_indexes", Array("int32")))

WRITABLE_TXN_MARKER = Struct(
    Field("producer_id", "int64"),
    Field("producer_epoch", "int16"),
    Field("transaction_result", "bool"),
    Field("topics", Array(WRITABLE_TXN_MARKER_TOPIC)),
    Field("coordinator_epoch", "int32"),
    Field("transaction_version", "int8", since=2, ignorable=True),
)

WRITE_TXN_MARKERS_REQUEST = Struct(Field("markers", Array(WRITABLE_TXN_MARKER)))

WRITABLE_TXN_MARKER_PARTITION_RESULT = Struct(Field("partition_index", "int32"), Field("error_code", "int16"))

WRITABLE_TXN_MARKER_TOPIC_RESULT = Struct(
    Field("name", "string"), Field("partitions", Array(WRITABLE_TXN_MARKER_PARTITION_RESULT))
)

WRITABLE_TXN_MARKER_RESULT = Struct(
    Field("producer_id", "int64"), Field("topics", Array(WRITABLE_TXN_MARKER_TOPIC_RESULT))
)

WRITE_TXN_MARKERS_RESPONSE = Struct(Field("markers", Array(WRITABLE_TXN_MARKER_RESULT)))

WRITE_TXN_MARKERS = api(
    27, "WriteTxnMarkers", WRITE_TXN_MARKERS_REQUEST, WRITE_TXN_MARKERS_RESPONSE, "1-2", "1+", Route.LEADER
)
