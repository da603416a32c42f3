"""AlterReplicaLogDirs and DescribeLogDirs (keys 34, 35): log directories of one broker, and their replicas."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

ALTER_REPLICA_LOG_DIR_TOPIC = Struct(Field("name", "string"), Field("partitions", Array("int32")))

ALTER_REPLICA_LOG_DIR = Struct(Field("path", "string"), Field("topics", Array(ALTER_REPLICA_LOG_DIR_TOPIC)))

ALTER_REPLICA_LOG_DIRS_REQUEST = Struct(Field("dirs", Array(ALTER_REPLICA_LOG_DIR)))

ALTER_REPLICA_LOG_DIR_PARTITION_RESULT = Struct(Field("partition_index", "int32"), Field("error_code", "int16"))

ALTER_REPLICA_LOG_DIR_TOPIC_RESULT = Struct(
    Field("topic_name", "string"), Field("partitions", Array(ALTER_REPLICA_LOG_DIR_PARTITION_RESULT))
)

ALTER_REPLICA_LOG_DIRS_RESPONSE = Struct(THROTTLE_TIME, Field("results", Array(ALTER_REPLICA_LOG_DIR_TOPIC_RESULT)))

ALTER_REPLICA_LOG_DIRS = api(
    34,
    "AlterReplicaLogDirs",
    ALTER_REPLICA_LOG_DIRS_REQUEST,
    ALTER_REPLICA_LOG_DIRS_RESPONSE,
    "1-2",
    "2+",
    Route.BROKER,
)

DESCRIBABLE_LOG_DIR_TOPIC = Struct(Field("topic", "string"), Field("partitions", Array("int32")))

DESCRIBE_LOG_DIRS_REQUEST = Struct(Field("topics", Array(DESCRIBABLE_LOG_DIR_TOPIC), nullable_since=0))

DESCRIBE_LOG_DIRS_PARTITION = Struct(
    Field("partition_index", "int32"),
    Field("partition_size", "int64"),
    Field("offset_lag", "int64"),
    Field("is_future_key", "bool"),
)

DESCRIBE_LOG_DIRS_TOPIC = Struct(Field("name", "string"), Field("partitions", Array(DESCRIBE_LOG_DIRS_PARTITION)))

DESCRIBE_LOG_DIRS_RESULT = Struct(
    Field("error_code", "int16"),
    Field("log_dir", "string"),
    Field("topics", Array(DESCRIBE_LOG_DIRS_TOPIC)),
    Field("total_bytes", "int64", since=4, default=-1, ignorable=True),
    Field("usable_bytes", "int64", since=4, default=-1, ignorable=True),
    Field("is_cordoned", "bool", since=5, ignorable=True, doc="gets no new partitions (KIP-1066)"),
)

DESCRIBE_LOG_DIRS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16", since=3, ignorable=True),
    Field("results", Array(DESCRIBE_LOG_DIRS_RESULT)),
)

DESCRIBE_LOG_DIRS = api(
    35, "DescribeLogDirs", DESCRIBE_LOG_DIRS_REQUEST, DESCRIBE_LOG_DIRS_RESPONSE, "1-5", "2+", Route.BROKER
)
