"""ListConfigResources (key 74): names of resources that have a configuration; version 0 lists client metrics only."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

LIST_CONFIG_RESOURCES_REQUEST = Struct(
    Field("resource_types", Array("int8"), since=1),
)

CONFIG_RESOURCE = Struct(
    Field("resource_name", "string"),
    Field("resource_type", "int8", since=1, default=16, ignorable=True),
)

LIST_CONFIG_RESOURCES_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("config_resources", Array(CONFIG_RESOURCE)),
)

LIST_CONFIG_RESOURCES = Api(
    key=74,
    name="ListConfigResources",
    request=LIST_CONFIG_RESOURCES_REQUEST,
    response=LIST_CONFIG_RESOURCES_RESPONSE,
    first=0,
    last=1,
    flexible_since=0,
    route=Route.ANY,
)
