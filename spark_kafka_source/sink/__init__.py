"""Write to Kafka: Spark's writers on the driver, their tasks on executors, and a function for `foreachBatch`."""

from __future__ import annotations

import warnings
from typing import Any

from spark_kafka_source.sink.foreach_batch import ForeachBatchWriter, foreach_batch_writer

__all__ = ["ForeachBatchWriter", "foreach_batch_writer"]


def __getattr__(name: str) -> Any:
    if name != "kafka_batches":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "spark_kafka_source.sink.kafka_batches is now spark_kafka_source.foreach_batch_writer",
        DeprecationWarning,
        stacklevel=2,
    )
    return foreach_batch_writer
