"""SaslHandshake (key 17): negotiates the SASL mechanism, before SaslAuthenticate."""

from __future__ import annotations

from protocol.wire.schema import Array, Field, Route, Struct, api

SASL_HANDSHAKE_REQUEST = Struct(Field("mechanism", "string"))

SASL_HANDSHAKE_RESPONSE = Struct(Field("error_code", "int16"), Field("mechanisms", Array("string")))

SASL_HANDSHAKE = api(17, "SaslHandshake", SASL_HANDSHAKE_REQUEST, SASL_HANDSHAKE_RESPONSE, "0-1", "none", Route.BROKER)
