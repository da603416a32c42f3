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
    while left := [each.name for each in _senders() if each not in before]:
        gc.collect()
        assert time.monotonic() < deadline_s, left
        time.sleep(0.01)


def _senders() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("produce-")]
