"""PLAIN (RFC 4616): the password as plain text. An eavesdropper can read it, so use TLS."""

from __future__ import annotations

from protocol.errors import ConfigurationError
from protocol.sasl.exchange import Exchange
from protocol.secret import Secret


def plain(username: Secret, password: Secret) -> Exchange:
    """Authenticate with a password; raise `ConfigurationError` for a NUL, which the message cannot contain."""
    if any("\0" in part.reveal() for part in (username, password)):
        raise ConfigurationError("the user's name or password contains a NUL, which PLAIN cannot carry.")
    yield f"\0{username.reveal()}\0{password.reveal()}".encode()
