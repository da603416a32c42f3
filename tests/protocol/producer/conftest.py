"""A check after each test of a producer."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_sender_is_left() -> Iterator[None]:
    """Assert that producers that a test did not close end when they are garbage."""
    before = set(threading.enumerate())
    yield
    deadline_s = time.monotonic() + 20
    while remaining := [sender.name for sender in _senders() if sender not in before]:
        gc.collect()
        assert time.monotonic() < deadline_s, remaining
        time.sleep(0.01)


def _senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("produce-")]
