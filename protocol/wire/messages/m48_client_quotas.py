"""DescribeClientQuotas and AlterClientQuotas (keys 48, 49): quotas of users, client ids and IP addresses."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

COMPONENT_DATA = Struct(
    Field("entity_type", "string"),
    Field("match_type", "int8"),
    Field("match", "string", nullable_since=0),
)

DESCRIBE_CLIENT_QUOTAS_REQUEST = Struct(
    Field("components", Array(COMPONENT_DATA)),
    Field("strict", "bool"),
)

ENTITY_DATA = Struct(
    Field("entity_type", "string"),
    Field("entity_name", "string", nullable_since=0),
)

VALUE_DATA = Struct(
    Field("key", "string"),
    Field("value", "float64"),
)

ENTRY_DATA = Struct(
    Field("entity", Array(ENTITY_DATA)),
    Field("values", Array(VALUE_DATA)),
)

DESCRIBE_CLIENT_QUOTAS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("entries", Array(ENTRY_DATA), nullable_since=0),
)

DESCRIBE_CLIENT_QUOTAS = Api(
    key=48,
    name="DescribeClientQuotas",
    request=DESCRIBE_CLIENT_QUOTAS_REQUEST,
    response=DESCRIBE_CLIENT_QUOTAS_RESPONSE,
    first=0,
    last=1,
    flexible_since=1,
    route=Route.ANY,
)

ALTER_ENTITY = Struct(
    Field("entity_type", "string"),
    Field("entity_name", "string", nullable_since=0),
)

OP_DATA = Struct(
    Field("key", "string"),
    Field("value", "float64"),
    Field("remove", "bool"),
)

ALTER_ENTRY = Struct(
    Field("entity", Array(ALTER_ENTITY)),
    Field("ops", Array(OP_DATA)),
)

ALTER_CLIENT_QUOTAS_REQUEST = Struct(
    Field("entries", Array(ALTER_ENTRY)),
    Field("validate_only", "bool"),
)

ALTER_ENTRY_RESULT = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("entity", Array(ALTER_ENTITY)),
)

ALTER_CLIENT_QUOTAS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("entries", Array(ALTER_ENTRY_RESULT)),
)

ALTER_CLIENT_QUOTAS = Api(
    key=49,
    name="AlterClientQuotas",
    request=ALTER_CLIENT_QUOTAS_REQUEST,
    response=ALTER_CLIENT_QUOTAS_RESPONSE,
    first=0,
    last=1,
    flexible_since=1,
    route=Route.CONTROLLER,
)
