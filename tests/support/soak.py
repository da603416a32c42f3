"""Scale of long tests: small in `make test`, for every change; large in `make soak`, overnight.

Modules with such tests have the marker `soak`, by which `make soak` selects them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

N = TypeVar("N", int, float)

SOAK = "SPARK_KAFKA_SOURCE_SOAK" in os.environ


def scaled(name: str, usual: N, soak: N) -> N:
    """Return the scale of a test: the environment variable SPARK_KAFKA_SOURCE_<name> if it is set, for one run."""
    return type(usual)(os.environ.get(f"SPARK_KAFKA_SOURCE_{name}", soak if SOAK else usual))


def variants(name: str | Sequence[str], every: Sequence[object], *some: object) -> pytest.MarkDecorator:
    """Parametrize with `some` in `make test`: other tests cover the differences between the rest."""
    return pytest.mark.parametrize(name, every if SOAK else some)
