"""PLAIN (RFC 4616): the password as it is. Who listens has it, so it belongs on a connection with TLS."""

from __future__ import annotations

from protocol.errors import ConfigurationError
from protocol.sasl.exchange import Exchange
from protocol.secret import Secret


def plain(username: Secret, password: Secret) -> Exchange:
    """Raises `ConfigurationError` for a name or a password that the message cannot hold."""
    if any("\0" in part.reveal() for part in (username, password)):
        raise ConfigurationError("the user's name or password contains a NUL, which PLAIN cannot carry.")
    yield f"\0{username.reveal()}\0{password.reveal()}".encode()
