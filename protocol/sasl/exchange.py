"""The type of a SASL exchange: a generator that yields messages for the broker and receives its challenges.

    exchange = plain(username, password)
    message = next(exchange)            # to send
    message = exchange.send(challenge)  # until StopIteration: the client is satisfied

It raises `AuthenticationFailed` if the broker does not prove what the mechanism requires. PLAIN is here, the other
mechanisms are in the other files of this package; `protocol.net.authenticate` runs them.
"""

from __future__ import annotations

from collections.abc import Generator

from protocol.errors import ConfigurationError
from protocol.secret import Secret

Exchange = Generator[bytes, bytes, None]


def plain(username: Secret, password: Secret) -> Exchange:
    """Authenticate with a password by PLAIN (RFC 4616), which sends it as plain text.

    Raises
    ------
    ConfigurationError
        The name or the password contains a NUL, which the message cannot contain.
    """
    if any("\0" in part.reveal() for part in (username, password)):
        raise ConfigurationError("the user's name or password contains a NUL, which PLAIN cannot carry.")
    yield f"\0{username.reveal()}\0{password.reveal()}".encode()
