"""SaslAuthenticate (key 36): carries one step of a SASL exchange."""

from __future__ import annotations

from protocol.wire.schema import Field, Route, Struct, api

SASL_AUTHENTICATE_REQUEST = Struct(Field("auth_bytes", "bytes"))

SASL_AUTHENTICATE_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("auth_bytes", "bytes"),
    Field("session_lifetime_ms", "int64", since=1, ignorable=True, doc="0: the session does not expire"),
)

SASL_AUTHENTICATE = api(
    36, "SaslAuthenticate", SASL_AUTHENTICATE_REQUEST, SASL_AUTHENTICATE_RESPONSE, "0-2", "2+", Route.BROKER
)
