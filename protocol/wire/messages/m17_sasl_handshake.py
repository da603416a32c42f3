"""SaslHandshake (key 17): negotiates the SASL mechanism, before SaslAuthenticate."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

SASL_HANDSHAKE_REQUEST = Struct(
    Field("mechanism", "string"),
)

SASL_HANDSHAKE_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("mechanisms", Array("string")),
)

SASL_HANDSHAKE = Api(
    key=17,
    name="SaslHandshake",
    request=SASL_HANDSHAKE_REQUEST,
    response=SASL_HANDSHAKE_RESPONSE,
    first=0,
    last=1,
    flexible_since=None,
    route=Route.BROKER,
)
