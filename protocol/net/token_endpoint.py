"""Fetch an OAuth 2.0 token with client credentials from a token endpoint (RFC 6749, section 4.4).

As Kafka's Java client: a POST with client id and secret in the header, with retries and back-off. Redirects are not
followed. Messages never contain sent data; of the response they contain only the error fields of RFC 6749.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

from protocol.clock import Backoff, Deadline
from protocol.errors import AuthenticationFailed, ConfigurationError, ConnectFailed
from protocol.net.http_exchange import TRANSIENT_STATUS, exchange
from protocol.net.tls_context import new_context
from protocol.once import warn_once
from protocol.property_kinds import Effect, Property, parse_url, shown, shown_url
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import TokenEndpoint
from protocol.sasl.token import is_valid_time_s
from protocol.secret import HIDDEN, Secret, hide_variables
from protocol.security.tls_config import TLS_PROPERTIES, parse_tls

log = logging.getLogger(__name__)

_SETTINGS = ("sasl.oauthbearer.token.endpoint.url",)


class _NoAnswer(Exception):
    """A failure that a retry may resolve."""


def ask_endpoint(source: TokenEndpoint, config: SaslConfig, deadline: Deadline) -> tuple[str, float | None]:
    """Fetch a token from an endpoint.

    Returns
    -------
    token : str
    lifetime_s : float or None
        None if the endpoint does not say.

    Raises
    ------
    AuthenticationFailed
        The endpoint refused.
    ConnectFailed
        No valid response by the deadline.
    """
    url = _parsed(source.url)
    if url.scheme == "http":
        warn_once(
            f"{_SETTINGS[0]} is {shown_url(url)}…: client secret and token are sent unencrypted; use https",
            _SETTINGS[0],
        )
    backoff = Backoff(config.login_retry_backoff_ms, config.login_retry_backoff_max_ms)
    while True:
        try:
            return _ask(url, source, config, deadline)
        except _NoAnswer as error:
            wait_s = backoff.next_s()
            if wait_s >= deadline.remaining_s():
                raise ConnectFailed(f"no token from {shown_url(url)}: {error}", settings=_SETTINGS) from None
            log.debug("no token from %s, retrying: %s", shown_url(url), error)
            deadline.clock.sleep_s(wait_s)


def _parsed(text: str) -> urllib.parse.SplitResult:
    """Parse a URL; raise `ConfigurationError` if it is not http or https."""
    url = parse_url(text)
    if url is None:
        raise ConfigurationError(f"{_SETTINGS[0]} is neither https://… nor file:///….", settings=_SETTINGS)
    return url


@hide_variables
def _ask(
    url: urllib.parse.SplitResult, source: TokenEndpoint, config: SaslConfig, deadline: Deadline
) -> tuple[str, float | None]:
    fields = {"grant_type": "client_credentials", **({"scope": source.scope} if source.scope else {})}
    form = urllib.parse.urlencode(fields)
    limit = deadline.at_most_ms(config.login_read_timeout_ms)
    try:
        status, body = exchange(
            url, "POST", _headers(source, config), form, limit, context=lambda: _context(source.tls)
        )
    except ssl.SSLCertVerificationError as error:
        raise AuthenticationFailed(
            f"the certificate of the token endpoint {shown_url(url)} is not trusted: {error.verify_message}",
            settings=_SETTINGS,
        ) from error
    except ConnectFailed as error:
        raise _NoAnswer(str(error)) from error
    return _token(url, source, status, body)


def _headers(source: TokenEndpoint, config: SaslConfig) -> dict[str, str]:
    pair = [source.client_id.reveal(), source.client_secret.reveal()]
    if config.header_urlencode:
        pair = [urllib.parse.quote_plus(each) for each in pair]
    return {
        "Accept": "application/json",
        "Authorization": f"Basic {base64.b64encode(':'.join(pair).encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _context(tls: Mapping[str, Secret]) -> ssl.SSLContext:
    """Create the TLS context from the login module's properties; the default is to trust the system's CAs."""
    if not tls:
        return ssl.create_default_context()
    rows = [row for row in TLS_PROPERTIES if row.name in tls and row.effect is Effect.APPLIES]
    return new_context(parse_tls({_field(row): row.kind.read(row.name, tls[row.name].reveal()) for row in rows}))


def _field(row: Property) -> str:
    return row.field.removeprefix("ssl_")


def _token(url: urllib.parse.SplitResult, source: TokenEndpoint, status: int, body: bytes) -> tuple[str, float | None]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    fields: dict[str, Any] = document if isinstance(document, dict) else {}
    if status in (200, 201) and isinstance(fields.get("access_token"), str):
        lifetime_s = fields.get("expires_in")
        return fields["access_token"].strip(), float(lifetime_s) if is_valid_time_s(lifetime_s) else None
    words = ", ".join(
        # Some endpoints repeat the received secret.
        shown(fields[name].replace(source.client_secret.reveal(), HIDDEN))
        for name in ("error", "error_description")
        if isinstance(fields.get(name), str)
    )
    answer = f"the response has status {status}{f' ({words})' if words else ''} and no access_token"
    if status in TRANSIENT_STATUS:
        raise _NoAnswer(answer)
    raise AuthenticationFailed(
        f"no token from {shown_url(url)}: {answer}; check the client's id, its secret and the scope",
        settings=_SETTINGS,
    )
