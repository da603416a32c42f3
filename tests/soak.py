"""Whether the tests may take long: `make test` is there for every change, `make soak` for a night."""

from __future__ import annotations

import os

SOAK = "SPARK_KAFKA_SOURCE_SOAK" in os.environ
