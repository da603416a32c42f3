"""A provider of tokens, for queries of tests: brokers that check no signature take alice's."""

from __future__ import annotations

import time

from protocol.sasl.token import unsecured_token


def token() -> str:
    return unsecured_token({"unsecuredLoginStringClaim_sub": "alice"}, time.time()).value.reveal()
