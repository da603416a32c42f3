"""Small Java programs that call Kafka's classes, compiled by Spark's Janino at their start."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from spark_kafka_source.local_kafka.cluster import DEFAULT_VERSION
from spark_kafka_source.local_kafka.jars import find_java, kafka_jars
from tests.support.spark_home import BRIEF_LIFE


def java_command(program: Path) -> list[str]:
    """Return the command that runs the class NAME of a file `NAME.java`."""
    spark = importlib.util.find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    jars = Path(spark.origin).parent / "jars"
    janino = [*jars.glob("janino-*.jar"), *jars.glob("commons-compiler-*.jar")]
    class_path = ":".join(map(str, [*janino, kafka_jars(DEFAULT_VERSION) / "*"]))
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    command = [find_java(), *BRIEF_LIFE, "-XX:+UseSerialGC", quiet, "-cp", class_path]
    return [*command, "org.codehaus.janino.SimpleCompiler", str(program), program.stem]
