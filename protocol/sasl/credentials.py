"""Derive credentials from a `SaslConfig`. Pure functions.

Called when options are parsed, to report errors early, and again when a connection is opened, with references
resolved. Error messages name properties, never their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.base.spelling import closest_match
from protocol.errors import ConfigurationError
from protocol.sasl.cloud_identity import AwsIam, CloudIdentity, GoogleManagedKafka, cloud_identity, name_value_pairs
from protocol.sasl.config import SaslConfig
from protocol.sasl.jaas import LoginModule, class_of, parse_jaas
from protocol.sasl.token import checked_extensions
from protocol.settings.config_providers import is_reference
from protocol.settings.secret import Secret


@dataclass(frozen=True)
class Password:
    """Credentials for PLAIN and SCRAM. `token_auth`: they are a delegation token's id and HMAC (KIP-48)."""

    username: Secret
    password: Secret
    token_auth: bool = False


@dataclass(frozen=True)
class Kerberos:
    """Kerberos credentials; without `principal` and `keytab`, the tickets of the process are used."""

    service_name: str
    principal: str | None = None
    keytab: str | None = None


@dataclass(frozen=True)
class TokenProvider:
    """A user-defined function that returns a token, as `package.module:function`."""

    function: str


@dataclass(frozen=True)
class TokenFile:
    """A file that contains a token."""

    path: str


@dataclass(frozen=True)
class TokenEndpoint:
    """Client credentials (RFC 6749, 4.4) for the token endpoint at `url`; `tls` are `ssl.*` properties for it."""

    url: str
    client_id: Secret
    client_secret: Secret
    scope: str | None
    extensions: Mapping[str, str] = field(default_factory=dict)
    tls: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True)
class UnsecuredToken:
    """An unsigned token, for brokers that accept it; `options` are those of Java's callback handler."""

    options: Mapping[str, str]


TokenSource = TokenProvider | TokenFile | TokenEndpoint | UnsecuredToken | CloudIdentity
Credentials = Password | Kerberos | TokenSource

_KAFKA = "org.apache.kafka.common.security"
_PLAIN, _SCRAM = f"{_KAFKA}.plain.PlainLoginModule", f"{_KAFKA}.scram.ScramLoginModule"
_OAUTHBEARER = f"{_KAFKA}.oauthbearer.OAuthBearerLoginModule"
_KERBEROS = "com.sun.security.auth.module.Krb5LoginModule"
_AWS_IAM = "software.amazon.msk.auth.iam.IAMLoginModule"

# The login modules that each mechanism accepts. In Java, too, the two password modules are interchangeable.
_MODULES: Mapping[str, tuple[str, ...]] = {
    "PLAIN": (_PLAIN, _SCRAM),
    "SCRAM-SHA-256": (_SCRAM, _PLAIN),
    "SCRAM-SHA-512": (_SCRAM, _PLAIN),
    "OAUTHBEARER": (_OAUTHBEARER,),
    "GSSAPI": (_KERBEROS,),
    "AWS_MSK_IAM": (_AWS_IAM,),
}
_UNSECURED = "unsecuredLogin"
_EXTENSION = re.compile(r"extension_(.+)")
# With these keys the client would authenticate as another AWS principal.
_OTHER_AWS_KEYS = ("awsRoleExternalId", "awsRoleAccessKeyId", "awsRoleSecretAccessKey", "awsRoleSessionToken")


def credentials(config: SaslConfig) -> Credentials | None:
    """Return the credentials of `config`.

    Returns None if they depend on a property that is an unresolved reference: call again with `config.resolved()`.
    Raises `ConfigurationError`: a property is missing or wrong; the message names it.
    """
    mechanism = config.mechanism
    if mechanism is None:
        raise _missing("sasl.mechanism", ", ".join(_MODULES))
    # No variable of this frame holds a text: tracebacks may show it.
    if any(
        is_reference(text or "")
        for text in (
            _text(config.jaas_config), _text(config.metadata_config), config.extensions, config.token_endpoint_url
        )
    ):  # fmt: skip
        return None
    module = _module(config, mechanism)
    options = module.options if module is not None else {}
    sasl_extensions(config)  # reports a wrong one
    if config.metadata_type != "none":
        return _cloud_identity(config, mechanism)
    if mechanism == "AWS_MSK_IAM":
        return _aws_iam(options)
    if mechanism == "OAUTHBEARER":
        return _token_source(config, options)
    if mechanism == "GSSAPI":
        return _kerberos(config, options)
    return _password(config, options)


def _module(config: SaslConfig, mechanism: str) -> LoginModule | None:
    if config.jaas_config is None:
        return None
    module = parse_jaas(config.jaas_config)
    if class_of(module.name, _MODULES[mechanism]) is None:
        raise ConfigurationError(
            f"sasl.jaas.config is [hidden], whose login module does not support sasl.mechanism {mechanism}; "
            f"use {_MODULES[mechanism][0]}.",
            settings=("sasl.jaas.config", "sasl.mechanism"),
        )
    return module


def _password(config: SaslConfig, options: Mapping[str, Secret]) -> Password:
    username, password = options.get("username", config.username), options.get("password", config.password)
    if username is None or password is None:
        raise _incomplete(
            options,
            {"username": username, "password": password},
            'username="…" and password="…" in it, or sasl.username and sasl.password',
            "sasl.username",
            "sasl.password",
        )
    return Password(username, password, (_text(options.get("tokenauth")) or "").lower() == "true")


def _kerberos(config: SaslConfig, options: Mapping[str, Secret]) -> Kerberos:
    service_name = _text(options.get("serviceName")) or config.kerberos_service_name
    if service_name is None:
        raise _missing("sasl.kerberos.service.name", "the first part of the brokers' principal, for example kafka")
    keytab = _text(options.get("keyTab")) if (_text(options.get("useKeyTab")) or "").lower() == "true" else None
    return Kerberos(service_name, _text(options.get("principal")), keytab)


def _aws_iam(options: Mapping[str, Secret]) -> AwsIam:
    if foreign := next((name for name in options if name.startswith(_OTHER_AWS_KEYS)), None):
        raise ConfigurationError(
            f"sasl.jaas.config is [hidden], whose {foreign} the AWS signer does not support; use AWS's environment "
            "variables or a profile, or sasl.oauthbearer.token.provider with sasl.mechanism OAUTHBEARER.",
            settings=("sasl.jaas.config", "sasl.oauthbearer.token.provider", "sasl.mechanism"),
        )
    names = ("awsProfileName", "awsRoleArn", "awsRoleSessionName")
    return AwsIam(*(_text(options.get(name)) or None for name in names))


def _cloud_identity(config: SaslConfig, mechanism: str) -> CloudIdentity:
    name = "sasl.oauthbearer.metadata.authentication.type"
    rivals = {
        "sasl.oauthbearer.token.provider": config.token_provider,
        "sasl.oauthbearer.token.endpoint.url": None
        if config.metadata_type == "azure_imds"
        else config.token_endpoint_url,
    }
    if mechanism != "OAUTHBEARER":
        raise ConfigurationError(
            f"{name}={config.metadata_type} requires sasl.mechanism=OAUTHBEARER.", settings=(name, "sasl.mechanism")
        )
    for option, text in rivals.items():
        if text is not None:
            raise ConfigurationError(
                f"{name}={config.metadata_type} and {option} are two sources of a token; give one.",
                settings=(name, option),
            )
    return cloud_identity(config)


def sasl_extensions(config: SaslConfig) -> Mapping[str, str]:
    """Return the SASL extensions of `sasl.oauthbearer.extensions`, to send with any token.

    Raises `ConfigurationError`: the property is not name=value,name=value, or OAUTHBEARER has no such extension.
    """
    if config.extensions is None:
        return {}
    return checked_extensions(name_value_pairs("sasl.oauthbearer.extensions", config.extensions))


def _token_source(config: SaslConfig, options: Mapping[str, Secret]) -> TokenSource:
    handler = (config.login_handler or "").rpartition(".")[2]
    if handler == "IAMOAuthBearerLoginCallbackHandler":
        return _aws_iam(options)
    if handler == "GcpLoginCallbackHandler":
        return GoogleManagedKafka()
    if config.token_provider is not None:
        if not re.fullmatch(r"[\w.]+:\w+", config.token_provider) and "${" not in config.token_provider:
            raise ConfigurationError(
                "sasl.oauthbearer.token.provider is [hidden]; allowed: package.module:function.",
                settings=("sasl.oauthbearer.token.provider",),
            )
        return TokenProvider(config.token_provider)
    url = config.token_endpoint_url
    if url is not None and url.startswith("file:"):
        return TokenFile(re.sub(r"^file:(//)?", "", url))
    if url is not None:
        return _token_endpoint(config, options, url)
    if any(name.startswith(_UNSECURED) for name in options):
        return UnsecuredToken({name: value.reveal() for name, value in options.items() if name.startswith(_UNSECURED)})
    raise _missing(
        "sasl.oauthbearer.token.provider",
        "package.module:function, sasl.oauthbearer.token.endpoint.url or sasl.oauthbearer.metadata.authentication.type",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.metadata.authentication.type",
    )


def _token_endpoint(config: SaslConfig, options: Mapping[str, Secret], url: str) -> TokenEndpoint:
    client_id = config.client_id or options.get("clientId")
    client_secret = config.client_secret or options.get("clientSecret")
    if client_id is None or client_secret is None:
        credentials = {"clientId": client_id, "clientSecret": client_secret}
        raise _incomplete(options, credentials, 'clientId="…" and clientSecret="…" in it, for the token endpoint')
    extensions = {match[1]: value.reveal() for name, value in options.items() if (match := _EXTENSION.fullmatch(name))}
    tls = {name: value for name, value in options.items() if name.startswith("ssl.")}
    return TokenEndpoint(url, client_id, client_secret, config.scope or _text(options.get("scope")), extensions, tls)


def _text(value: Secret | None) -> str | None:
    return None if value is None else value.reveal()


def _incomplete(
    options: Mapping[str, Secret], needed: Mapping[str, Secret | None], give: str, *alternatives: str
) -> ConfigurationError:
    """Return the error for settings that no login module and no property has; `needed` has None for these."""
    name = "sasl.jaas.config"
    if not options:
        return _missing(name, give, *alternatives)
    lacking = [name for name, value in needed.items() if value is None]
    slip = next((option for option in options if option not in needed and closest_match(option, lacking)), None)
    hint = f"is {slip} a misspelling of {closest_match(slip, lacking)}?" if slip else f"give {give}."
    return ConfigurationError(
        f"{name} is [hidden], which lacks {' and '.join(lacking)}; {hint}", settings=(name, *alternatives)
    )


def _missing(name: str, give: str, *alternatives: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is missing; give {give}.", settings=(name, *alternatives))
