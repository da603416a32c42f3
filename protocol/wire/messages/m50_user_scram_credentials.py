"""DescribeUserScramCredentials and AlterUserScramCredentials (keys 50, 51): users of SASL SCRAM (KIP-554)."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

USER_NAME = Struct(Field("name", "string"))

DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST = Struct(Field("users", Array(USER_NAME), nullable_since=0))

CREDENTIAL_INFO = Struct(Field("mechanism", "int8"), Field("iterations", "int32"))

DESCRIBE_USER_SCRAM_CREDENTIALS_RESULT = Struct(
    Field("user", "string"),
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("credential_infos", Array(CREDENTIAL_INFO)),
)

DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("results", Array(DESCRIBE_USER_SCRAM_CREDENTIALS_RESULT)),
)

DESCRIBE_USER_SCRAM_CREDENTIALS = api(
    50,
    "DescribeUserScramCredentials",
    DESCRIBE_USER_SCRAM_CREDENTIALS_REQUEST,
    DESCRIBE_USER_SCRAM_CREDENTIALS_RESPONSE,
    "0",
    "0+",
    Route.ANY,
)

SCRAM_CREDENTIAL_DELETION = Struct(Field("name", "string"), Field("mechanism", "int8"))

SCRAM_CREDENTIAL_UPSERTION = Struct(
    Field("name", "string"),
    Field("mechanism", "int8"),
    Field("iterations", "int32"),
    Field("salt", "bytes"),
    Field("salted_password", "bytes"),
)

ALTER_USER_SCRAM_CREDENTIALS_REQUEST = Struct(
    Field("deletions", Array(SCRAM_CREDENTIAL_DELETION)), Field("upsertions", Array(SCRAM_CREDENTIAL_UPSERTION))
)

ALTER_USER_SCRAM_CREDENTIALS_RESULT = Struct(
    Field("user", "string"), Field("error_code", "int16"), Field("error_message", "string", nullable_since=0)
)

ALTER_USER_SCRAM_CREDENTIALS_RESPONSE = Struct(
    THROTTLE_TIME, Field("results", Array(ALTER_USER_SCRAM_CREDENTIALS_RESULT))
)

ALTER_USER_SCRAM_CREDENTIALS = api(
    51,
    "AlterUserScramCredentials",
    ALTER_USER_SCRAM_CREDENTIALS_REQUEST,
    ALTER_USER_SCRAM_CREDENTIALS_RESPONSE,
    "0",
    "0+",
    Route.CONTROLLER,
)
