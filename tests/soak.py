"""Scale of long tests: `make test` runs for every change, `make soak` overnight."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

SOAK = "SPARK_KAFKA_SOURCE_SOAK" in os.environ


def variants(name: str, every: Sequence[object], *some: object) -> pytest.MarkDecorator:
    """Parameters, of which `make test` takes `some`: what differs between them, other tests show, too."""
    return pytest.mark.parametrize(name, every if SOAK else some)
