"""Write to Kafka: Spark's writers on the driver, their tasks on executors, and a function for `foreachBatch`."""

from __future__ import annotations

from spark_kafka_source.sink.foreach_batch import ForeachBatchWriter, foreach_batch_writer

__all__ = ["ForeachBatchWriter", "foreach_batch_writer"]
