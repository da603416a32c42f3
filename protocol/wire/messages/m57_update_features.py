"""UpdateFeatures (key 57): changes finalized feature levels, such as `metadata.version` (KIP-584)."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

FEATURE_UPDATE_KEY = Struct(
    Field("feature", "string"),
    Field("max_version_level", "int16"),
    Field("allow_downgrade", "bool", until=0),
    Field("upgrade_type", "int8", since=1, default=1),
)

UPDATE_FEATURES_REQUEST = Struct(
    Field("timeout_ms", "int32", default=60000),
    Field("feature_updates", Array(FEATURE_UPDATE_KEY)),
    Field("validate_only", "bool", since=1),
)

UPDATABLE_FEATURE_RESULT = Struct(
    Field("feature", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
)

UPDATE_FEATURES_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("results", Array(UPDATABLE_FEATURE_RESULT), until=1, ignorable=True),
)

UPDATE_FEATURES = Api(
    key=57,
    name="UpdateFeatures",
    request=UPDATE_FEATURES_REQUEST,
    response=UPDATE_FEATURES_RESPONSE,
    first=0,
    last=2,
    flexible_since=0,
    route=Route.CONTROLLER,
)
