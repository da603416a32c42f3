"""Fetch an OAuth 2.0 token from a token endpoint.

With client credentials (RFC 6749, section 4.4) as Kafka's Java client: a POST with client id and secret in the header.
From Azure's metadata endpoint (IMDS) as librdkafka: a GET with a query. Both with retries and back-off. Redirects are
not followed. Messages never contain sent data; of the response they contain only the error fields of RFC 6749.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.base.clock import Backoff, Deadline
from protocol.base.once import warn_once
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.net.http_exchange import TRANSIENT_STATUS, exchange
from protocol.net.tls_context import new_context
from protocol.sasl.cloud_identity import AzureImds
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import TokenEndpoint
from protocol.sasl.token import is_valid_time_s
from protocol.security.tls_config import TLS_PROPERTIES, parse_tls
from protocol.settings.property_kinds import Effect, Property, parse_url, shown, shown_url
from protocol.settings.secret import HIDDEN, Secret, hide_variables

log = logging.getLogger(__name__)

_SETTINGS = ("sasl.oauthbearer.token.endpoint.url",)
_ALL_SETTINGS = (*_SETTINGS, "sasl.oauthbearer.config")
_IMDS_VERSION = "2018-02-01"
_IMDS_REMEDY = (
    f"check that this process runs on an Azure VM with a managed identity, and the query in {_ALL_SETTINGS[-1]}"
)
_MAX_DIGITS = 10


class _NoAnswer(Exception):
    """A failure that a retry may resolve."""


@dataclass(frozen=True)
class _Request:
    """A request to a token endpoint, and the parser of its response."""

    url: urllib.parse.SplitResult
    make: Callable[[], tuple[str, Mapping[str, str], str | None]]
    """Returns the method, the headers and the body."""
    tls: Mapping[str, Secret]
    transient: frozenset[int]
    remedy: str
    secret: Secret | None = None


def ask_endpoint(source: TokenEndpoint, config: SaslConfig, deadline: Deadline) -> tuple[str, float | None]:
    """Fetch a token from an endpoint.

    The second result is the lifetime in seconds; None if the endpoint does not say.
    Raises `AuthenticationFailed`: the endpoint refused. `ConnectFailed`: no valid response by the deadline.
    """
    url = _parsed(source.url)
    if url.scheme == "http":
        warn_once(
            f"{_SETTINGS[0]} is {shown_url(url)}…: client secret and token are sent unencrypted; use https",
            _SETTINGS[0],
        )
    fields = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    request = _Request(
        url,
        lambda: ("POST", _headers(source, config), urllib.parse.urlencode(fields)),
        source.tls,
        TRANSIENT_STATUS,
        "check the client's id, its secret and the scope",
        source.client_secret,
    )
    return _ask_until(request, config, deadline)


def ask_imds(
    source: AzureImds, resource: str | None, config: SaslConfig, deadline: Deadline
) -> tuple[str, float | None]:
    """Fetch a token of a managed identity from Azure's metadata endpoint.

    `resource`: the resource to ask for if `source` has no query.
    Raises `ConfigurationError`: neither a query nor a resource. `AuthenticationFailed`: the endpoint refused.
    `ConnectFailed`: no valid response by the deadline.
    """
    query = source.query
    if query is None and resource is not None:
        query = urllib.parse.urlencode({"api-version": _IMDS_VERSION, "resource": resource})
    url = _parsed(source.url)
    query = "&".join(filter(None, (url.query, query)))
    if not query:
        raise ConfigurationError(
            "the broker is no Event Hubs namespace; set sasl.oauthbearer.config to "
            f"query=api-version={_IMDS_VERSION}&resource=RESOURCE, and &client_id=ID for a user-assigned identity.",
            settings=("sasl.oauthbearer.config",),
        )
    request = _Request(
        url._replace(query=query),
        lambda: ("GET", {"Accept": "application/json", "Metadata": "true"}, None),
        {},
        # While an identity is assigned, and while the endpoint is updated.
        TRANSIENT_STATUS | {404, 410},
        _IMDS_REMEDY,
    )
    return _ask_until(request, config, deadline)


def _ask_until(request: _Request, config: SaslConfig, deadline: Deadline) -> tuple[str, float | None]:
    backoff = Backoff(config.login_retry_backoff_ms, config.login_retry_backoff_max_ms)
    where = shown_url(request.url)
    while True:
        try:
            return _ask(request, deadline.at_most_ms(config.login_read_timeout_ms))
        except _NoAnswer as error:
            wait_s = backoff.next_s()
            if wait_s >= deadline.remaining_s():
                message = f"no token from {where}: {error}; {request.remedy}"
                raise ConnectFailed(message, settings=_ALL_SETTINGS) from None
            log.debug("no token from %s, retrying: %s", where, error)
            deadline.clock.sleep_s(wait_s)


def _parsed(text: str) -> urllib.parse.SplitResult:
    """Parse a URL; raise `ConfigurationError` if it is not http or https."""
    url = parse_url(text)
    if url is None:
        raise ConfigurationError(f"{_SETTINGS[0]} is neither https://… nor file:///….", settings=_SETTINGS)
    return url


@hide_variables
def _ask(request: _Request, limit: Deadline) -> tuple[str, float | None]:
    method, headers, body = request.make()
    try:
        status, received = exchange(request.url, method, headers, body, limit, context=lambda: _context(request.tls))
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"the certificate of the token endpoint {shown_url(request.url)} is not trusted: {error.verify_message}",
            settings=_SETTINGS,
        ) from error
    except ConnectFailed as error:
        raise _NoAnswer(str(error)) from error
    return _token(request, status, received)


def _headers(source: TokenEndpoint, config: SaslConfig) -> dict[str, str]:
    pair = [source.client_id.reveal(), source.client_secret.reveal()]
    if config.header_urlencode:
        pair = [urllib.parse.quote_plus(part) for part in pair]
    return {
        "Accept": "application/json",
        "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _context(tls: Mapping[str, Secret]) -> ssl.SSLContext:
    """Create the TLS context from the login module's properties; the default is to trust the system's CAs."""
    rows = [row for row in TLS_PROPERTIES if row.name in tls and row.effect is Effect.APPLIES]
    return new_context(parse_tls({_field(row): row.kind.read(row.name, tls[row.name].reveal()) for row in rows}))


def _field(row: Property) -> str:
    return row.field.removeprefix("ssl_")


def _token(request: _Request, status: int, body: bytes) -> tuple[str, float | None]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    if status in (200, 201) and isinstance(fields.get("access_token"), str):
        return fields["access_token"].strip(), _lifetime_s(fields.get("expires_in"))
    words = ", ".join(
        # Some endpoints repeat the received secret.
        shown(fields[name] if request.secret is None else fields[name].replace(request.secret.reveal(), HIDDEN))
        for name in ("error", "error_description")
        if isinstance(fields.get(name), str)
    )
    answer = f"the response has status {status}{f' ({words})' if words else ''} and no access_token"
    if status in request.transient:
        raise _NoAnswer(answer)
    raise AuthenticationFailed(
        f"no token from {shown_url(request.url)}: {answer}; {request.remedy}", settings=_ALL_SETTINGS
    )


def _lifetime_s(lifetime: object) -> float | None:
    """Return the lifetime in a response; Azure's metadata endpoint sends it as text."""
    if isinstance(lifetime, str) and lifetime.isascii() and lifetime.isdigit() and len(lifetime) <= _MAX_DIGITS:
        lifetime = int(lifetime)
    return float(lifetime) if is_valid_time_s(lifetime) else None
