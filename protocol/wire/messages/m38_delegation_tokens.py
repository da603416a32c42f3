"""Create-, Renew-, Expire- and DescribeDelegationToken (keys 38 to 41): tokens that authenticate in place of a user."""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

PRINCIPAL = Struct(Field("principal_type", "string"), Field("principal_name", "string"))

CREATE_DELEGATION_TOKEN_REQUEST = Struct(
    Field("owner_principal_type", "string", since=3, nullable_since=3),
    Field("owner_principal_name", "string", since=3, nullable_since=3),
    Field("renewers", Array(PRINCIPAL)),
    Field("max_lifetime_ms", "int64"),
)

CREATE_DELEGATION_TOKEN_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("principal_type", "string"),
    Field("principal_name", "string"),
    Field("token_requester_principal_type", "string", since=3),
    Field("token_requester_principal_name", "string", since=3),
    Field("issue_timestamp_ms", "int64"),
    Field("expiry_timestamp_ms", "int64"),
    Field("max_timestamp_ms", "int64"),
    Field("token_id", "string"),
    Field("hmac", "bytes"),
    THROTTLE_TIME,
)

CREATE_DELEGATION_TOKEN = api(
    38,
    "CreateDelegationToken",
    CREATE_DELEGATION_TOKEN_REQUEST,
    CREATE_DELEGATION_TOKEN_RESPONSE,
    "1-3",
    "2+",
    Route.ANY,
)

RENEW_DELEGATION_TOKEN_REQUEST = Struct(Field("hmac", "bytes"), Field("renew_period_ms", "int64"))

EXPIRY_RESPONSE = Struct(Field("error_code", "int16"), Field("expiry_timestamp_ms", "int64"), THROTTLE_TIME)

RENEW_DELEGATION_TOKEN = api(
    39, "RenewDelegationToken", RENEW_DELEGATION_TOKEN_REQUEST, EXPIRY_RESPONSE, "1-2", "2+", Route.ANY
)

EXPIRE_DELEGATION_TOKEN_REQUEST = Struct(Field("hmac", "bytes"), Field("expiry_time_period_ms", "int64"))

EXPIRE_DELEGATION_TOKEN = api(
    40,
    "ExpireDelegationToken",
    EXPIRE_DELEGATION_TOKEN_REQUEST,
    EXPIRY_RESPONSE,
    "1-2",
    "2+",
    Route.ANY,
)

DESCRIBE_DELEGATION_TOKEN_REQUEST = Struct(Field("owners", Array(PRINCIPAL), nullable_since=0))

DESCRIBED_DELEGATION_TOKEN = Struct(
    Field("principal_type", "string"),
    Field("principal_name", "string"),
    Field("token_requester_principal_type", "string", since=3),
    Field("token_requester_principal_name", "string", since=3),
    Field("issue_timestamp", "int64"),
    Field("expiry_timestamp", "int64"),
    Field("max_timestamp", "int64"),
    Field("token_id", "string"),
    Field("hmac", "bytes"),
    Field("renewers", Array(PRINCIPAL)),
)

DESCRIBE_DELEGATION_TOKEN_RESPONSE = Struct(
    Field("error_code", "int16"), Field("tokens", Array(DESCRIBED_DELEGATION_TOKEN)), THROTTLE_TIME
)

DESCRIBE_DELEGATION_TOKEN = api(
    41,
    "DescribeDelegationToken",
    DESCRIBE_DELEGATION_TOKEN_REQUEST,
    DESCRIBE_DELEGATION_TOKEN_RESPONSE,
    "1-3",
    "2+",
    Route.ANY,
)
