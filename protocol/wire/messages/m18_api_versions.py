"""ApiVersions (key 18): returns the APIs and versions that the broker supports; the first request on a connection.

A broker that does not support the client's version replies with error 35 in the layout of version 0. The response
header is always the old one, also in flexible versions. Version 5 has the ids of the broker that the client intends to
reach, both or none (KIP-1242): another broker replies with REBOOTSTRAP_REQUIRED.
"""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

API_VERSIONS_REQUEST = Struct(
    Field("client_software_name", "string", since=3, ignorable=True),
    Field("client_software_version", "string", since=3, ignorable=True),
    Field("cluster_id", "string", since=5, nullable_since=5, default=None, ignorable=True),
    Field("node_id", "int32", since=5, default=-1, ignorable=True),
)

API_VERSION = Struct(Field("api_key", "int16"), Field("min_version", "int16"), Field("max_version", "int16"))

SUPPORTED_FEATURE_KEY = Struct(Field("name", "string"), Field("min_version", "int16"), Field("max_version", "int16"))

FINALIZED_FEATURE_KEY = Struct(
    Field("name", "string"), Field("max_version_level", "int16"), Field("min_version_level", "int16")
)

API_VERSIONS_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("api_keys", Array(API_VERSION)),
    Field("throttle_time_ms", "int32", since=1, ignorable=True, doc="ms for which a quota throttles the client"),
    Field("supported_features", Array(SUPPORTED_FEATURE_KEY), since=3, tag=0, tag_since=3, ignorable=True),
    Field(
        "finalized_features_epoch", "int64", since=3, default=-1, tag=1, tag_since=3, ignorable=True, doc="-1: unknown"
    ),
    Field("finalized_features", Array(FINALIZED_FEATURE_KEY), since=3, tag=2, tag_since=3, ignorable=True),
    Field("zk_migration_ready", "bool", since=3, tag=3, tag_since=3, ignorable=True),
)

API_VERSIONS = api(18, "ApiVersions", API_VERSIONS_REQUEST, API_VERSIONS_RESPONSE, "0-5", "3+", Route.BROKER)

LAST_WITHOUT_IDS = 4
