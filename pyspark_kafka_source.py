"""Registers the data source "pykafka-group" with Spark, by its mere presence.

Spark's driver looks through all importable top-level modules named `pyspark_*` for a `DefaultSource`. The class is
imported when it is asked for, and an import that fails makes it look absent: one broken package must not break the
other data sources of a session.
"""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["DefaultSource"]  # noqa: F822 (made by __getattr__)


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from spark_kafka_source.source import KafkaGroupDataSource
    except Exception as error:
        logging.getLogger(__name__).warning('The data source "pykafka-group" is not registered: %s', error)
        raise AttributeError(f'the data source "pykafka-group" cannot be imported: {error}') from error
    globals()[name] = KafkaGroupDataSource
    return KafkaGroupDataSource
