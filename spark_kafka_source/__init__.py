"""Kafka for Spark Structured Streaming: `format("pykafka-group")`, lag, functions, a local Kafka.

The names in `__all__` are the public API; all other modules are internal and change without notice. A name is imported
when it is first used: Spark's Python workers import this package and need few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from protocol import DISTRIBUTION as DISTRIBUTION
    from protocol.lazy_names import attach
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
    "__version__": "protocol.version",
    "LagListener": "spark_kafka_source.lag",
    "LocalKafka": "spark_kafka_source.local_kafka",
    "foreach_batch_writer": "spark_kafka_source.sink",
    "from_registry": "spark_kafka_source.functions",
    "lag_of_group": "spark_kafka_source.lag",
    "lag_of_query": "spark_kafka_source.lag",
    "register": "spark_kafka_source.source",
    "to_registry": "spark_kafka_source.functions",
    "watch": "spark_kafka_source.watching",
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
