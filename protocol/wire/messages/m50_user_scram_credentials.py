"""DescribeUserScramCredentials and AlterUserScramCredentials (keys 50, 51): users of SASL SCRAM (KIP-554)."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

USER_NAME = Struct(
    Field("name", "string"),
)

DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST = Struct(
    Field("users", Array(USER_NAME), nullable_since=0),
)

CREDENTIAL_INFO = Struct(
    Field("mechanism", "int8"),
    Field("iterations", "int32"),
)

DESCRIBE_USER_SCRAM_CREDENTIALS_RESULT = Struct(
    Field("user", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("credential_infos", Array(CREDENTIAL_INFO)),
)

DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("results", Array(DESCRIBE_USER_SCRAM_CREDENTIALS_RESULT)),
)

DESCRIBE_USER_SCRAM_CREDENTIALS = Api(
    key=50,
    name="DescribeUserScramCredentials",
    request=DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST,
    response=DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE,
    first=0,
    last=0,
    flexible_since=0,
    route=Route.ANY,
)

SCRAM_CREDENTIAL_DELETION = Struct(
    Field("name", "string"),
    Field("mechanism", "int8"),
)

SCRAM_CREDENTIAL_UPSERTION = Struct(
    Field("name", "string"),
    Field("mechanism", "int8"),
    Field("iterations", "int32"),
    Field("salt", "bytes"),
    Field("salted_password", "bytes"),
)

ALTER_USER_SCRAM_CREDENTIALS_REQUEST = Struct(
    Field("deletions", Array(SCRAM_CREDENTIAL_DELETION)),
    Field("upsertions", Array(SCRAM_CREDENTIAL_UPSERTION)),
)

ALTER_USER_SCRAM_CREDENTIALS_RESULT = Struct(
    Field("user", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
)

ALTER_USER_SCRAM_CREDENTIALS_RESPONSE = Struct(
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
    Field("results", Array(ALTER_USER_SCRAM_CREDENTIALS_RESULT)),
)

ALTER_USER_SCRAM_CREDENTIALS = Api(
    key=51,
    name="AlterUserScramCredentials",
    request=ALTER_USER_SCRAM_CREDENTIALS_REQUEST,
    response=ALTER_USER_SCRAM_CREDENTIALS_RESPONSE,
    first=0,
    last=0,
    flexible_since=0,
    route=Route.CONTROLLER,
)
