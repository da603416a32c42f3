"""Spark's own JVM Kafka connector, for tests that compare with it: its jars, fetched once into the project's cache.

Called by the `spark` fixture (for `spark.jars`) and the benchmarks. Knows nothing of brokers or sessions. The versions
are the newest that are published together and run on PySpark 4.3.0.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from protocol.errors import ConfigurationError
from spark_kafka_source import kafka_jars
from spark_kafka_source.kafka_jars import Report, to_stderr

CONNECTOR_VERSION = "4.2.0"

_JARS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
# Not what they depend on: Spark itself brings that (lz4, snappy, zstd, slf4j, Scala).
_IVY_FILE = """<ivy-module version="2.0">
  <info organisation="spark-kafka-source" module="jvm-connector"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = '    <dependency org="{}" name="{}" rev="{}" conf="default->default" transitive="false"/>'


def jvm_connector_jars(report: Report = to_stderr) -> list[Path]:
    """The jars of `format("kafka")`, for `spark.jars` (joined by commas); fetched (10 MB) if the cache lacks them.

    Raises `ConfigurationError` when there is no Java, no PySpark, or no way to the jars.
    """
    folder = kafka_jars.cache_folder() / f"jvm-connector-{CONNECTOR_VERSION}"
    jars = [folder / f"{name}-{version}.jar" for _, name, version in _JARS]
    if folder.is_dir():
        return jars
    folder.parent.mkdir(parents=True, exist_ok=True)
    with kafka_jars._locked(folder.with_name(f"{folder.name}.lock"), report):
        if not folder.is_dir():
            _fetch(folder, report)
    return jars


def _fetch(folder: Path, report: Report) -> None:
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
    try:
        ivy_file = part / "ivy.xml"
        ivy_file.write_text(_IVY_FILE.format(dependencies="\n".join(_DEPENDENCY.format(*jar) for jar in _JARS)))
        command = [kafka_jars.find_java(), "-jar", str(kafka_jars._find_ivy()), "-m2compatible", "-ivy", str(ivy_file)]
        command += ["-confs", "default", "-retrieve", f"{part}/[artifact]-[revision].[ext]"]
        settings = os.environ.get(kafka_jars.IVY_SETTINGS_VARIABLE)
        if settings:
            command += ["-settings", settings]
        report(f"fetching Spark's JVM Kafka connector {CONNECTOR_VERSION} into {folder} (once; 10 MB)")
        code, said = kafka_jars._run_ivy(command, report)
        if code != 0 or len(list(part.glob("*.jar"))) != len(_JARS):
            raise ConfigurationError("the JVM connector could not be fetched. Ivy said:\n" + "\n".join(said)[-3000:])
        ivy_file.unlink()
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
