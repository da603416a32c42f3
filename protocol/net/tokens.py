"""Tokens for OAUTHBEARER from the configured source, each cached for four fifths of its lifetime.

Owned by `authenticate`, which requests a token when a connection is opened or its session is renewed; there is no
refresh thread. Errors name the source, but never its output.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.base.clock import Clock, Deadline
from protocol.base.condition import Lock, locked
from protocol.base.interrupts import interruptible
from protocol.errors import AuthenticationFailed, ConfigurationError, KafkaError, RequestTimedOut
from protocol.sasl.cloud_identity import (
    AwsIam,
    AwsWebIdentity,
    AzureIdentity,
    AzureImds,
    CloudIdentity,
    GoogleManagedKafka,
)
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import TokenEndpoint, TokenFile, TokenProvider, TokenSource, UnsecuredToken
from protocol.sasl.token import Token, is_valid_time_s, jwt_expiry_s, unsecured_token
from protocol.settings.secret import Secret, hide_variables

log = logging.getLogger(__name__)

_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::\d+)?$")


class Tokens:
    """The newest token of the source. Thread-safe: one thread requests a token, the others wait for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._source: TokenSource | None = None
        self._token: Token | None = None

    def token(self, source: TokenSource, config: SaslConfig, address: str, deadline: Deadline) -> Token:
        """Return a valid token.

        `address`: host and port of the broker. Some clouds' sources derive the region or the scope from the host name.
        Raises `AuthenticationFailed` or `ConfigurationError` or `TransportError`: the source gave no token, and the
        last one has expired. `RequestTimedOut` if another thread was still requesting a token at the deadline.
        """

        def token(free: bool) -> Token:
            if not free:
                raise RequestTimedOut("no token in time: another thread is still requesting it")
            cached = self._token if source == self._source else None
            if cached is not None and not cached.needs_renewal(self._now_s()):
                return cached
            try:
                token = self._ask(source, config, address, deadline)
            except KafkaError as error:
                if cached is None or cached.is_expired(self._now_s()):
                    raise
                log.warning("The current token is used until it expires, since the source gave no new one: %s", error)
                return cached
            self._source, self._token = source, token
            return token

        return locked(self._lock, deadline.remaining_s(), token)

    def _now_s(self) -> float:
        return self._clock.wall_ms() / 1000

    def _ask(self, source: TokenSource, config: SaslConfig, address: str, deadline: Deadline) -> Token:
        if isinstance(source, UnsecuredToken):
            return unsecured_token(source.options, self._now_s())
        if isinstance(source, TokenFile):
            return self._made(_content(source.path))
        if isinstance(source, TokenEndpoint):
            from protocol.net.token_endpoint import ask_endpoint  # HTTP modules take long to import

            text, lifetime_s = ask_endpoint(source, config, deadline)
            end_s = None if lifetime_s is None else self._now_s() + lifetime_s
            return self._made(text, jwt_expiry_s(text) or end_s, source.extensions)
        if isinstance(source, TokenProvider):
            return self._given(source)
        if isinstance(source, AzureImds):
            from protocol.net.token_endpoint import ask_imds

            text, lifetime_s = ask_imds(source, _event_hubs(address), config, deadline)
            return self._made(text, None if lifetime_s is None else self._now_s() + lifetime_s)
        return self._made(*_from_cloud(source, address, deadline))

    def _made(self, text: str, expires_at_s: float | None = None, extensions: Mapping[str, str] | None = None) -> Token:
        return Token(Secret(text), self._now_s(), expires_at_s or jwt_expiry_s(text), extensions or {})

    @hide_variables
    def _given(self, source: TokenProvider) -> Token:
        """Call the user's token provider."""
        function = _imported(source.function)
        try:
            result = interruptible(function)
        except KafkaError:  # raised by `protocol.clouds`: its text has the remedy and no secret
            raise
        except Exception as error:
            # The error's text is not repeated, since it may contain the token.
            raise AuthenticationFailed(
                f"sasl.oauthbearer.token.provider={source.function} raised {type(error).__name__}",
                settings=("sasl.oauthbearer.token.provider",),
            ) from None
        parts = result if isinstance(result, tuple) else (result,)
        text, expires_at_s, extensions = (*parts, None, None, None)[:3]
        if len(parts) > 3 or not isinstance(text, str) or not _fit(expires_at_s, extensions):
            raise ConfigurationError(
                f"sasl.oauthbearer.token.provider={source.function} returned {type(result).__name__}; it must return "
                "a token, (token, expires_at_s) or (token, expires_at_s, extensions): text, seconds (not milliseconds) "
                "since 1970, and a dict of texts.",
                settings=("sasl.oauthbearer.token.provider",),
            )
        return self._made(text, expires_at_s, extensions)


def _fit(expires_at_s: object, extensions: object) -> bool:
    """Return True if the expiry and the extensions have valid types."""
    named = extensions or {}
    return (
        (expires_at_s is None or is_valid_time_s(expires_at_s))
        and isinstance(named, Mapping)
        and all(isinstance(text, str) for pair in named.items() for text in pair)
    )


def _content(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        why = type(error).__name__
    # Raised outside of `except`: a decoding error contains the file's content.
    raise ConfigurationError(
        f"sasl.oauthbearer.token.endpoint.url names a file that cannot be read ({why}): {path}.",
        settings=("sasl.oauthbearer.token.endpoint.url",),
    )


def _imported(function: str) -> Any:
    module, _, name = function.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        why = error if isinstance(error, (ImportError, AttributeError)) else type(error).__name__
        raise ConfigurationError(
            f"sasl.oauthbearer.token.provider={function} cannot be imported in this process ({why}). Install it on "
            "the driver and on the executors.",
            settings=("sasl.oauthbearer.token.provider",),
        ) from error


@hide_variables
def _from_cloud(source: CloudIdentity, address: str, deadline: Deadline) -> tuple[str, float]:
    """Ask a vendor's library for a token."""
    from protocol import clouds  # the libraries are optional, and imported at the first call

    timeout_s = deadline.remaining_s()
    if isinstance(source, AzureIdentity):
        scope = source.scope or _default_scope(address)
        return clouds.azure_token(scope, client_id=source.client_id, timeout_s=timeout_s)
    if isinstance(source, AwsIam):
        return clouds.aws_msk_iam_token(
            source.region or _region(address),
            profile=source.profile,
            role_arn=source.role_arn,
            role_session_name=source.role_session_name,
            timeout_s=timeout_s,
        )
    if isinstance(source, AwsWebIdentity):
        return clouds.aws_web_identity_token(
            source.region,
            source.audience,
            duration_s=source.duration_s,
            signing_algorithm=source.signing_algorithm,
            sts_endpoint=source.sts_endpoint,
            tags=dict(source.tags),
            timeout_s=timeout_s,
        )
    assert isinstance(source, GoogleManagedKafka)
    return clouds.google_managed_kafka_token(timeout_s=timeout_s)


def _event_hubs(address: str) -> str | None:
    """Return the resource of an Event Hubs namespace, None for another broker."""
    host = address.rpartition(":")[0]
    return f"https://{host}" if ".servicebus." in host else None


def _default_scope(address: str) -> str:
    resource = _event_hubs(address)
    if resource is None:
        raise ConfigurationError(
            f"{address} is no Event Hubs namespace; set sasl.oauthbearer.scope, for example api://APPLICATION/.default.",
            settings=("sasl.oauthbearer.scope",),
        )
    return f"{resource}/.default"


def _region(address: str) -> str:
    """Return the region in an MSK broker's host name, or else of AWS's environment variables."""
    match = _REGION.search(address)
    region = match[1] if match else os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION"))
    if region is None:
        raise ConfigurationError(f"{address} names no AWS region; set the environment variable AWS_REGION.")
    return region
