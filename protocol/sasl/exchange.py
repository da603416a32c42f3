"""The type of a SASL exchange: a generator that yields messages for the broker and receives its challenges.

    exchange = plain(username, password)
    message = next(exchange)            # to send
    message = exchange.send(challenge)  # until StopIteration: the client is satisfied

It raises `AuthenticationFailed` if the broker does not prove what the mechanism requires. The mechanisms are in the
other files of this package; `protocol.net.authenticate` runs them.
"""

from __future__ import annotations

from collections.abc import Generator

Exchange = Generator[bytes, bytes, None]
