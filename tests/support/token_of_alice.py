"""A token provider for tests: returns an unsigned token of alice, for brokers that verify no signatures."""

from __future__ import annotations

import os
import time
from pathlib import Path

from protocol.sasl.token import unsecured_token


def token() -> str:
    return unsecured_token({"unsecuredLoginStringClaim_sub": "alice"}, time.time()).value.reveal()


def kept() -> str:
    """Return the token in the file that an environment variable names."""
    return Path(os.environ["TOKEN_OF_ALICE"]).read_text()
