"""Servers that are no Kafka brokers."""

from __future__ import annotations

from protocol.testing.fake_kafka.server import FakeKafka
from protocol.wire.messages.m18_api_versions import API_VERSIONS


def no_broker(greeting: bytes) -> FakeKafka:
    """Return a server that answers the first request of each connection with these bytes."""
    server = FakeKafka()
    server.handlers[API_VERSIONS] = lambda body, version: greeting
    return server
