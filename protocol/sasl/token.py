"""Tokens for OAUTHBEARER: expiry, renewal, and unsigned tokens. Pure functions."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from protocol.errors import ConfigurationError
from protocol.settings.secret import Secret

# The default of Java's client (sasl.login.refresh.window.factor).
_REFRESH_WINDOW_FACTOR = 0.8
_UNSECURED = "unsecuredLogin"
_EXTENSIONS = "sasl.oauthbearer.extensions"
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
# In the year 5138: a larger number is most likely in milliseconds.
_MAX_TIME_S = 1e11


@dataclass(frozen=True)
class Token:
    """A bearer token; times are in seconds since 1970.

    Without `expires_at_s` the expiry is unknown, and the token is used for one connection only.
    """

    value: Secret
    obtained_at_s: float
    expires_at_s: float | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)

    def needs_renewal(self, now_s: float) -> bool:
        """Return True if the token should be renewed: after 80 % of its life, or always if its expiry is unknown."""
        if self.expires_at_s is None:
            return True
        return now_s >= self.obtained_at_s + _REFRESH_WINDOW_FACTOR * (self.expires_at_s - self.obtained_at_s)

    def is_expired(self, now_s: float) -> bool:
        """Return True if the token has expired, or its expiry is unknown."""
        return self.expires_at_s is None or now_s >= self.expires_at_s


def is_valid_time_s(value: object) -> TypeGuard[float]:
    """Return True if `value` can be a time in seconds since 1970, or a number of seconds from now."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MAX_TIME_S


def jwt_expiry_s(text: str) -> float | None:
    """Return the expiry of a JSON Web Token (RFC 7519); None for other tokens, or without a valid `exp` claim."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if is_valid_time_s(end) else None


def checked_extensions(extensions: Mapping[str, str]) -> Mapping[str, str]:
    """Return SASL extensions (KIP-342); raise `ConfigurationError` for one that the message cannot contain."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigurationError(
                f"{_EXTENSIONS} or the source of the token has a wrong extension; it must have a name of letters, but "
                "not auth, and ASCII text as its value.",
                settings=(_EXTENSIONS,),
            )
    return extensions


def unsecured_token(options: Mapping[str, str], now_s: float) -> Token:
    """Create the token that the options of Java's `OAuthBearerUnsecuredLoginCallbackHandler` describe.

    Raises `ConfigurationError`: a numeric option is not a number.
    """
    try:
        lifetime_s = int(options.get(f"{_UNSECURED}LifetimeSeconds", "3600"))
        claims: dict[str, Any] = {"iat": now_s, "exp": now_s + lifetime_s}
        claims |= _options_of_kind(options, "StringClaim_")
        claims |= {name: float(value) for name, value in _options_of_kind(options, "NumberClaim_").items()}
        claims |= {
            name: value[1:].split(value[0]) if value else []
            for name, value in _options_of_kind(options, "ListClaim_").items()
        }
    except ValueError as error:
        raise ConfigurationError(
            f"sasl.jaas.config: a setting {_UNSECURED}… is not a number.", settings=("sasl.jaas.config",)
        ) from error
    parts = (_base64(json.dumps(part).encode()) for part in ({"alg": "none"}, claims))
    return Token(Secret(".".join(parts) + "."), now_s, claims["exp"], _options_of_kind(options, "Extension_"))


def _options_of_kind(options: Mapping[str, str], kind: str) -> dict[str, str]:
    prefix = _UNSECURED + kind
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
