"""DescribeConfigs (key 32): returns the configuration of topics, brokers and groups.

Only a broker itself returns its own configuration.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

DESCRIBE_CONFIGS_RESOURCE = Struct(
    Field("resource_type", "int8", doc="2 topic, 4 broker, 8 broker logger, 32 group"),
    Field("resource_name", "string"),
    Field("configuration_keys", Array("string"), nullable_since=0),
)

DESCRIBE_CONFIGS_REQUEST = Struct(
    Field("resources", Array(DESCRIBE_CONFIGS_RESOURCE)),
    Field("include_synonyms", "bool"),
    Field("include_documentation", "bool", since=3),
)

DESCRIBE_CONFIGS_SYNONYM = Struct(
    Field("name", "string"), Field("value", "string", nullable_since=0), Field("source", "int8")
)

DESCRIBE_CONFIGS_RESOURCE_RESULT = Struct(
    Field("name", "string"),
    Field("value", "string", nullable_since=0),
    Field("read_only", "bool"),
    Field("config_source", "int8", default=-1),
    Field("is_sensitive", "bool"),
    Field("synonyms", Array(DESCRIBE_CONFIGS_SYNONYM)),
    Field("config_type", "int8", since=3, ignorable=True),
    Field("documentation", "string", since=3, nullable_since=0, ignorable=True),
)

DESCRIBE_CONFIGS_RESULT = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
    Field("configs", Array(DESCRIBE_CONFIGS_RESOURCE_RESULT)),
)

DESCRIBE_CONFIGS_RESPONSE = Struct(THROTTLE_TIME, Field("results", Array(DESCRIBE_CONFIGS_RESULT)))

DESCRIBE_CONFIGS = api(
    32, "DescribeConfigs", DESCRIBE_CONFIGS_REQUEST, DESCRIBE_CONFIGS_RESPONSE, "1-4", "4+", Route.ANY
)
