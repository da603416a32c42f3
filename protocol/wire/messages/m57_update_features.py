"""UpdateFeatures (key 57): changes finalized feature levels, such as `metadata.version` (KIP-584)."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

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
    Field("feature", "string"), Field("error_code", "int16"), Field("error_message", "string", nullable_since=0)
)

UPDATE_FEATURES_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("results", Array(UPDATABLE_FEATURE_RESULT), until=1, ignorable=True),
)

UPDATE_FEATURES = api(
    57, "UpdateFeatures", UPDATE_FEATURES_REQUEST, UPDATE_FEATURES_RESPONSE, "0-2", "0+", Route.CONTROLLER
)
