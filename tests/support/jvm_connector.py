"""Spark's own JVM Kafka connector, for tests that compare with it: its jars, fetched once into the project's cache.

Called by the `spark` fixture (for `spark.jars`) and the benchmarks. Knows nothing of brokers or sessions. The versions
are the newest that are published together and run on PySpark 4.3.0.
"""

from __future__ import annotations

from pathlib import Path

from spark_kafka_source.local_kafka.jars import Jar, Report, cached_jars, to_stderr

CONNECTOR_VERSION = "4.2.0"
# The newest Delta, and the newest Spark that it is published for.
DELTA_VERSION, DELTA_SPARK = "4.4.0", "4.2.1"

# Left out: dependencies that Spark contains (lz4, snappy, zstd, slf4j, Scala).
_JARS = (
    Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION, alone=True),
    Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Jar("org.apache.kafka", "kafka-clients", "3.9.0", alone=True),
    Jar("org.apache.commons", "commons-pool2", "2.12.0", alone=True),
)


def spark_avro_jars(report: Report = to_stderr) -> list[Path]:
    """Return the jar of Spark's `from_avro`. Downloads it unless cached."""
    jars = (Jar("org.apache.spark", "spark-avro_2.13", CONNECTOR_VERSION, alone=True),)
    folder = cached_jars(f"spark-avro-{CONNECTOR_VERSION}", f"Spark's Avro {CONNECTOR_VERSION}", jars, report)
    return sorted(folder.glob("*.jar"))


def delta_jars(report: Report = to_stderr) -> list[Path]:
    """Return the jars of Delta for `DELTA_SPARK`. Downloads 10 MB unless cached."""
    minor = DELTA_SPARK.rpartition(".")[0]
    names = (f"delta-spark_{minor}_2.13", "delta-storage")
    jars = [Jar("io.delta", name, DELTA_VERSION, alone=True) for name in names]
    folder = cached_jars(f"delta-{DELTA_VERSION}-spark-{minor}", f"Delta {DELTA_VERSION}", jars, report)
    return sorted(folder.glob("*.jar"))


def jvm_connector_jars(report: Report = to_stderr) -> list[Path]:
    """Return the jars of `format("kafka")`, to be joined by commas for `spark.jars`. Downloads 10 MB unless cached.

    Raises `ConfigurationError` (no Java, no PySpark) or `TransportError` (no network).
    """
    title = f"Spark's JVM Kafka connector {CONNECTOR_VERSION}"
    folder = cached_jars(f"jvm-connector-{CONNECTOR_VERSION}", title, _JARS, report)
    return sorted(folder.glob("*.jar"))
