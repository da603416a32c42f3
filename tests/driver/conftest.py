"""What the tests of readers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.driver.twenty_offsets import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster
