"""Authenticated clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from protocol.cluster.client import Client
from protocol.config import parse_client
from tests.support.secured_kafka import SecuredKafka

ClientFactory = Callable[..., Client]


@pytest.fixture
def client(secured: SecuredKafka) -> Iterator[ClientFactory]:
    """Return `client({"sasl.mechanism": …}, listener="SASL_PLAINTEXT")`; the listener determines the other settings."""
    made: list[Client] = []

    def connect(properties: dict[str, str], listener: str = "SASL_PLAINTEXT") -> Client:
        made.append(Client(parse_client(secured.properties(listener) | properties)))
        return made[-1]

    yield connect
    for client in made:
        client.close()
