"""DeleteRecords (key 21): deletes the records below an offset; sent to the leader of the partitions."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DELETE_RECORDS_PARTITION = Struct(
    Field("partition_index", "int32"), Field("offset", "int64", doc="records below it are deleted; -1: all of them")
)

DELETE_RECORDS_TOPIC = Struct(Field("name", "string"), Field("partitions", Array(DELETE_RECORDS_PARTITION)))

DELETE_RECORDS_REQUEST = Struct(Field("topics", Array(DELETE_RECORDS_TOPIC)), Field("timeout_ms", "int32"))

DELETE_RECORDS_PARTITION_RESULT = Struct(
    Field("partition_index", "int32"), Field("low_watermark", "int64"), Field("error_code", "int16")
)

DELETE_RECORDS_TOPIC_RESULT = Struct(
    Field("name", "string"), Field("partitions", Array(DELETE_RECORDS_PARTITION_RESULT))
)

DELETE_RECORDS_RESPONSE = Struct(THROTTLE_TIME, Field("topics", Array(DELETE_RECORDS_TOPIC_RESULT)))

DELETE_RECORDS = api(21, "DeleteRecords", DELETE_RECORDS_REQUEST, DELETE_RECORDS_RESPONSE, "0-2", "2+", Route.LEADER)
