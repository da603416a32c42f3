"""What an exchange of SASL is here: a generator that gives messages to the broker and takes its challenges.

    exchange = plain(username, password)
    message = next(exchange)            # to be sent
    message = exchange.send(challenge)  # and so on; StopIteration: this side is satisfied

It raises `AuthenticationFailed` for a broker that has not proved what the mechanism wants proved. Mechanisms are in the
files beside this one; `protocol.net.authenticate` drives them.
"""

from __future__ import annotations

from collections.abc import Generator

Exchange = Generator[bytes, bytes, None]
