"""Tokens for OAUTHBEARER from the configured source, each cached for four fifths of its lifetime.

Owned by `authenticate`, which requests a token when a connection is opened or its session is renewed; there is no
refresh thread. Errors name the source, but never its output.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.clock import Clock, Deadline
from protocol.condition import acquired
from protocol.errors import AuthenticationFailed, ConfigurationError, KafkaError, RequestTimedOut
from protocol.property_kinds import shown
from protocol.sasl.config import SaslConfig
from protocol.sasl.credentials import AwsIam, TokenEndpoint, TokenFile, TokenProvider, TokenSource, UnsecuredToken
from protocol.sasl.token import Token, is_valid_time_s, jwt_expiry_s, unsecured_token
from protocol.secret import Secret, hide_variables

log = logging.getLogger(__name__)

_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?(?::\d+)?$")


class Tokens:
    """The newest token of the source. Thread-safe: one thread requests a token, the others wait for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._source: TokenSource | None = None
        self._token: Token | None = None

    def token(self, source: TokenSource, config: SaslConfig, address: str, deadline: Deadline) -> Token:
        """Return a valid token. Raises `AuthenticationFailed`, `ConfigurationError` or `TransportError`."""
        with acquired(self._lock, deadline.remaining_s()) as free:
            if not free:
                raise RequestTimedOut("no token in time: another thread is still requesting it")
            known = self._token if source == self._source else None
            if known is not None and not known.needs_renewal(self._now_s()):
                return known
            try:
                token = self._ask(source, config, address, deadline)
            except KafkaError as error:
                if known is None or known.is_expired(self._now_s()):
                    raise
                log.warning("The current token is used until it expires, since the source gave no new one: %s", error)
                return known
            self._source, self._token = source, token
            return token

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
        if isinstance(source, AwsIam):
            return self._made(*_signed_by_aws(source, address))
        return self._given(source)

    def _made(self, text: str, expires_at_s: float | None = None, extensions: Mapping[str, str] | None = None) -> Token:
        return Token(Secret(text), self._now_s(), expires_at_s or jwt_expiry_s(text), extensions or {})

    @hide_variables
    def _given(self, source: TokenProvider) -> Token:
        """Call the user's token provider."""
        function = _imported(source.function)
        try:
            given = function()
        except Exception as error:
            # The error's text is not repeated, since it may contain the token.
            raise AuthenticationFailed(
                f"sasl.oauthbearer.token.provider={source.function} raised {type(error).__name__}",
                settings=("sasl.oauthbearer.token.provider",),
            ) from None
        parts = given if isinstance(given, tuple) else (given,)
        text, expires_at_s, extensions = (*parts, None, None, None)[:3]
        if len(parts) > 3 or not isinstance(text, str) or not _fit(expires_at_s, extensions):
            raise ConfigurationError(
                f"sasl.oauthbearer.token.provider={source.function} returned {type(given).__name__}; it must return "
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
def _signed_by_aws(source: AwsIam, address: str) -> tuple[str, float]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise ConfigurationError(
            "sasl.mechanism=AWS_MSK_IAM requires the package aws-msk-iam-sasl-signer-python on driver and executors: "
            "pip install 'spark-kafka-source[msk-iam]'.",
            settings=("sasl.mechanism",),
        ) from error
    region = _region(address)
    try:
        if source.role_arn is not None:
            name = source.role_session_name or "spark-kafka-source"
            text, ends_at_ms = MSKAuthTokenProvider.generate_auth_token_from_role_arn(region, source.role_arn, name)
        elif source.profile is not None:
            text, ends_at_ms = MSKAuthTokenProvider.generate_auth_token_from_profile(region, source.profile)
        else:
            text, ends_at_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:
        raise AuthenticationFailed(f"the AWS signer failed: {shown(str(error))} ({type(error).__name__})") from error
    return text, ends_at_ms / 1000


def _region(address: str) -> str:
    """Return the region in an MSK broker's host name, or else of AWS's environment variables."""
    match = _REGION.search(address)
    region = match[1] if match else os.environ.get("AWS_REGION", os.environ.get("AWS_DEFAULT_REGION"))
    if region is None:
        raise ConfigurationError(f"{address} names no AWS region; set the environment variable AWS_REGION.")
    return region
