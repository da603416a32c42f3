"""ListConfigResources (key 74): names of resources that have a configuration; version 0 lists client metrics only."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

LIST_CONFIG_RESOURCES_REQUEST = Struct(Field("resource_types", Array("int8"), since=1))

CONFIG_RESOURCE = Struct(
    Field("resource_name", "string"), Field("resource_type", "int8", since=1, default=16, ignorable=True)
)

LIST_CONFIG_RESOURCES_RESPONSE = Struct(
    THROTTLE_TIME, Field("error_code", "int16"), Field("config_resources", Array(CONFIG_RESOURCE))
)

LIST_CONFIG_RESOURCES = api(
    74, "ListConfigResources", LIST_CONFIG_RESOURCES_REQUEST, LIST_CONFIG_RESOURCES_RESPONSE, "0-1", "0+", Route.ANY
)
