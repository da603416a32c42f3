"""OAUTHBEARER (RFC 7628, KIP-255): a token in place of a password. Who listens has it, until it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from protocol.errors import AuthenticationFailed, ConfigurationError
from protocol.sasl.exchange import Exchange
from protocol.secret import Secret

_SEPARATOR = "\x01"
# What a header of HTTP may hold (RFC 6750); anything else could be taken for other fields of the message.
_TOKEN = re.compile(r"[-._~+/A-Za-z0-9]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_MOST_SHOWN = 200


def oauthbearer(token: Secret, extensions: Mapping[str, str]) -> Exchange:
    """`extensions`: what the broker is told beside the token (KIP-342). Raises `ConfigurationError`."""
    refusal = yield _message(token, extensions)
    if refusal:
        # Only then does the broker end the exchange, with an error of its own.
        yield _SEPARATOR.encode()
        raise AuthenticationFailed(f"the broker refused the token{_said(refusal)}")


def _message(token: Secret, extensions: Mapping[str, str]) -> bytes:
    fields = {"auth": f"Bearer {_checked_token(token)}", **checked_extensions(extensions)}
    pairs = "".join(f"{name}={value}{_SEPARATOR}" for name, value in fields.items())
    return f"n,,{_SEPARATOR}{pairs}{_SEPARATOR}".encode()


def _checked_token(token: Secret) -> str:
    if not _TOKEN.fullmatch(token.reveal()):
        raise ConfigurationError("the token is empty, or has characters that no bearer token has.")
    return token.reveal()


def checked_extensions(extensions: Mapping[str, str]) -> Mapping[str, str]:
    """Raises `ConfigurationError` for an extension that the message cannot hold."""
    for name, value in extensions.items():
        if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
            raise ConfigurationError("the name of an extension is letters only, and not auth; its value is ASCII text.")
    return extensions


def _said(refusal: bytes) -> str:
    """What the refusal says by RFC 7628, in brackets."""
    try:
        fields = json.loads(bytes(refusal))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return ""
    words = ", ".join(f"{name}: {fields[name]}" for name in ("status", "scope") if isinstance(fields.get(name), str))
    return f" ({words[:_MOST_SHOWN]})" if words else ""
