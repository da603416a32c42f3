"""Fixtures of the driver's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_kafka_source.process_state import PROCESS
from tests.driver.changing_logs import Cluster


@pytest.fixture(autouse=True)
def _new_process() -> Iterator[None]:
    """Forget clients and logged warnings: a cluster of the model may get the port of an earlier one."""
    PROCESS.reset()
    yield
    PROCESS.reset()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster
