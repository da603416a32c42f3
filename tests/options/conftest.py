"""Reset the deduplicated warnings before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocol.base import once


@pytest.fixture(autouse=True)
def _reset_warnings() -> Iterator[None]:
    once.reset()
    yield
    once.reset()
