"""DescribeCluster (key 60): returns the brokers and the controller, without topics."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DESCRIBE_CLUSTER_REQUEST = Struct(
    Field("include_cluster_authorized_operations", "bool"),
    Field("endpoint_type", "int8", since=1, default=1, doc="1 brokers, 2 controllers"),
    Field("include_fenced_brokers", "bool", since=2),
)

DESCRIBE_CLUSTER_BROKER = Struct(
    Field("broker_id", "int32"),
    Field("host", "string"),
    Field("port", "int32"),
    Field("rack", "string", nullable_since=0, default=None),
    Field("is_fenced", "bool", since=2),
)

DESCRIBE_CLUSTER_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0, default=None),
    Field("endpoint_type", "int8", since=1, default=1),
    Field("cluster_id", "string"),
    Field("controller_id", "int32", default=-1),
    Field("brokers", Array(DESCRIBE_CLUSTER_BROKER)),
    Field("cluster_authorized_operations", "int32", default=-(2**31)),
)

DESCRIBE_CLUSTER = api(
    60, "DescribeCluster", DESCRIBE_CLUSTER_REQUEST, DESCRIBE_CLUSTER_RESPONSE, "0-2", "0+", Route.ANY
)
