"""A Spark that starts quickly: a `SPARK_HOME` with links to the installed PySpark.

Two things differ from PySpark's own. First, JVMs map an archive of their classes (AppCDS), which halves the CPU time of
a start and of a first query. It needs a class path of jars without folders, so options name the files of settings and
of the log configuration. Second, there is no `pyspark.zip`, from which each new Python process would compile PySpark
again, half a second per query: processes import the installed package.

`python -m tests.support.spark_home` makes the archive (`make test` does); without it Spark starts at its usual speed.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from spark_kafka_source.local_kafka.jars import class_archive, find_java

_ROOT = Path(__file__).parents[2]
_BUILD = _ROOT / "build"
_HOME = _BUILD / "spark-home"
_ARCHIVE = _BUILD / "spark-classes.jsa"

# The optimising compiler does not pay off for short-lived JVMs on few cores.
BRIEF_LIFE = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
# For few rows, compiling generated code takes longer than running without it.
_BRIEF_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # By default an idle stream polls its source, and so all brokers, 100 times a second.
    "spark.sql.streaming.pollingDelay": "100ms",
    # Spark's default starts programs (`chmod`, `stat`, `readlink`) for each file of a checkpoint, two per trigger.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_LOGGING = [
    f"-Dlog4j2.configurationFile={_ROOT / 'conf' / 'log4j2.properties'}",
    "-Xlog:cds=off",
    "-Xlog:class+path=off",
]
# For every JVM of Spark. The JVM ignores a missing or mismatched archive.
JVM_OPTIONS = [*BRIEF_LIFE, *_LOGGING, f"-XX:SharedArchiveFile={_ARCHIVE}", "-Xshare:auto"]
SUBMIT_ARGUMENTS = [
    *("--properties-file", str(_ROOT / "conf" / "spark-defaults.conf")),
    *(word for key, value in _BRIEF_QUERIES.items() for word in ("--conf", f"{key}={value}")),
]
_TRAINING_S = 600


def use() -> None:
    """Use this Spark home in this process and its child processes."""
    (_HOME / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        _link(_HOME / name, _pyspark() / name)
    os.environ["SPARK_HOME"] = str(_HOME)
    os.environ["SPARK_CONF_DIR"] = str(_HOME / "conf")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_SUBMIT_OPTS"] = shlex.join(JVM_OPTIONS)
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join([*SUBMIT_ARGUMENTS, "pyspark-shell"])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def make_archive() -> None:
    """Create the class archive, unless it exists for this Java and this PySpark."""
    installed_ns = (_pyspark() / "jars").stat().st_mtime_ns
    archive = class_archive(_BUILD / f"spark-{installed_ns}", find_java(), _train)
    if archive is not None:
        _link(_ARCHIVE, archive)


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _link(link: Path, to: Path) -> None:
    if not link.is_symlink() or link.readlink() != to:
        link.unlink(missing_ok=True)
        with suppress(FileExistsError):  # created by another process
            link.symlink_to(to)


def _train(archive: Path) -> None:
    """Run typical work in a JVM that records the loaded classes."""
    options = [*BRIEF_LIFE, *_LOGGING, f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds+dynamic=off"]
    subprocess.run(
        [sys.executable, "-m", "tests.support.spark_home", "train"],
        env={**os.environ, "SPARK_SUBMIT_OPTS": shlex.join(options)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_TRAINING_S,
        check=True,
    )


def _be_trained() -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("training").getOrCreate()
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    with TemporaryDirectory() as folder:
        rows = spark.range(100).selectExpr("id % 3 AS key", "string(id) AS value", "current_timestamp() AS time")
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("key").count().orderBy("key").collect()
        rows.write.parquet(f"{folder}/rows")
        spark.read.parquet(f"{folder}/rows").distinct().count()
        for number in range(2):
            written = (
                spark.readStream.format("rate").load().writeStream.option("checkpointLocation", f"{folder}/{number}")
            )
            to_rows = written.foreachBatch(lambda batch, _: batch.collect()) if number else written.format("noop")
            to_rows.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    jvm.stdin.close()  # ends the JVM
    jvm.wait(_TRAINING_S)


if __name__ == "__main__":
    if sys.argv[1:] == ["train"]:
        _be_trained()
    else:
        use()
        make_archive()
