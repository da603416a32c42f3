"""Kafka's SASL properties, which `protocol.properties` adds to its table, and a client's values of them.

`credentials` converts the values to credentials. Texts may contain references (`${env:…}`); `resolved` replaces them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from protocol.sasl.jaas import class_of
from protocol.settings.config_providers import resolve_references
from protocol.settings.property_kinds import (
    BOOLEAN,
    MILLISECONDS,
    NONEMPTY,
    POSITIVE_MILLISECONDS,
    SECRET,
    Kind,
    Property,
    Role,
    applies,
    forbidden,
    no_effect,
    not_yet,
    one_of,
)
from protocol.settings.secret import Secret, hide_variables

_CLIENT = Role.CLIENT
MECHANISM = one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
# The first three are librdkafka's.
METADATA_TYPE = one_of("none", "azure_imds", "aws_iam", "azure", "aws_msk_iam", "google_managed_kafka")

_KAFKA = "org.apache.kafka.common.security"
_AWS = "software.amazon.msk.auth.iam"
_REMEDY = "other Java classes are not supported; use sasl.oauthbearer.token.provider=package.module:function"


def _supported_java_class(*names: str) -> Kind:
    """Return a kind of property for Java classes whose function this client implements, also with shading prefixes."""

    def parse(text: str) -> str:
        module = class_of(text, names)
        if module is None:
            raise ValueError(_REMEDY)
        return module

    return Kind(", ".join(names), parse)


_LOGIN_HANDLER = _supported_java_class(
    f"{_KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    f"{_AWS}.IAMOAuthBearerLoginCallbackHandler",
    "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler",
)
_CLIENT_HANDLER = _supported_java_class(
    f"{_KAFKA}.authenticator.SaslClientCallbackHandler",
    f"{_KAFKA}.oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
    f"{_AWS}.IAMClientCallbackHandler",
)
_JWT_RETRIEVER = _supported_java_class(
    *(f"{_KAFKA}.oauthbearer.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File"))
)


def _applies(name: str, kind: Kind, doc: str, *, field: str = "") -> Property:
    """Return a row whose value is never shown: a secret may have been set in the wrong property."""
    return applies(_CLIENT, name, replace(kind, secret=True), doc, field=field)


SASL_PROPERTIES: tuple[Property, ...] = (
    _applies("sasl.mechanism", MECHANISM, "SASL mechanism, with security.protocol SASL_PLAINTEXT or SASL_SSL"),
    _applies("sasl.jaas.config", SECRET, "credentials as for Java's clients: a login module with its settings"),
    _applies("sasl.username", SECRET, "user name for PLAIN and SCRAM, as for librdkafka"),
    _applies("sasl.password", SECRET, "password for PLAIN and SCRAM"),
    _applies(
        "sasl.login.callback.handler.class",
        _LOGIN_HANDLER,
        "Java's class that selects the source of a token",
        field="sasl_login_handler",
    ),
    _applies(
        "sasl.client.callback.handler.class",
        _CLIENT_HANDLER,
        "accepted, without effect: this client always does what these Java classes do",
        field="sasl_client_handler",
    ),
    _applies(
        "sasl.oauthbearer.jwt.retriever.class",
        _JWT_RETRIEVER,
        "accepted, without effect: this client always does what these Java classes do",
        field="sasl_jwt_retriever",
    ),
    _applies(
        "sasl.oauthbearer.token.provider",
        NONEMPTY,
        "package.module:function, without arguments: it returns a token, or (token, expiry in seconds since 1970), or "
        "these two and a dict of extensions. Called when a connection is opened, on the driver and in executors, and "
        "again after 80 % of the token's life (a property of this client, not of Kafka)",
        field="sasl_token_provider",
    ),
    _applies(
        "sasl.oauthbearer.metadata.authentication.type",
        METADATA_TYPE,
        "token of a cloud's identity, which needs no secret here: azure_imds and aws_iam as librdkafka defines them; "
        "azure: any credential of azure-identity; aws_msk_iam: for MSK; google_managed_kafka: for Google's Managed "
        "Kafka",
        field="sasl_metadata_type",
    ),
    _applies(
        "sasl.oauthbearer.config",
        SECRET,
        "settings of sasl.oauthbearer.metadata.authentication.type, as name=value,name=value; azure_imds: query; "
        "azure: client_id; aws_iam: region, audience, duration_seconds, signing_algorithm, sts_endpoint, tag_NAME; "
        "aws_msk_iam: region, profile, role_arn, role_session_name",
        field="sasl_metadata_config",
    ),
    _applies(
        "sasl.oauthbearer.extensions",
        NONEMPTY,
        "SASL extensions to send with a token, as name=value,name=value; a backslash before a comma keeps it",
        field="sasl_extensions",
    ),
    _applies(
        "sasl.oauthbearer.token.endpoint.url",
        NONEMPTY,
        "token endpoint for client credentials (https), or file:///PATH of a token; with azure_imds, its endpoint",
        field="sasl_token_endpoint_url",
    ),
    _applies(
        "sasl.oauthbearer.client.credentials.client.id",
        SECRET,
        "client id for the token endpoint; default: clientId in sasl.jaas.config",
        field="sasl_client_id",
    ),
    _applies(
        "sasl.oauthbearer.client.credentials.client.secret",
        SECRET,
        "client secret for the token endpoint; default: clientSecret in sasl.jaas.config",
        field="sasl_client_secret",
    ),
    _applies(
        "sasl.oauthbearer.scope",
        NONEMPTY,
        "scope for the token endpoint, or for azure; default: in sasl.jaas.config, and for Event Hubs its namespace",
        field="sasl_scope",
    ),
    _applies(
        "sasl.oauthbearer.header.urlencode",
        BOOLEAN,
        "true: URL-encode id and secret for the token endpoint, as RFC 6749 requires and few endpoints expect",
        field="sasl_header_urlencode",
    ),
    _applies("sasl.login.read.timeout.ms", POSITIVE_MILLISECONDS, "time limit for a response of the token endpoint"),
    _applies("sasl.login.retry.backoff.ms", MILLISECONDS, "first delay before a retry of the token endpoint"),
    _applies("sasl.login.retry.backoff.max.ms", MILLISECONDS, "maximum delay before a retry of the token endpoint"),
    _applies("sasl.kerberos.service.name", NONEMPTY, "the first part of the brokers' Kerberos principal"),
    *no_effect(
        _CLIENT,
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.buffer.seconds",
        "a token is renewed after 80 % of its life, when a connection needs it",
    ),
    *no_effect(_CLIENT, "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms includes it"),
    *no_effect(
        _CLIENT, "sasl.oauthbearer.method", "the other properties of sasl.oauthbearer select the source of the token"
    ),
    *no_effect(
        _CLIENT,
        "sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter "
        "sasl.kerberos.min.time.before.relogin",
        "the system manages tickets; this client does not call kinit",
    ),
    *no_effect(
        _CLIENT,
        "sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.clock.skew.seconds "
        "sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwt.validator.class",
        "brokers validate tokens, not this client",
    ),
    *forbidden(_CLIENT, "sasl.login.class", f"Java classes are not supported; {_REMEDY.split('; ')[1]}"),
    *not_yet(
        _CLIENT,
        "sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud "
        "sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss "
        "sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds "
        "sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file "
        "sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase "
        "sasl.oauthbearer.assertion.template.file",
        f"tokens for assertions (KIP-1139) are not supported yet; {_REMEDY.split('; ')[1]}",
    ),
)


@dataclass(frozen=True)
class SaslConfig:
    """SASL settings by field; `protocol.sasl.config` documents each.

    `login_handler`, `client_handler` and `jwt_retriever` are full names of Java classes whose function this client
    implements. The last two have no effect: this client always does what these classes do.
    """

    mechanism: str | None = None
    jaas_config: Secret | None = None
    username: Secret | None = None
    password: Secret | None = None
    login_handler: str | None = None
    client_handler: str | None = None
    jwt_retriever: str | None = None
    token_provider: str | None = None
    metadata_type: str = "none"
    metadata_config: Secret | None = None
    extensions: str | None = None
    token_endpoint_url: str | None = None
    client_id: Secret | None = None
    client_secret: Secret | None = None
    scope: str | None = None
    header_urlencode: bool = False
    login_read_timeout_ms: int = 5_000
    login_retry_backoff_ms: int = 100
    login_retry_backoff_max_ms: int = 10_000
    kerberos_service_name: str | None = None

    @hide_variables
    def resolved(self) -> SaslConfig:
        """Return a copy with all references replaced; raise `ConfigurationError` for one that cannot be resolved."""
        return dataclasses.replace(self, **{name: _resolved(value) for name, value in vars(self).items()})


NO_SASL = SaslConfig()


def _resolved(value: Any) -> Any:
    if isinstance(value, Secret):
        return Secret(resolve_references(value.reveal()))
    return resolve_references(value) if isinstance(value, str) else value
