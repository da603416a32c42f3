"""AlterConfigs and IncrementalAlterConfigs (keys 33, 44): change the configuration of topics, brokers and groups.

AlterConfigs replaces the whole configuration of a resource. Only a broker itself changes its own configuration.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

ALTERABLE_CONFIG = Struct(Field("name", "string"), Field("value", "string", nullable_since=0))

ALTER_CONFIGS_RESOURCE = Struct(
    Field("resource_type", "int8"), Field("resource_name", "string"), Field("configs", Array(ALTERABLE_CONFIG))
)

ALTER_CONFIGS_REQUEST = Struct(Field("resources", Array(ALTER_CONFIGS_RESOURCE)), Field("validate_only", "bool"))

ALTER_CONFIGS_RESOURCE_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
)

ALTER_CONFIGS_RESPONSE = Struct(THROTTLE_TIME, Field("responses", Array(ALTER_CONFIGS_RESOURCE_RESPONSE)))

ALTER_CONFIGS = api(33, "AlterConfigs", ALTER_CONFIGS_REQUEST, ALTER_CONFIGS_RESPONSE, "0-2", "2+", Route.ANY)

INCREMENTAL_ALTERABLE_CONFIG = Struct(
    Field("name", "string"), Field("config_operation", "int8"), Field("value", "string", nullable_since=0)
)

INCREMENTAL_ALTER_CONFIGS_RESOURCE = Struct(
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
    Field("configs", Array(INCREMENTAL_ALTERABLE_CONFIG)),
)

INCREMENTAL_ALTER_CONFIGS_REQUEST = Struct(
    Field("resources", Array(INCREMENTAL_ALTER_CONFIGS_RESOURCE)), Field("validate_only", "bool")
)

INCREMENTAL_ALTER_CONFIGS = api(
    44,
    "IncrementalAlterConfigs",
    INCREMENTAL_ALTER_CONFIGS_REQUEST,
    ALTER_CONFIGS_RESPONSE,
    "0-1",
    "1+",
    Route.ANY,
)
