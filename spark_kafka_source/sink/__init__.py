"""What writes: Spark's writers on the driver, their tasks in the executors, and a function for `foreachBatch`."""

from spark_kafka_source.sink.foreach_batch import KafkaBatches, kafka_batches

__all__ = ["KafkaBatches", "kafka_batches"]
