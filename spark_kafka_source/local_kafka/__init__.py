"""A real Apache Kafka on this machine, for the demo, the notebooks, the tests and the benchmarks; without Spark."""

from spark_kafka_source.local_kafka.cluster import LocalKafka

__all__ = ["LocalKafka"]
