"""Kafka for Spark Structured Streaming: `format("pykafka-group")`, lag, functions, a local Kafka.

The names in `__all__` are the public API; all other modules are internal and change without notice. A name is imported
when it is first used: Spark's Python workers import this package and need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from protocol import DISTRIBUTION as DISTRIBUTION
    from protocol.base.lazy_names import attach
except Exception as error:
    from spark_kafka_source.foreign_protocol import explained

    explanation = explained(error)
    if explanation is None:
        raise
    raise explanation from error

if TYPE_CHECKING:
    from protocol.version import __version__ as __version__
    from spark_kafka_source.functions import from_registry, to_registry
    from spark_kafka_source.lag import LagListener, lag_of_group, lag_of_query
    from spark_kafka_source.local_kafka import LocalKafka
    from spark_kafka_source.sink import foreach_batch_writer
    from spark_kafka_source.source import register
    from spark_kafka_source.watching import watch

_MODULES = {
    "protocol.version": "__version__",
    "spark_kafka_source.functions": "from_registry to_registry",
    "spark_kafka_source.lag": "LagListener lag_of_group lag_of_query",
    "spark_kafka_source.local_kafka": "LocalKafka",
    "spark_kafka_source.sink": "foreach_batch_writer",
    "spark_kafka_source.source": "register",
    "spark_kafka_source.watching": "watch",
}

__all__ = [
    "LagListener",
    "LocalKafka",
    "foreach_batch_writer",
    "from_registry",
    "lag_of_group",
    "lag_of_query",
    "register",
    "to_registry",
    "watch",
]


__getattr__, __dir__ = attach(__name__, _MODULES)
