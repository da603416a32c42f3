"""A real Apache Kafka on this machine, for the demo, the notebooks, the tests and the benchmarks; without Spark."""

from spark_kafka_source.local_kafka.cluster import LocalKafka
from spark_kafka_source.local_kafka.users import acl_settings

__all__ = ["LocalKafka", "acl_settings"]
