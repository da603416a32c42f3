"""DescribeClientQuotas and AlterClientQuotas (keys 48, 49): quotas of users, client ids and IP addresses."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

COMPONENT_DATA = Struct(
    Field("entity_type", "string"), Field("match_type", "int8"), Field("match", "string", nullable_since=0)
)

DESCRIBE_CLIENT_QUOTAS_REQUEST = Struct(Field("components", Array(COMPONENT_DATA)), Field("strict", "bool"))

ENTITY_DATA = Struct(Field("entity_type", "string"), Field("entity_name", "string", nullable_since=0))

VALUE_DATA = Struct(Field("key", "string"), Field("value", "float64"))

ENTRY_DATA = Struct(Field("entity", Array(ENTITY_DATA)), Field("values", Array(VALUE_DATA)))

DESCRIBE_CLIENT_QUOTAS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("entries", Array(ENTRY_DATA), nullable_since=0),
)

DESCRIBE_CLIENT_QUOTAS = api(
    48, "DescribeClientQuotas", DESCRIBE_CLIENT_QUOTAS_REQUEST, DESCRIBE_CLIENT_QUOTAS_RESPONSE, "0-1", "1+", Route.ANY
)

OP_DATA = Struct(Field("key", "string"), Field("value", "float64"), Field("remove", "bool"))

ALTER_ENTRY = Struct(Field("entity", Array(ENTITY_DATA)), Field("ops", Array(OP_DATA)))

ALTER_CLIENT_QUOTAS_REQUEST = Struct(Field("entries", Array(ALTER_ENTRY)), Field("validate_only", "bool"))

ALTER_ENTRY_RESULT = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("entity", Array(ENTITY_DATA)),
)

ALTER_CLIENT_QUOTAS_RESPONSE = Struct(THROTTLE_TIME, Field("entries", Array(ALTER_ENTRY_RESULT)))

ALTER_CLIENT_QUOTAS = api(
    49, "AlterClientQuotas", ALTER_CLIENT_QUOTAS_REQUEST, ALTER_CLIENT_QUOTAS_RESPONSE, "0-1", "1+", Route.CONTROLLER
)
