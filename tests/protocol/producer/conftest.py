"""A fake broker, and a check after each test of a producer."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from protocol.testing.fake_kafka.server import FakeKafka
from tests.protocol.producer.producing import TOPIC
from tests.support.wait_until import wait_until


@pytest.fixture(autouse=True)
def _no_sender_is_left() -> Iterator[None]:
    """Assert that producers that a test did not close end when they are garbage."""
    before = _senders()
    yield

    def ended() -> bool:
        if not (remaining := _senders() - before):
            return True
        gc.collect()
        return not any(sender.is_alive() for sender in remaining)

    wait_until(ended, lambda: str(_senders() - before))


@pytest.fixture
def broker() -> Iterator[FakeKafka]:
    with FakeKafka() as kafka:
        kafka.create_topic(TOPIC, 2)
        yield kafka


def _senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("produce-")}
