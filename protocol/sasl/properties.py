"""Kafka's SASL properties and their effect in this client. `protocol.properties` adds them to its table."""

from __future__ import annotations

from dataclasses import replace

from protocol.property import Property, Role, applies, forbidden, no_effect, not_yet
from protocol.property_kinds import BOOLEAN, MILLISECONDS, NONEMPTY, POSITIVE_MILLISECONDS, SECRET, Kind, one_of
from protocol.sasl.credentials import class_of

_CLIENT = Role.CLIENT
MECHANISM = one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")

_KAFKA = "org.apache.kafka.common.security"
_AWS = "software.amazon.msk.auth.iam"
_INSTEAD = "other classes cannot run here; give sasl.oauthbearer.token.provider=package.module:function"


def _class_that_is_done_here(*names: str) -> Kind:
    """Return a kind of property for Java classes whose function this client implements, also with shading prefixes."""

    def parse(text: str) -> str:
        known = class_of(text, names)
        if known is None:
            raise ValueError(_INSTEAD)
        return known

    return Kind(", ".join(names), parse)


_LOGIN_HANDLER = _class_that_is_done_here(
    f"{_KAFKA}.oauthbearer.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    f"{_KAFKA}.oauthbearer.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler",
    f"{_AWS}.IAMOAuthBearerLoginCallbackHandler",
)
_CLIENT_HANDLER = _class_that_is_done_here(
    f"{_KAFKA}.authenticator.SaslClientCallbackHandler",
    f"{_KAFKA}.oauthbearer.internals.OAuthBearerSaslClientCallbackHandler",
    f"{_AWS}.IAMClientCallbackHandler",
)
_JWT_RETRIEVER = _class_that_is_done_here(
    *(f"{_KAFKA}.oauthbearer.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File")),
)


def _applies(name: str, kind: Kind, doc: str, *, field: str = "") -> Property:
    """Return a row whose value is never shown: a secret may have been set in the wrong property."""
    return applies(_CLIENT, name, replace(kind, secret=True), doc, field=field)


SASL_PROPERTIES: tuple[Property, ...] = (
    _applies("sasl.mechanism", MECHANISM, "how to sign in, with security.protocol SASL_PLAINTEXT or SASL_SSL"),
    _applies(
        "sasl.jaas.config",
        SECRET,
        "a login module of Java's with its settings: who signs in, as Java's clients are told it",
    ),
    _applies("sasl.username", SECRET, "who signs in (PLAIN and SCRAM), as librdkafka is told it"),
    _applies("sasl.password", SECRET, "that user's password"),
    _applies(
        "sasl.login.callback.handler.class",
        _LOGIN_HANDLER,
        "where a token comes from, in Java's words",
        field="sasl_login_handler",
    ),
    _applies(
        "sasl.client.callback.handler.class",
        _CLIENT_HANDLER,
        "Java's classes for what is done here anyway",
        field="sasl_client_handler",
    ),
    _applies(
        "sasl.oauthbearer.jwt.retriever.class",
        _JWT_RETRIEVER,
        "Java's classes for what is done here anyway",
        field="sasl_jwt_retriever",
    ),
    _applies(
        "sasl.oauthbearer.token.provider",
        NONEMPTY,
        "package.module:function, without arguments: it gives a token, or (token, seconds since 1970 when it ends), or "
        "these two and a dict of extensions. Called where a connection is opened, on the driver and in executors, and "
        "again when four fifths of the token's life are over (a property of this client, not of Kafka's)",
        field="sasl_token_provider",
    ),
    _applies(
        "sasl.oauthbearer.token.endpoint.url",
        NONEMPTY,
        "where client credentials get a token (https), or file:///PATH of a token",
        field="sasl_token_endpoint_url",
    ),
    _applies(
        "sasl.oauthbearer.client.credentials.client.id",
        SECRET,
        "for that endpoint, if it is not clientId in sasl.jaas.config",
        field="sasl_client_id",
    ),
    _applies(
        "sasl.oauthbearer.client.credentials.client.secret",
        SECRET,
        "the same: clientSecret",
        field="sasl_client_secret",
    ),
    _applies("sasl.oauthbearer.scope", NONEMPTY, "the same: scope", field="sasl_scope"),
    _applies(
        "sasl.oauthbearer.header.urlencode",
        BOOLEAN,
        "whether id and secret are URL-encoded for that endpoint, as RFC 6749 has it and few endpoints want it",
        field="sasl_header_urlencode",
    ),
    _applies("sasl.login.read.timeout.ms", POSITIVE_MILLISECONDS, "the longest wait for that endpoint"),
    _applies("sasl.login.retry.backoff.ms", MILLISECONDS, "the first wait before it is asked again"),
    _applies("sasl.login.retry.backoff.max.ms", MILLISECONDS, "the longest such wait"),
    _applies("sasl.kerberos.service.name", NONEMPTY, "the first part of the brokers' Kerberos principal"),
    *no_effect(
        _CLIENT,
        "sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.login.refresh.min.period.seconds "
        "sasl.login.refresh.buffer.seconds",
        "a token is renewed when four fifths of its life are over and a connection needs it",
    ),
    *no_effect(_CLIENT, "sasl.login.connect.timeout.ms", "that is part of sasl.login.read.timeout.ms"),
    *no_effect(
        _CLIENT,
        "sasl.kerberos.kinit.cmd sasl.kerberos.ticket.renew.window.factor sasl.kerberos.ticket.renew.jitter "
        "sasl.kerberos.min.time.before.relogin",
        "tickets are the system's; nothing here calls kinit",
    ),
    *no_effect(
        _CLIENT,
        "sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.clock.skew.seconds "
        "sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url "
        "sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms "
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwt.validator.class",
        "tokens are checked by brokers, not here",
    ),
    *forbidden(_CLIENT, "sasl.login.class", f"JVM classes cannot run here; {_INSTEAD.split('; ')[1]}"),
    *not_yet(
        _CLIENT,
        "sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud "
        "sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss "
        "sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds "
        "sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file "
        "sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase "
        "sasl.oauthbearer.assertion.template.file",
        f"tokens for assertions (KIP-1139) are not supported yet; {_INSTEAD.split('; ')[1]}",
    ),
)
