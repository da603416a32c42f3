"""OAUTHBEARER (RFC 7628, KIP-255): a bearer token. An eavesdropper can use it until it expires, so use TLS."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from protocol.errors import AuthenticationFailed, ConfigurationError
from protocol.sasl.exchange import Exchange
from protocol.secret import Secret

_SEPARATOR = "\x01"
# The characters that RFC 6750 allows in an HTTP header. Others could be parsed as further fields of the message.
_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_MAX_SHOWN = 200


def oauthbearer(token: Secret, extensions: Mapping[str, str]) -> Exchange:
    """Authenticate with a token.

    Parameters
    ----------
    token
        The bearer token.
    extensions
        SASL extensions to send with the token (KIP-342).

    Raises
    ------
    ConfigurationError
        The token or an extension has invalid characters.
    AuthenticationFailed
        The broker refused the token.
    """
    refusal = yield _message(token, extensions)
    if refusal:
        # Only after this message does the broker end the exchange, with its own error.
        yield _SEPARATOR.encode()
        raise AuthenticationFailed(f"the broker refused the token{_said(refusal)}")


def _message(token: Secret, extensions: Mapping[str, str]) -> bytes:
    fields = {"auth": f"Bearer {_checked_token(token)}", **checked_extensions(extensions)}
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in fields.items())
    return f"n,,{_SEPARATOR}{pairs}{_SEPARATOR}".encode()


def _checked_token(token: Secret) -> str:
    if not _TOKEN.fullmatch(token.reveal()):
        raise ConfigurationError("the token is empty, or has characters that no token has.")
    return token.reveal()


def checked_extensions(extensions: Mapping[str, str]) -> Mapping[str, str]:
    """Return the extensions; raise `ConfigurationError` for one that the message cannot contain."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigurationError(
                "an extension must have a name of letters, but not auth, and ASCII text as its value."
            )
    return extensions


def _said(refusal: bytes) -> str:
    """Return the status and scope of the refusal (RFC 7628) in brackets."""
    try:
        fields = json.loads(bytes(refusal))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    words = ", ".join(f"{name}: {fields[name]}" for name in ("status", "scope") if isinstance(fields.get(name), str))
    return f" ({words[:_MAX_SHOWN]})" if words else ""
