"""Create-, Renew-, Expire- and DescribeDelegationToken (keys 38 to 41): tokens that authenticate in place of a user."""

from __future__ import annotations

from protocol.wire.schema import Api, Array, Field, Route, Struct

CREATABLE_RENEWERS = Struct(
    Field("principal_type", "string"),
    Field("principal_name", "string"),
)

CREATE_DELEGATION_TOKEN_REQUEST = Struct(
    Field("owner_principal_type", "string", since=3, nullable_since=3),
    Field("owner_principal_name", "string", since=3, nullable_since=3),
    Field("renewers", Array(CREATABLE_RENEWERS)),
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
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
)

CREATE_DELEGATION_TOKEN = Api(
    key=38,
    name="CreateDelegationToken",
    request=CREATE_DELEGATION_TOKEN_REQUEST,
    response=CREATE_DELEGATION_TOKEN_RESPONSE,
    first=1,
    last=3,
    flexible_since=2,
    route=Route.ANY,
)

RENEW_DELEGATION_TOKEN_REQUEST = Struct(
    Field("hmac", "bytes"),
    Field("renew_period_ms", "int64"),
)

RENEW_DELEGATION_TOKEN_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("expiry_timestamp_ms", "int64"),
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
)

RENEW_DELEGATION_TOKEN = Api(
    key=39,
    name="RenewDelegationToken",
    request=RENEW_DELEGATION_TOKEN_REQUEST,
    response=RENEW_DELEGATION_TOKEN_RESPONSE,
    first=1,
    last=2,
    flexible_since=2,
    route=Route.ANY,
)

EXPIRE_DELEGATION_TOKEN_REQUEST = Struct(
    Field("hmac", "bytes"),
    Field("expiry_time_period_ms", "int64"),
)

EXPIRE_DELEGATION_TOKEN_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("expiry_timestamp_ms", "int64"),
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
)

EXPIRE_DELEGATION_TOKEN = Api(
    key=40,
    name="ExpireDelegationToken",
    request=EXPIRE_DELEGATION_TOKEN_REQUEST,
    response=EXPIRE_DELEGATION_TOKEN_RESPONSE,
    first=1,
    last=2,
    flexible_since=2,
    route=Route.ANY,
)

DESCRIBE_DELEGATION_TOKEN_OWNER = Struct(
    Field("principal_type", "string"),
    Field("principal_name", "string"),
)

DESCRIBE_DELEGATION_TOKEN_REQUEST = Struct(
    Field("owners", Array(DESCRIBE_DELEGATION_TOKEN_OWNER), nullable_since=0),
)

DESCRIBED_DELEGATION_TOKEN_RENEWER = Struct(
    Field("principal_type", "string"),
    Field("principal_name", "string"),
)

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
    Field("renewers", Array(DESCRIBED_DELEGATION_TOKEN_RENEWER)),
)

DESCRIBE_DELEGATION_TOKEN_RESPONSE = Struct(
    Field("error_code", "int16"),
    Field("tokens", Array(DESCRIBED_DELEGATION_TOKEN)),
    Field("throttle_time_ms", "int32", doc="ms for which a quota throttles the client"),
)

DESCRIBE_DELEGATION_TOKEN = Api(
    key=41,
    name="DescribeDelegationToken",
    request=DESCRIBE_DELEGATION_TOKEN_REQUEST,
    response=DESCRIBE_DELEGATION_TOKEN_RESPONSE,
    first=1,
    last=3,
    flexible_since=2,
    route=Route.ANY,
)
