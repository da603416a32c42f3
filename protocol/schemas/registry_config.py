"""Properties of a schema registry's client, with Confluent's names after `schema.registry.`.

Those of AWS Glue follow `schema.registry.glue.`, with the names of AWS's serialisers.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from protocol.base.once import warn_once
from protocol.base.spelling import closest_match
from protocol.errors import ConfigurationError
from protocol.schemas.formats import RegistryKind
from protocol.security.tls_config import DEFAULT_TLS, TLS_PROPERTIES, TLSConfig, parse_tls
from protocol.settings.config_providers import has_reference, is_reference
from protocol.settings.property_kinds import (
    MILLISECONDS,
    NONEMPTY,
    POSITIVE_MILLISECONDS,
    SECRET,
    Effect,
    Kind,
    Property,
    Role,
    applies,
    integer,
    one_of,
    parse_url,
)
from protocol.settings.secret import Secret, hide_variables, pickled_with_secrets

PREFIX = "schema.registry."


def _urls(text: str) -> tuple[str, ...]:
    return _checked_urls(text.split(","), "; use basic.auth.user.info")


def _endpoint(text: str) -> str:
    if "," in text:
        raise ValueError("there is more than one address")
    (url,) = _checked_urls([text], ", and AWS Glue takes none")
    return url


def _checked_urls(texts: Sequence[str], instead_of_user: str) -> tuple[str, ...]:
    urls = tuple(part.strip().rstrip("/") for part in texts if part.strip())
    if not urls or any(parse_url(url) is None for url in urls):
        raise ValueError("an entry is not http://… or https://…")
    if any("@" in url.partition("//")[2].partition("/")[0] for url in urls):
        raise ValueError(f"an entry has a user{instead_of_user}")
    return urls


def _schemas_by_id(text: str) -> tuple[tuple[str, str], ...]:
    if text.startswith("file:"):
        try:
            text = Path(text.removeprefix("file:")).read_text("utf-8-sig")
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error}") from None
    pairs: list[tuple[str, Any]] = []

    def as_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
        pairs[:] = members  # the outermost object comes last
        return dict(members)

    try:
        document = json.loads(text, object_pairs_hook=as_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(document, dict) or not document:
        raise ValueError("no JSON object with schemas")
    schemas: dict[str, str] = {}
    for name, schema in pairs:
        version_id = str(uuid.UUID(name))
        if version_id in schemas:
            raise ValueError(f"{version_id} is there twice")
        schemas[version_id] = schema if isinstance(schema, str) else json.dumps(schema)
        if not schemas[version_id].strip() or not isinstance(schema, str | dict | list | bool):
            raise ValueError(f"{version_id} has no schema")
    return tuple(schemas.items())


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _user_info(text: str) -> Secret:
    if ":" not in text:
        raise ValueError("there is no colon")
    secret: Secret = SECRET.parse(text)
    return secret


_URLS = Kind("http://host:port or https://host:port, separated by commas", _urls, secret=True)
_USER_INFO = Kind("user:password", _user_info, secret=True, exact=True)
_ENDPOINT = Kind("http://host:port or https://host:port", _endpoint, secret=True)
_SCHEMAS = Kind('JSON such as {"VERSION-ID": {"type": "record", …}, …}, or file:PATH of it', _schemas_by_id)
_CLIENT = Role.CLIENT

REGISTRY_PROPERTIES: tuple[Property, ...] = (
    applies(_CLIENT, "url", _URLS, "addresses of the registry; if one does not respond, the next one is used"),
    applies(
        _CLIENT,
        "basic.auth.credentials.source",
        one_of("USER_INFO", otherwise="give the user in basic.auth.user.info"),
        "where user and password are: in basic.auth.user.info",
        field="basic_auth_source",
    ),
    applies(_CLIENT, "basic.auth.user.info", _USER_INFO, "user and password, with a colon between them"),
    applies(
        _CLIENT,
        "bearer.auth.credentials.source",
        one_of("STATIC_TOKEN", "OAUTHBEARER"),
        "STATIC_TOKEN: bearer.auth.token; OAUTHBEARER: a token from bearer.auth.issuer.endpoint.url",
        field="bearer_auth_source",
    ),
    applies(_CLIENT, "bearer.auth.token", SECRET, "the token"),
    applies(_CLIENT, "bearer.auth.issuer.endpoint.url", NONEMPTY, "the endpoint that issues tokens"),
    applies(_CLIENT, "bearer.auth.client.id", NONEMPTY, "the client's id at that endpoint"),
    applies(_CLIENT, "bearer.auth.client.secret", SECRET, "the client's secret at that endpoint"),
    applies(_CLIENT, "bearer.auth.scope", NONEMPTY, "the scope to ask for"),
    applies(_CLIENT, "bearer.auth.logical.cluster", NONEMPTY, "Confluent Cloud: the registry's logical cluster"),
    applies(_CLIENT, "bearer.auth.identity.pool.id", NONEMPTY, "Confluent Cloud: the identity pool"),
    applies(_CLIENT, "request.timeout.ms", POSITIVE_MILLISECONDS, "the longest wait for one response"),
    applies(_CLIENT, "max.retries", integer(0), "how often a failed request is repeated"),
    applies(_CLIENT, "retries.wait.ms", MILLISECONDS, "wait before the first repetition; doubles each time"),
    applies(_CLIENT, "retries.max.wait.ms", MILLISECONDS, "the longest such wait"),
    *(row for row in TLS_PROPERTIES if row.effect is Effect.APPLIES),
    applies(_CLIENT, "glue.region", NONEMPTY, "AWS Glue: the region of the registry"),
    applies(_CLIENT, "glue.endpoint", _ENDPOINT, "AWS Glue: another endpoint, such as that of a VPC"),
    applies(_CLIENT, "glue.registry.name", NONEMPTY, "AWS Glue: the name of the registry"),
    applies(_CLIENT, "glue.schemas", _SCHEMAS, "AWS Glue: schemas by version id, instead of requests to AWS"),
)
_BY_NAME = {row.name: row for row in REGISTRY_PROPERTIES}


@dataclass(frozen=True)
class RegistryConfig:
    """Values of the registry's properties. Secrets are revealed when a request is sent."""

    url: tuple[str, ...] = ()
    basic_auth_user_info: Secret | None = None
    bearer_auth_source: Literal["STATIC_TOKEN", "OAUTHBEARER"] | None = None
    bearer_auth_token: Secret | None = None
    bearer_auth_issuer_endpoint_url: str | None = None
    bearer_auth_client_id: str | None = None
    bearer_auth_client_secret: Secret | None = None
    bearer_auth_scope: str | None = None
    bearer_auth_logical_cluster: str | None = None
    bearer_auth_identity_pool_id: str | None = None
    request_timeout_ms: int = 10_000
    max_retries: int = 3
    retries_wait_ms: int = 1_000
    retries_max_wait_ms: int = 20_000
    tls: TLSConfig = DEFAULT_TLS
    glue_region: str | None = None
    glue_endpoint: str | None = None
    glue_registry_name: str = "default-registry"
    glue_schemas: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def kind(self) -> RegistryKind:
        """The kind of registry."""
        return "confluent" if self.url else "glue"

    def __reduce__(self) -> tuple[Any, ...]:
        # To executors, which fetch schemas.
        return _unpickled, (pickled_with_secrets(vars(self)),)


def _unpickled(fields: bytes) -> RegistryConfig:
    return RegistryConfig(**pickle.loads(fields))  # noqa: S301


@hide_variables
def parse_registry(properties: Mapping[str, object]) -> RegistryConfig | None:
    """Parse the properties that begin with `schema.registry.`; None if there are none.

    Raises `ConfigurationError`: a property is unknown or wrong, or two do not fit together.
    """
    values: dict[str, Any] = {}
    names: list[str] = []
    for key, value in properties.items():
        if not key.lower().startswith(PREFIX):
            continue
        name = key.lower().removeprefix(PREFIX)
        row = _BY_NAME.get(name)
        if row is None:
            like = closest_match(name, list(_BY_NAME))
            hint = f"; did you mean {PREFIX}{like}?" if like else ""
            raise ConfigurationError(f"{key} is unknown{hint}", settings=(key,))
        values[row.field] = row.kind.read(PREFIX + name, str(value), PREFIX + name)
        names.append(name)
    if not values:
        return None
    if glue := [name for name in names if name.startswith("glue.")]:
        _check_glue(values, glue[0])
    elif "url" not in values:
        raise _missing("url", names[0])
    _check_sources(values)
    tls = {name.removeprefix("ssl_"): values.pop(name) for name in list(values) if name.startswith("ssl_")}
    config = RegistryConfig(**values, tls=parse_tls(tls))
    _check_bearer(config)
    return config


_ALSO_FOR_GLUE = ("request_timeout_ms", "max_retries")


def _check_glue(values: Mapping[str, Any], first: str) -> None:
    """Raise `ConfigurationError` for a setting that AWS Glue's registry does not have, or a missing region.

    `first`: the first one of Glue's.
    """
    has_schemas = "glue_schemas" in values
    decisive = "glue.schemas" if has_schemas else first
    for row in REGISTRY_PROPERTIES:
        is_used = row.field == "glue_schemas" if has_schemas else row.field.startswith("glue_")
        if row.field in values and not is_used and row.field not in _ALSO_FOR_GLUE:
            names = PREFIX + row.name, PREFIX + decisive
            raise ConfigurationError(f"{names[0]} has no effect with {names[1]}; leave out one of them", settings=names)
    if not has_schemas and "glue_region" not in values:
        raise _missing("glue.region", decisive)


_BASIC_SOURCE, _USER = "basic.auth.credentials.source", "basic.auth.user.info"
_SOURCE, _TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
OAUTH = ("bearer.auth.issuer.endpoint.url", "bearer.auth.client.id", "bearer.auth.client.secret")
_CLOUD = ("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id")


def _check_sources(values: dict[str, Any]) -> None:
    """Raise `ConfigurationError` for a source without its credentials, or two kinds of credentials."""
    if values.pop("basic_auth_source", None) and "basic_auth_user_info" not in values:
        raise _missing(_USER, _BASIC_SOURCE)
    source = values.get("bearer_auth_source")
    bearer = _SOURCE if source else _TOKEN if "bearer_auth_token" in values else None
    if "basic_auth_user_info" in values and bearer is not None:
        raise _contradiction(_USER, bearer)
    if source == "OAUTHBEARER" and "bearer_auth_token" in values:
        raise _contradiction(_TOKEN, _SOURCE)


def _contradiction(name: str, rival: str) -> ConfigurationError:
    names = PREFIX + name, PREFIX + rival
    return ConfigurationError(
        f"{names[0]} and {names[1]} are both set, but a request has only one of them. Remove one.", settings=names
    )


def _check_bearer(config: RegistryConfig) -> None:
    if config.bearer_auth_source == "STATIC_TOKEN" and config.bearer_auth_token is None:
        raise _missing(_TOKEN, _SOURCE)
    oauth, cloud = (
        [name for name in names if getattr(config, name.replace(".", "_")) is not None]
        for names in ((*OAUTH, "bearer.auth.scope"), _CLOUD)
    )
    if config.bearer_auth_source == "OAUTHBEARER":
        for name in OAUTH:
            if name not in oauth:
                raise _missing(name, _SOURCE)
        return
    if oauth:
        names = PREFIX + oauth[0], PREFIX + _SOURCE
        warn_once(f"{names[0]} has no effect: {names[1]} is not OAUTHBEARER", *names)
    if cloud and config.basic_auth_user_info is not None:
        names = PREFIX + cloud[0], PREFIX + _USER
        warn_once(f"{names[0]} has no effect: {names[1]} is set", *names)


def _missing(name: str, because_of: str) -> ConfigurationError:
    names = (PREFIX + because_of, PREFIX + name)
    return ConfigurationError(f"{names[0]} is set, but {names[1]} is not. Set both.", settings=names)


def is_registry_secret(name: str, text: str) -> bool:
    """Return True if the property is a secret that is given as plain text."""
    row = _BY_NAME.get(name.lower().removeprefix(PREFIX))
    return row is not None and row.kind in (SECRET, _USER_INFO) and not is_reference(text)


_PUBLIC = ("truststore_certificates", "keystore_certificate_chain")


def plain_secrets(config: RegistryConfig) -> list[str]:
    """Return the properties whose secrets are plain text, without a reference such as `${env:NAME}`."""
    of_tls = {f"ssl_{name}": value for name, value in vars(config.tls).items() if name not in _PUBLIC}
    return [
        PREFIX + row.name
        for row in REGISTRY_PROPERTIES
        if isinstance(value := (vars(config) | of_tls).get(row.field), Secret) and not has_reference(value.reveal())
    ]
